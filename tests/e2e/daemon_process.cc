#include "tests/e2e/daemon_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>

#include "core/base/check.h"
#include "core/wire/sync_request.h"

extern char** environ;

namespace kvtier::e2e {
namespace {

using namespace std::chrono_literals;

std::string config_text(const std::filesystem::path& directory, const DaemonOptions& options) {
  std::string text = "socket = \"" + (directory / "d.sock").string() + "\"\n";
  text += "lease_time_ms = " + std::to_string(options.lease_time_ms) + "\nlog_level = \"warn\"\n";
  const auto memory = [&](const std::string& name, const std::string& capacity) {
    text += "[" + name + "]\ncapacity = " + (capacity == "0" ? "0" : "\"" + capacity + "\"") +
            "\nextent_size = \"" + options.extent_size + "\"\n";
  };
  memory("device", options.device_capacity);
  text += "backend = \"" + options.device_backend + "\"\n";
  memory("host", options.host_capacity);
  if (!options.disk_capacity.empty()) {
    text += "[disk]\ndirectory = \"" + (directory / "disk").string() + "\"\ncapacity = \"" +
            options.disk_capacity + "\"\nsegment_size = \"" + options.segment_size + "\"\n";
  }
  return text + "[index]\nblocks_max = 65536\n" + options.more;
}

std::string setting(const char* variable, const char* otherwise) {
  const char* value = std::getenv(variable);
  return value != nullptr ? value : otherwise;
}

Result<session::SyncSession> connect(const std::string& socket) {
  return session::SyncSession::connect(socket, "test", std::chrono::steady_clock::now() + 10s);
}

}  // namespace

DaemonProcess::DaemonProcess(const DaemonOptions& options) {
  std::string pattern = setting("KVTIER_TEST_SCRATCH", KVTIER_SCRATCH) + "/run-XXXXXX";
  KVTIER_CHECK(::mkdtemp(pattern.data()) != nullptr);
  directory_ = pattern;
  std::ofstream(directory_ / "kvtierd.toml") << config_text(directory_, options);
  if (options.kept) manager_ = std::make_unique<ServiceManager>();
}

DaemonProcess::~DaemonProcess() {
  if (running()) send(SIGKILL);
  std::filesystem::remove_all(directory_);
}

void DaemonProcess::start() {
  const std::string config = (directory_ / "kvtierd.toml").string();
  std::string program = setting("KVTIER_TEST_KVTIERD", KVTIERD);
  std::string flag = "--config";
  std::string file = config;
  char* const arguments[] = {program.data(), flag.data(), file.data(), nullptr};
  if (manager_) {
    pid_ = manager_->start({program, flag, file});
  } else {
    KVTIER_CHECK(::posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments, environ) == 0);
  }
  const auto give_up = std::chrono::steady_clock::now() + 60s;
  while (!connect(socket())) {
    int status = 0;
    KVTIER_CHECK(::waitpid(pid_, &status, WNOHANG) == 0);
    KVTIER_CHECK(std::chrono::steady_clock::now() < give_up);
    ::usleep(2000);
  }
}

void DaemonProcess::send(int signal) {
  KVTIER_CHECK(running() && ::kill(pid_, signal) == 0);
  if (signal == SIGSTOP || signal == SIGCONT || signal == SIGHUP) return;
  int status = 0;
  KVTIER_CHECK(::waitpid(pid_, &status, 0) == pid_);
  KVTIER_CHECK(signal == SIGKILL || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
  pid_ = -1;
  if (manager_) manager_->settle();
}

void DaemonProcess::kill_and_start() {
  send(SIGKILL);
  start();
}

void DaemonProcess::stop_and_start() {
  send(SIGTERM);
  start();
}

void DaemonProcess::reload(const DaemonOptions& options) {
  std::ofstream(directory_ / "kvtierd.toml") << config_text(directory_, options);
  send(SIGHUP);
}

DaemonStatus DaemonProcess::status() const {
  DaemonStatus found;
  auto session = connect(socket());
  KVTIER_CHECK(session.has_value());
  const auto read = [&](wire::Message::Reader message) {
    const auto status = message.getStatusReply();
    for (const auto tier : status.getTiers()) {
      const std::size_t t = tier.getTier();
      found.hits[t] = tier.getHits();
      found.blocks[t] = tier.getBlocks();
      found.used_bytes[t] = tier.getUsedBytes();
      found.taken_bytes[t] = tier.getTakenBytes();
      found.cap_bytes[t] = tier.getCapBytes();
      found.evictions[t] = tier.getEvictions();
    }
    for (const auto gpu : status.getGpus()) {
      found.gpu_used_bytes += gpu.getUsedBytes();
      found.gpu_reserved_bytes += gpu.getReservedBytes();
    }
    found.leases = status.getLeases();
    found.reserved = status.getReservedSlots();
    found.quarantined = status.getQuarantinedSlots();
    found.looked_up = status.getLookedUp();
    found.misses = status.getMisses();
    found.faults = status.getFaults();
  };
  const auto good = session->request([](wire::Message::Builder m) { m.setStatus(); }, read,
                                     std::chrono::steady_clock::now() + 10s);
  KVTIER_CHECK(good.has_value());
  return found;
}

void DaemonProcess::drop(TierSet tiers) const {
  auto session = connect(socket());
  KVTIER_CHECK(session.has_value());
  const auto good =
      session->request([&](wire::Message::Builder m) { m.initDrop().setTiers(tiers.bits); },
                       [](wire::Message::Reader) {}, std::chrono::steady_clock::now() + 10s);
  KVTIER_CHECK(good.has_value());
}

}  // namespace kvtier::e2e
