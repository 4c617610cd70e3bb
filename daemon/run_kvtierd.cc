#include "daemon/run_kvtierd.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/base/shown.h"
#include "core/base/thread_priority.h"
#include "daemon/config/config.h"
#include "daemon/config/host_memory.h"
#include "daemon/ops/log_lines.h"
#include "daemon/ops/monitor.h"
#include "daemon/restart/passed_descriptors.h"
#include "daemon/server/server.h"
#include "daemon/service/log_sink.h"
#include "daemon/service/service.h"
#include "daemon/version.h"

namespace kvtier::daemon {
namespace {

constexpr const char* kExamples = R"(
Examples:
  kvtierd --config /etc/kvtier/kvtierd.toml
  kvtierd --config kvtierd.toml --check-config     exit 0 if it can be used
  kvtierd --print-config > kvtierd.toml            every key with its default

SIGHUP has it read the configuration again; the log says what changed and what waits for a restart.
Exit codes: 0 stopped by SIGTERM or SIGINT, 1 the environment, 2 the configuration.
)";

int fail(int code, const Error& error) {
  std::fprintf(stderr, "kvtierd: %s\n", shown(error.message).c_str());
  return code;
}

// As many as may be had: each segment takes one where there is no io_uring.
void have_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0)
    spdlog::warn("the limit of open files stays as it is: {}", std::strerror(errno));
}

int exit_code(const Error& error) {
  return error.code == Errc::invalid ? 2 : 1;
}

int serve(Config config, const std::string& config_file, PassedDescriptors& passed,
          ops::Monitor::Problems problems, const KvtierdHooks& hooks) {
  auto listening = passed.take_listening_socket();
  if (!listening) return fail(2, listening.error());
  if (auto good = settle_host_capacity(config, passed.memory_bytes()); !good)
    return fail(exit_code(good.error()), good.error());
  spdlog::info("host tier: at most {} MiB", config.host.capacity_bytes >> 20);
  boost::asio::io_context io(1);
  Server server(io, config, passed, hooks.wrap_device);
  ops::Monitor monitor(
      config.http, io, [&server] { return server.snapshot(); }, std::move(problems));
  monitor.start();
  Service service(server, config_file);
  if (auto good = server.start(std::move(*listening)); !good)
    return fail(exit_code(good.error()), good.error());
  service.serving();
  ask_for_short_turns();
  io.run();
  spdlog::info("stopped");
  // Nothing that still hangs in a disk can be waited for.
  if (server.left_behind()) std::_Exit(1);
  return 0;
}

}  // namespace

int run_kvtierd(int argc, char** argv, const KvtierdHooks& hooks) {
  // Records, index and state are prompts: nobody else reads them, whatever umask this was started
  // with.
  ::umask(0077);
  auto passed = PassedDescriptors::from_environment();
  if (!passed) return fail(1, passed.error());
  CLI::App app(
      "kvtierd keeps the attention KV that LLM engines have computed, across device memory, "
      "host memory and disk.");
  app.footer(kExamples);
  std::string config_file;
  bool check = false;
  bool print = false;
  app.add_option("-c,--config", config_file, "The configuration, a TOML file");
  app.add_flag("--check-config", check,
               "Read the configuration, say what is wrong with it, and exit");
  app.add_flag("--print-config", print, "Print the configuration in effect and exit");
  app.set_version_flag("--version", std::string("kvtierd ") + kVersion);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  Config config;
  if (!config_file.empty()) {
    auto loaded = load_config(config_file);
    if (!loaded) return fail(2, loaded.error());
    config = std::move(*loaded);
  }
  if (print) {
    std::fputs(to_toml(config).c_str(), stdout);
    return 0;
  }
  if (check) {
    const auto good = settle_host_capacity(config, 0);
    if (!good) return fail(exit_code(good.error()), good.error());
    std::printf("%s can be used\n",
                config_file.empty() ? "the default configuration" : shown(config_file).c_str());
    return 0;
  }
  // Lines go to stderr, from several threads; journald puts the time to them itself.
  auto logger =
      std::make_shared<spdlog::logger>("kvtierd", std::make_shared<LogSink>(STDERR_FILENO));
  logger->set_formatter(ops::escaping(std::make_unique<spdlog::pattern_formatter>()));
  const auto problems = std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(ops::kProblemsMax);
  problems->set_level(spdlog::level::warn);
  logger->sinks().push_back(problems);
  spdlog::set_default_logger(std::move(logger));
  spdlog::set_level(spdlog::level::from_str(config.log_level));
  spdlog::flush_on(spdlog::level::info);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // what may not be written is said where it is written
  have_descriptors();
  return serve(std::move(config), config_file, *passed, problems, hooks);
}

}  // namespace kvtier::daemon
