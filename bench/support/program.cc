#include "bench/support/program.h"

#include <cstdio>
#include <filesystem>

namespace kvtier::bench {

std::string kvtierd_beside() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "kvtierd";
}

int run_program(CLI::App& app, int argc, char** argv, const std::function<void(Report&)>& measure) {
  bool json = false;
  // Groups of options are subcommands without a name.
  auto commands =
      app.get_subcommands([](CLI::App* command) { return !command->get_name().empty(); });
  if (commands.empty()) commands.push_back(&app);
  for (CLI::App* command : commands) {
    command->add_flag("--json", json, "Print a JSON list instead of a table");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  Report report;
  int status = 0;
  try {
    measure(report);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), error.what());
    status = 1;
  }
  report.print(json);
  return status;
}

}  // namespace kvtier::bench
