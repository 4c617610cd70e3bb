// kvtierctl: looks into a running kvtierd, keeps and drops what it has cached, checks the host.
#include <unistd.h>

#include <cstdio>

#include "core/base/shown.h"
#include "core/terminal/terminal.h"
#include "ctl/arguments.h"
#include "ctl/check/check_system.h"
#include "ctl/exit_codes.h"
#include "ctl/render.h"
#include "ctl/top.h"

namespace kvtier::ctl {
namespace {

void print_json(const Json& json) {
  std::puts(json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

int print(const Result<Json>& answer, const Arguments& arguments,
          std::string (*render)(const Json&)) {
  if (!answer) {
    std::fprintf(stderr, "kvtierctl: %s (socket %s)\n", shown(answer.error().message).c_str(),
                 shown(arguments.target.socket).c_str());
    return exit_of(answer.error().code);
  }
  if (arguments.json) {
    print_json(*answer);
  } else {
    std::fputs(render(*answer).c_str(), stdout);
  }
  const bool part = answer->value("placements_refused", 0) != 0 ||
                    (answer->contains("disks_offline") && !(*answer)["disks_offline"].empty());
  return part ? kIncomplete : kDone;
}

int check(const Arguments& arguments) {
  const Json checks = check_system({arguments.target, arguments.config});
  if (arguments.json) {
    print_json(checks);
  } else {
    std::fputs(render_checks(checks, use_colours(STDOUT_FILENO)).c_str(), stdout);
  }
  return checks["failed"].get<unsigned>() == 0 ? kDone : kFailed;
}

int run(int argc, char** argv) {
  Arguments a;
  CommandLine line(a);
  if (const auto status = line.parse(argc, argv)) return *status;
  const Target& target = a.target;
  const std::string& command = line.command();
  if (command == "status") return print(fetch_status(target), a, render_status);
  if (command == "sessions") return print(fetch_sessions(target), a, render_sessions);
  if (command == "ls")
    return print(fetch_list(target, {a.what.in, a.tiers, a.blocks, a.sort}), a, render_list);
  if (command == "inspect") return print(inspect(target, *a.what.key, a.verify), a, render_inspect);
  if (command == "pin") return print(pin(target, {a.what, a.tiers, a.lifetime}), a, render_pin);
  if (command == "unpin") return print(unpin(target, a.what, a.tiers), a, render_unpin);
  if (command == "push") return print(push(target, a.what, a.lifetime), a, render_push);
  if (command == "drop") return print(drop(target, {a.what, a.tiers, a.force}), a, render_drop);
  if (command == "invalidate") return print(invalidate(target, a.what.in), a, render_invalidate);
  if (command == "flush") return print(flush(target), a, render_flush);
  if (command == "scrub") return print(scrub(target, {!a.report, a.wait}), a, render_scrub);
  if (command == "quota") {
    return print(a.tenant.empty() ? fetch_quotas(target) : set_quotas(target, a.tenant, a.quotas),
                 a, render_quotas);
  }
  if (command == "top") {
    const std::chrono::milliseconds interval(static_cast<long>(a.interval_s * 1000));
    return run_top(target, {interval, a.once, a.json});
  }
  return check(a);
}

}  // namespace
}  // namespace kvtier::ctl

int main(int argc, char** argv) {
  return kvtier::ctl::run(argc, argv);
}
