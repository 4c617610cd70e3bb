#include "bench/support/daemon_child.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <stdexcept>

#include "bench/support/records.h"
#include "core/wire/sync_request.h"

extern char** environ;

namespace kvtier::bench {
namespace {

using namespace std::chrono_literals;

Result<session::SyncSession> connect(const std::string& socket) {
  return session::SyncSession::connect(socket, "kvtier-bench",
                                       std::chrono::steady_clock::now() + 10s);
}

}  // namespace

DaemonChild::DaemonChild(const std::string& program, const std::filesystem::path& directory,
                         const Options& options)
    : directory_(directory) {
  std::string config = (directory_ / "kvtierd.toml").string();
  std::ofstream text(config);
  text << "socket = \"" << socket() << "\"\nlog_level = \"warn\"\n"
       << "[http]\nlisten = \"\"\n"
       << "[host]\ncapacity = \"" << options.host_capacity << "\"\nextent_size = \""
       << options.host_extent << "\"\n";
  if (!options.policy.empty()) text << "[cache]\npolicy = \"" << options.policy << "\"\n";
  if (options.device_capacity != "0")
    text << "[device]\nbackend = \"cuda\"\ncapacity = \"" << options.device_capacity << "\"\n";
  if (!options.disk_capacity.empty()) {
    text << "[disk]\ndirectory = \"" << (directory_ / "disk").string() << "\"\ncapacity = \""
         << options.disk_capacity << "\"\n";
  }
  text.close();
  std::string name = program;
  std::string flag = "--config";
  char* const arguments[] = {name.data(), flag.data(), config.data(), nullptr};
  if (::posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments, environ) != 0) {
    throw std::runtime_error("cannot start " + program + "; name it with --kvtierd");
  }
  const auto give_up = std::chrono::steady_clock::now() + 30s;
  while (!connect(socket())) {
    int status = 0;
    const bool ended = ::waitpid(pid_, &status, WNOHANG) == pid_;
    if (ended) pid_ = -1;
    if (ended || std::chrono::steady_clock::now() > give_up) {
      throw std::runtime_error(program + " does not answer on " + socket());
    }
    ::usleep(5000);
  }
}

DaemonChild::~DaemonChild() {
  if (pid_ <= 0) return;
  // Nothing of it is needed any more, so nothing is waited for.
  ::kill(pid_, SIGKILL);
  int status = 0;
  (void)::waitpid(pid_, &status, 0);
}

void DaemonChild::drop(TierSet tiers) const {
  auto session = need(connect(socket()));
  need(session.request([&](wire::Message::Builder m) { m.initDrop().setTiers(tiers.bits); },
                       [](wire::Message::Reader) {}, std::chrono::steady_clock::now() + 10s));
}

std::uint64_t DaemonChild::disk_insertions() const {
  auto session = need(connect(socket()));
  std::uint64_t insertions = 0;
  need(session.request([](wire::Message::Builder m) { m.setStatus(); },
                       [&](wire::Message::Reader m) {
                         for (const auto tier : m.getStatusReply().getTiers()) {
                           if (tier.getTier() == index_of(Tier::disk))
                             insertions = tier.getInsertions();
                         }
                       },
                       std::chrono::steady_clock::now() + 10s));
  return insertions;
}

}  // namespace kvtier::bench
