// protocol_fuzzer: clients that do everything wrong, beside one that does not (CONTRIBUTING.md).
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <random>

#include "tests/protocol/director.h"

#ifdef __SANITIZE_THREAD__
// The actors are forked while threads of ours run, and have threads of their own.
extern "C" const char* __tsan_default_options() {
  return "die_after_fork=0";
}
#endif

int main(int argc, char** argv) {
  kvtier::protocol::RunOptions options;
  options.daemon = KVTIER_DAEMON;
  bool random_seed = false;
  std::uint64_t seconds = 600;
  CLI::App app("Clients of kvtierd that speak the wire and do everything wrong.");
  app.add_option("--daemon", options.daemon, "The kvtierd to try")->capture_default_str();
  app.add_option("--seed", options.seed, "Decides what is done")->capture_default_str();
  app.add_flag("--random-seed", random_seed, "Takes a new seed, and says which");
  app.add_option("--operations", options.operations, "How many are done, over all settings")
      ->capture_default_str();
  app.add_option("--seconds", seconds, "How long it may take at most")->capture_default_str();
  app.add_option("--actors", options.actors, "Hostile processes at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  app.add_option("--nice", options.nice, "Their niceness")->capture_default_str();
  app.add_option("--only", options.only, "The one setting to try, by how its name begins");
  app.add_option("--turn-ms-max", options.turn_ms_max,
                 "Fails where a turn of the control thread took longer");
  app.add_option("--slowdown-max", options.slowdown_max,
                 "Fails where the honest client's p99 is so many times what it is alone");
  CLI11_PARSE(app, argc, argv);
  if (random_seed) options.seed = std::random_device{}();
  options.time = std::chrono::seconds(seconds);
  std::signal(SIGPIPE, SIG_IGN);
  if (::geteuid() != 0) std::printf("not root: all are one user, and no rights are tried\n");
  return kvtier::protocol::run(options) ? 0 : 1;
}
