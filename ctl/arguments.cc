#include "ctl/arguments.h"

#include <map>

#include "core/base/sizes.h"
#include "core/terminal/units.h"
#include "ctl/exit_codes.h"

namespace kvtier::ctl {
namespace {

constexpr const char* kExamples = R"(
Examples:
  kvtierctl status
      What each tier holds, how often it was hit, and what went wrong.
  kvtierctl top
      The same, live, with rates, sessions and who uses what.
  kvtierctl status --json | jq '.tiers[] | select(.tier == "disk").used_bytes'
      One number for a script.
  kvtierctl invalidate my-model
      Forgets everything of a model whose weights were changed in place.
  kvtierctl check-system
      Whether this host is fit for kvtierd, with a command to mend what is not.
  kvtierctl pin --help
      Each command explains itself, with examples.

Exit status:
  0  done
  1  failed; for check-system: at least one check failed
  2  the command line is wrong
  3  the daemon cannot be reached, did not answer in time, or is of another release
  4  the daemon refused: you are not its administrator, or a bound was reached
  5  there is no such block, namespace or tenant
  6  done in part; what is left is said

Environment: KVTIER_SOCKET as --socket; NO_COLOR turns colours off.
)";

constexpr const char* kFilterNote = R"(
Namespaces are chosen by --namespace, or by --model and, where its name has one, a revision: engines name a
model "name@revision", and the last @ counts.
)";

std::string is_digest(const std::string& text) {
  const auto id = from_hex(text);
  return id ? std::string() : id.error().message;
}
std::string is_bytes(const std::string& text) {
  const auto bytes = parse_size(text);
  return bytes ? std::string() : bytes.error().message;
}
std::string is_duration(const std::string& text) {
  const auto time = parse_duration(text);
  return time ? std::string() : time.error().message;
}

std::string examples(const std::string& lines) {
  return "\nExamples:\n" + lines;
}

}  // namespace

CommandLine::CommandLine(Arguments& arguments)
    : arguments_(arguments),
      app_("Looks into a running kvtierd, keeps and drops what it has cached, and checks the host.",
           "kvtierctl") {
  app_.footer(kExamples);
  app_.require_subcommand(1);
  app_.fallthrough();
  app_.add_option("--socket", arguments_.target.socket, "The daemon's control socket")
      ->envname("KVTIER_SOCKET")
      ->capture_default_str();
  app_.add_option("--timeout-ms", arguments_.text.timeout_ms,
                  "How long to wait for the daemon (default: 5000, and 600000 for commands that go "
                  "through blocks)")
      ->check(CLI::Range(1L, 86'400'000L));
  app_.set_version_flag("--version", "kvtierctl " KVTIER_VERSION);
  add_looking();
  add_keeping();
  add_removing();
  add_checking();
}

CLI::App& CommandLine::add(const std::string& name, const std::string& what,
                           const std::string& footer) {
  CLI::App& command = *app_.add_subcommand(name, what);
  command.footer(footer);
  command.add_flag("--json", arguments_.json, "Print JSON with raw numbers");
  return command;
}

void CommandLine::add_filter(CLI::App& command) {
  auto* ns =
      command.add_option("--namespace", arguments_.text.ns, "Only this one, as ls prints it")
          ->type_name("HEX")
          ->check(is_digest);
  auto* model = command.add_option("--model", arguments_.text.model, "Only this model's, by name")
                    ->excludes(ns);
  auto* revision =
      command.add_option("--revision", arguments_.text.revision, "Only this revision of the model")
          ->needs(model);
  command
      .add_option("--not-revision", arguments_.text.not_revision,
                  "All revisions of the model but this one")
      ->needs(model)
      ->excludes(revision);
}

void CommandLine::add_key(CLI::App& command, const std::string& with, bool required) {
  command.add_option("KEY", arguments_.text.key, "A block's key, as ls prints it")
      ->type_name("HEX")
      ->check(is_digest)
      ->required(required);
  if (with.empty()) return;
  command
      .add_option("--with", arguments_.text.with,
                  "What goes with the key: none, ancestors (what comes before it in its prefix) or "
                  "descendants (all that begins with it); default " +
                      with)
      ->check(CLI::IsMember({"none", "ancestors", "descendants"}));
}

void CommandLine::add_tiers(CLI::App& command, const std::string& what, bool remote_too) {
  std::vector<std::string> names{"device", "host", "disk"};
  if (remote_too) names.push_back("remote");
  command.add_option("--tier", arguments_.text.tiers, what + "; may be given again")
      ->allow_extra_args(false)
      ->check(CLI::IsMember(names));
}

