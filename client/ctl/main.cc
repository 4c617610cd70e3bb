// kvtierctl: looks into a running kvtierd, checks it and empties it.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "client/ctl/commands.h"
#include "client/ctl/render.h"
#include "client/wire/frame.h"

namespace kvtier::ctl {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

constexpr const char* kExamples = R"(
Examples:
  kvtierctl status
      What each tier holds, how often it was hit, and what went wrong.
  kvtierctl status --json | jq '.tiers[] | select(.tier == "disk").used_bytes'
      One number for a script.
  kvtierctl ls
      The namespaces (model, adapter, tenant, shape) and the bytes each holds in each tier.
  kvtierctl ls --blocks 20 --namespace 3f0c6a0e9b1d4c7e8a5b2d1f00c4e7a9
      Twenty blocks of one namespace.
  kvtierctl drop --namespace 3f0c6a0e9b1d4c7e8a5b2d1f00c4e7a9
      Forgets one namespace everywhere, after its weights were changed in place.
  kvtierctl drop --tier device --tier host
      Empties memory and keeps the disk.
  kvtierctl scrub --wait
      Verifies every record on disk now and reports.
  kvtierctl scrub --report
      How the pass under way, and the last one, went.
  kvtierctl --socket /tmp/kvtierd.sock drop --all
      Empties a daemon that does not listen at the usual place.

Exit status: 0 fine; 1 the daemon cannot be reached or refused; 2 usage.
)";

struct Arguments {
  Target target;
  long timeout_ms = 5000;
  bool json = false;
  std::uint32_t blocks = 0;
  std::string ns;
  std::vector<std::string> tiers;
  bool all = false;
  bool wait = false;
  bool report = false;
};

int print(const Result<Json>& answer, const Arguments& arguments,
          std::string (*render)(const Json&)) {
  if (!answer) {
    std::fprintf(stderr, "kvtierctl: %s (socket %s)\n", answer.error().message.c_str(),
                 arguments.target.socket.c_str());
    return kFailed;
  }
  const auto text = arguments.json
                        ? answer->dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                        : render(*answer);
  std::fputs(text.c_str(), stdout);
  return 0;
}

std::string render_drop(const Json& answer) {
  return std::to_string(answer["blocks_dropped"].get<std::uint64_t>()) + " blocks dropped\n";
}

// An id of 32 digits was checked while parsing.
std::optional<NamespaceId> namespace_of(const Arguments& arguments) {
  if (arguments.ns.empty()) return {};
  return NamespaceId{from_hex(arguments.ns).value()};
}

TierSet tiers_of(const Arguments& arguments) {
  TierSet set;
  for (const Tier tier : kAllTiers) {
    if (std::ranges::find(arguments.tiers, name(tier)) != arguments.tiers.end())
      set = set.with(tier);
  }
  return set;
}

void add_namespace(CLI::App& command, Arguments& arguments) {
  command.add_option("--namespace", arguments.ns, "Only this namespace, as printed by ls")
      ->type_name("HEX")
      ->check([](const std::string& text) {
        const auto id = from_hex(text);
        return id ? std::string() : id.error().message;
      });
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"Looks into a running kvtierd, checks its disks, and empties it.", "kvtierctl"};
  app.footer(kExamples);
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--socket", arguments.target.socket, "The daemon's control socket")
      ->envname("KVTIER_SOCKET")
      ->capture_default_str();
  app.add_option("--timeout-ms", arguments.timeout_ms, "How long to wait for the daemon")
      ->check(CLI::Range(1L, 86'400'000L))
      ->capture_default_str();
  app.set_version_flag("--version", KVTIER_VERSION);

  auto* status = app.add_subcommand("status", "Tiers, counters and sessions");
  auto* ls = app.add_subcommand("ls", "Namespaces, and blocks if asked for");
  ls->add_option("--blocks", arguments.blocks, "List up to so many blocks")
      ->check(CLI::Range(0U, wire::kListBlocksMax))
      ->capture_default_str();
  add_namespace(*ls, arguments);
  auto* drop_command =
      app.add_subcommand("drop", "Forget blocks; needs --all, --namespace or --tier");
  add_namespace(*drop_command, arguments);
  drop_command->add_option("--tier", arguments.tiers, "Only from this tier; may be given again")
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"device", "host", "disk"}));
  drop_command->add_flag("--all", arguments.all, "Everything");
  auto* scrub_command = app.add_subcommand("scrub", "Verify every record on disk, at full speed");
  scrub_command->add_flag("--wait", arguments.wait, "Until the pass under way has ended");
  scrub_command->add_flag("--report", arguments.report, "Start nothing");
  for (auto* command : {status, ls, drop_command, scrub_command}) {
    command->add_flag("--json", arguments.json, "Print JSON with raw numbers");
  }

  try {
    app.parse(argc, argv);
    if (*drop_command && !arguments.all && arguments.ns.empty() && arguments.tiers.empty()) {
      throw CLI::ValidationError("drop", "say what: --all, --namespace HEX or --tier TIER");
    }
    if (*drop_command && arguments.all && !(arguments.ns.empty() && arguments.tiers.empty())) {
      throw CLI::ValidationError("drop", "--all goes with neither --namespace nor --tier");
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  arguments.target.timeout = std::chrono::milliseconds(arguments.timeout_ms);
  if (*status) return print(fetch_status(arguments.target), arguments, render_status);
  if (*ls) {
    return print(fetch_list(arguments.target, {arguments.blocks, namespace_of(arguments)}),
                 arguments, render_list);
  }
  if (*scrub_command) {
    return print(scrub(arguments.target, {!arguments.report, arguments.wait}), arguments,
                 render_scrub);
  }
  return print(drop(arguments.target, {namespace_of(arguments), tiers_of(arguments)}), arguments,
               render_drop);
}

}  // namespace
}  // namespace kvtier::ctl

int main(int argc, char** argv) {
  return kvtier::ctl::run(argc, argv);
}