void CommandLine::add_looking() {
  add("status", "Tiers, counters, GPUs and disks",
      examples("  kvtierctl status\n"
               "  kvtierctl status --json | jq .leases\n"));
  CLI::App& top = add(
      "top", "A live view: tiers, rates, sessions, namespaces, disks",
      "\nOn a terminal it is redrawn in place until q is pressed; elsewhere it prints a "
      "report\nevery interval.\n" +
          examples("  kvtierctl top --interval 0.5\n"
                   "  kvtierctl top --once --json     rates over one interval, for a script\n"));
  top.add_option("--interval", arguments_.interval_s, "Seconds between two looks")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  top.add_flag("--once", arguments_.once, "One report over one interval, then end");

  CLI::App& ls =
      add("ls", "Namespaces, and blocks if asked for",
          kFilterNote +
              examples("  kvtierctl ls\n"
                       "      The namespaces (model, adapter, tenant, shape), largest first.\n"
                       "  kvtierctl ls --limit 20 --model llama --tier disk\n"
                       "      Twenty blocks of one model that are on disk.\n"
                       "  kvtierctl ls --limit 10 --sort access\n"
                       "      The ten that were used last.\n"));
  add_filter(ls);
  add_tiers(ls, "Only blocks in this tier");
  ls.add_option("--limit,--blocks", arguments_.blocks, "List up to so many blocks")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 30))
      ->capture_default_str();
  ls.add_option("--sort", arguments_.text.sort,
                "Look at all blocks and list the first by key, index (place in the prefix), access "
                "(newest first) or size")
      ->check(CLI::IsMember({"key", "index", "access", "size"}));

  CLI::App& inspect =
      add("inspect", "All that is known of one block",
          examples("  kvtierctl inspect 3f0c6a0e9b1d4c7e8a5b2d1f00c4e7a9\n"
                   "      Its namespace, parent, place in each tier, leases and pins.\n"
                   "  kvtierctl inspect 3f0c6a0e9b1d4c7e8a5b2d1f00c4e7a9 --verify\n"
                   "      Reads its record in memory and on disk and checks it.\n"));
  add_key(inspect, "", true);
  inspect.add_flag("--verify", arguments_.verify,
                   "Check the record's checksums; one on disk that does not hold is forgotten");
  add("sessions", "The clients that are connected", examples("  kvtierctl sessions\n"));
}

void CommandLine::add_keeping() {
  CLI::App& pin = add(
      "pin", "Keep blocks from eviction for a while",
      "\nA pin holds what is in those tiers now, until its lifetime ends, unpin, or the daemon's "
      "end. Pins\n"
      "never hold more than [pins] percent_max of a tier. Pinned again, a block has the new "
      "lifetime.\n" +
          std::string(kFilterNote) +
          examples(
              "  kvtierctl pin 3f0c6a0e9b1d4c7e8a5b2d1f00c4e7a9 --tier host --for 2h\n"
              "      The prefix that ends with this block (a system prompt) stays in host memory.\n"
              "  kvtierctl pin --model llama --tier disk --for 7d\n"
              "      What a model has on disk now stays there for a week.\n"));
  add_key(pin, "ancestors");
  add_filter(pin);
  add_tiers(pin, "Only in this tier", false);
  pin.add_option("--for", arguments_.text.lifetime, "How long: 90s, 15m, 2h or 7d; at most 30d")
      ->type_name("TIME")
      ->check(is_duration)
      ->required();
  CLI::App& unpin =
      add("unpin", "Let pinned blocks be evicted again",
          kFilterNote + examples("  kvtierctl unpin 3f0c6a0e9b1d4c7e8a5b2d1f00c4e7a9\n"
                                 "      The block and what comes before it in its prefix.\n"
                                 "  kvtierctl unpin --all\n"));
  add_key(unpin, "ancestors");
  add_filter(unpin);
  add_tiers(unpin, "Only in this tier", false);
  unpin.add_flag("--all", arguments_.all, "Every pin");

  CLI::App& push = add(
      "push",
      "Write blocks of host memory to the remote tier; needs KEY, --namespace, --model or --all",
      "\nWhatever [remote] admission is. Ends when all of them are there, or were given up.\n" +
          std::string(kFilterNote) +
          examples("  kvtierctl push --all --used 10m\n"
                   "      What came or was used within the last ten minutes.\n"
                   "  kvtierctl push --model llama\n"));
  add_key(push, "ancestors");
  add_filter(push);
  push.add_option("--used", arguments_.text.lifetime,
                  "Only what came or was used within this time: 90s, 15m, 2h or 7d")
      ->type_name("TIME")
      ->check(is_duration);
  push.add_flag("--all", arguments_.all, "Every block");

  CLI::App& quota =
      add("quota", "What each tenant uses and may use",
          examples("  kvtierctl quota\n"
                   "  kvtierctl quota set team-a --host 4GiB --disk 100GiB\n"
                   "      From now on, until the daemon ends; 0 takes a quota away.\n"));
  CLI::App& set = *quota.add_subcommand("set", "Change a tenant's quota while the daemon runs");
  set.add_flag("--json", arguments_.json, "Print JSON with raw numbers");
  set.footer(examples("  kvtierctl quota set team-a --host 4GiB\n"));
  set.add_option("TENANT", arguments_.tenant, "Its name, as quota prints it")->required();
  for (const Tier tier : kAllTiers) {
    set.add_option(std::string("--") + name(tier), arguments_.text.quotas[index_of(tier)],
                   "Bytes, such as 512MiB or 4GiB; 0: no quota")
        ->type_name("SIZE")
        ->check(is_bytes);
  }
}

void CommandLine::add_removing() {
  CLI::App& drop =
      add("drop", "Forget blocks; needs KEY, --namespace, --model, --tier or --all",
          "\nWhat is leased, pinned, or on its way to or from disk stays and is counted, unless "
          "--force.\n" +
              std::string(kFilterNote) +
              examples("  kvtierctl drop --namespace 3f0c6a0e9b1d4c7e8a5b2d1f00c4e7a9\n"
                       "      One namespace, everywhere.\n"
                       "  kvtierctl drop --model llama --not-revision 2026-11\n"
                       "      What older generations of a model have left behind.\n"
                       "  kvtierctl drop 9b1d4c7e8a5b2d1f00c4e7a93f0c6a0e --force\n"
                       "      One block and everything that begins with it, also what is in use.\n"
                       "  kvtierctl drop --tier device --tier host\n"
                       "      Empties memory and keeps the disk.\n"));
  add_key(drop, "descendants");
  add_filter(drop);
  add_tiers(drop, "Only from this tier");
  drop.add_flag("--all", arguments_.all, "Everything");
  drop.add_flag("--force", arguments_.force,
                "End pins, and let what is in use be found by nobody and go with its last use");

  CLI::App& invalidate = add(
      "invalidate", "Forget a model whose weights were updated",
      "\nIts namespaces are closed at once: sessions that have them open are told, find and write "
      "nothing\n"
      "more, and a client with the new weights opens them anew. Records of namespaces that the "
      "daemon\n"
      "knows by their id alone go too, as they may be of that model. It returns when all of it is\n"
      "forgotten for good, also after a loss of power.\n" +
          examples("  kvtierctl invalidate llama\n"
                   "      Every revision, when weights were changed in place.\n"
                   "  kvtierctl invalidate llama --not-revision 2026-11\n"
                   "      Every revision but the new one.\n"));
  auto* ns = invalidate.add_option("--namespace", arguments_.text.ns, "This namespace only")
                 ->type_name("HEX")
                 ->check(is_digest);
  auto* model =
      invalidate.add_option("MODEL", arguments_.text.model, "The model, by name")->excludes(ns);
  auto* revision =
      invalidate.add_option("--revision", arguments_.text.revision, "Only this revision")
          ->needs(model);
  invalidate
      .add_option("--not-revision", arguments_.text.not_revision, "All revisions but this one")
      ->needs(model)
      ->excludes(revision);
}

void CommandLine::add_checking() {
  add("flush", "Wait until everything committed so far is safe on disk",
      examples("  kvtierctl flush && echo safe\n"));
  CLI::App& scrub = add("scrub", "Verify every record on disk, at full speed",
                        examples("  kvtierctl scrub --wait\n"
                                 "      Verifies every record now and reports.\n"
                                 "  kvtierctl scrub --report\n"
                                 "      How the pass under way, and the last one, went.\n"));
  scrub.add_flag("--wait", arguments_.wait, "Until the pass under way has ended");
  scrub.add_flag("--report", arguments_.report, "Start nothing");
  CLI::App& check = add(
      "check-system", "Whether this host is fit for kvtierd, and how to mend what is not",
      "\nLooks at the running daemon where there is one, and otherwise at its configuration.\n" +
          examples("  kvtierctl check-system\n"
                   "  kvtierctl check-system --json | jq -r '.checks[] | select(.state != "
                   "\"ok\").mend'\n"));
  check
      .add_option("--config", arguments_.config,
                  "The daemon's configuration, where it is not running")
      ->capture_default_str();
}

// The texts, which were checked while parsing, as values.
void CommandLine::finish() {
  Arguments& a = arguments_;
  if (!a.text.ns.empty()) a.what.in.ns = NamespaceId{from_hex(a.text.ns).value()};
  a.what.in.model = a.text.model;
  if (const auto at = a.text.model.rfind('@'); at != std::string::npos) {
    throw CLI::ValidationError("model", "give the name and the revision apart: '" +
                                            a.text.model.substr(0, at) + "' --revision '" +
                                            a.text.model.substr(at + 1) + "'");
  }
  if (!a.text.revision.empty()) a.what.in.rule = Filter::Revision::is;
  if (!a.text.not_revision.empty()) a.what.in.rule = Filter::Revision::is_not;
  a.what.in.revision = a.text.revision + a.text.not_revision;
  if (!a.text.key.empty()) a.what.key = Key{from_hex(a.text.key).value()};
  static const std::map<std::string, Selection::Around> kAround{
      {"none", Selection::Around::block},
      {"ancestors", Selection::Around::ancestors},
      {"descendants", Selection::Around::descendants}};
  if (a.text.with.empty()) a.text.with = command_ == "drop" ? "descendants" : "ancestors";
  a.what.around = kAround.at(a.text.with);
  for (const Tier tier : kAllTiersWithRemote) {
    if (std::ranges::find(a.text.tiers, name(tier)) != a.text.tiers.end())
      a.tiers = a.tiers.with(tier);
  }
  for (const Tier tier : kAllTiers) {
    const std::string& quota = a.text.quotas[index_of(tier)];
    if (!quota.empty()) a.quotas.push_back({tier, parse_size(quota).value()});
  }
  static const std::map<std::string, SortBy> kSorts{{"", SortBy::none},
                                                    {"key", SortBy::key},
                                                    {"index", SortBy::index},
                                                    {"access", SortBy::access},
                                                    {"size", SortBy::size}};
  a.sort = kSorts.at(a.text.sort);
  if (!a.text.lifetime.empty()) a.lifetime = parse_duration(a.text.lifetime).value();
  const bool quick = command_ == "status" || command_ == "top" || command_ == "sessions" ||
                     command_ == "quota" || command_ == "scrub" || command_ == "check-system";
  if (a.text.timeout_ms == 0) a.text.timeout_ms = quick ? 5000 : 600'000;
  a.target.timeout = std::chrono::milliseconds(a.text.timeout_ms);
  const bool chosen = a.what.key.has_value() || !a.what.in.is_everything();
  if (command_ == "drop" && a.all == (chosen || !a.tiers.empty()))
    throw CLI::ValidationError("drop",
                               "say what: KEY, --namespace, --model, --tier, or --all alone");
  if (command_ == "drop" && a.force && !a.tiers.empty())
    throw CLI::ValidationError("drop", "--force drops from every tier: leave --tier out");
  if (command_ == "pin" && !chosen)
    throw CLI::ValidationError("pin", "say what: KEY, --namespace or --model");
  if (command_ == "unpin" && a.all == chosen)
    throw CLI::ValidationError("unpin", "say what: KEY, --namespace, --model, or --all alone");
  if (command_ == "push" && a.all == chosen)
    throw CLI::ValidationError("push", "say what: KEY, --namespace, --model, or --all alone");
  if (command_ == "invalidate" && !chosen)
    throw CLI::ValidationError("invalidate", "say what: MODEL, or --namespace");
  if (command_ == "quota" && !a.tenant.empty() && a.quotas.empty())
    throw CLI::ValidationError("quota set", "say what: --device, --host or --disk");
}

std::optional<int> CommandLine::parse(int argc, char** argv) {
  try {
    app_.parse(argc, argv);
    command_ = app_.get_subcommands().front()->get_name();
    finish();
  } catch (const CLI::ParseError& error) {
    return app_.exit(error) == 0 ? kDone : kUsage;
  }
  return std::nullopt;
}

}  // namespace kvtier::ctl
