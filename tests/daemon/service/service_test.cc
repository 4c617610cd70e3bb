// kvtierd under a service manager: this test is one.
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>

#include "core/base/check.h"
#include "core/base/units.h"
#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

int bound_socket(const std::string& path, int type) {
  const int fd = ::socket(AF_UNIX, type, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  KVTIER_CHECK(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

// What a daemon says to NOTIFY_SOCKET, message by message.
class Manager {
 public:
  using Message = std::map<std::string, std::string>;

  explicit Manager(const Scratch& scratch)
      : path_((scratch / "notify").string()), socket_(bound_socket(path_, SOCK_DGRAM)) {}

  std::function<void()> environment(const std::string& watchdog_usec = "") const {
    return [path = path_, watchdog_usec] {
      ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
      if (!watchdog_usec.empty()) ::setenv("WATCHDOG_USEC", watchdog_usec.c_str(), 1);
    };
  }
  // The next message with this key; the ones before it are in `seen`.
  std::optional<Message> next(const std::string& key) {
    pollfd ready{socket_.get(), POLLIN, 0};
    while (::poll(&ready, 1, 20'000) == 1) {
      char text[4096];
      const auto bytes = ::recv(socket_.get(), text, sizeof text, 0);
      Message message = parse({text, static_cast<std::size_t>(bytes)});
      seen.push_back(message);
      if (message.contains(key)) return message;
    }
    return std::nullopt;
  }
  bool said(const std::string& status) const {
    return std::ranges::any_of(seen, [&](const Message& message) {
      const auto at = message.find("STATUS");
      return at != message.end() && at->second.find(status) != std::string::npos;
    });
  }
  std::vector<Message> seen;

 private:
  static Message parse(const std::string& text) {
    Message message;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      message[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
    return message;
  }
  std::string path_;
  UniqueFd socket_;
};

class ServiceTest : public ::testing::Test {
 protected:
  std::string socket() const { return (scratch / "s").string(); }
  std::uint64_t host_cap() {
    std::uint64_t cap = 0;
    WireClient::greeted(socket()).request(
        [](WireClient::Builder m) { m.setStatus(); },
        [&](WireClient::Reader m) { cap = m.getStatusReply().getTiers()[1].getCapBytes(); });
    return cap;
  }
  // Has `daemon` read `config` in the place of its file. What it says when that is done.
  Manager::Message reload(Kvtierd& daemon, const std::string& config) {
    std::ofstream(daemon.config_file()) << config;
    daemon.signal(SIGHUP);
    EXPECT_TRUE(manager.next("RELOADING"));
    EXPECT_TRUE(manager.seen.back().contains("MONOTONIC_USEC"));
    return manager.next("READY").value_or(Manager::Message{});
  }
  std::string config_with(const std::string& host_capacity, const std::string& more = "") const {
    return "socket = '" + socket() + "'\n" + more +
           "[index]\nblocks_max = 1024\n[host]\ncapacity = '" + host_capacity +
           "'\nextent_size = '1MiB'\nhuge_pages = false\n";
  }

  Scratch scratch;
  Manager manager{scratch};
};

TEST_F(ServiceTest, it_is_ready_once_it_serves_and_says_what_it_does_before) {
  Kvtierd daemon(scratch, small_config(scratch) + disk_config((scratch / "disk").string()), "",
                 nullptr, manager.environment());
  const auto ready = manager.next("READY");
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->at("READY"), "1");
  EXPECT_EQ(ready->at("STATUS"), "Serving on " + socket());
  EXPECT_TRUE(manager.said("Opening the disk tier in " + (scratch / "disk").string()));
  EXPECT_TRUE(WireClient::greeted(socket()).status());
}

TEST_F(ServiceTest, a_daemon_that_cannot_serve_is_never_ready) {
  std::filesystem::create_directory(socket());
  Kvtierd daemon(scratch, small_config(scratch), "", nullptr, manager.environment());
  daemon.wait();
  const int end = bound_socket((scratch / "end").string(), SOCK_DGRAM);
  // A last message of the test's own, behind all of the daemon's.
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  (scratch / "notify").string().copy(to.sun_path, sizeof to.sun_path - 1);
  ASSERT_EQ(::sendto(end, "END=1", 5, 0, reinterpret_cast<sockaddr*>(&to), sizeof to), 5);
  ::close(end);
  ASSERT_TRUE(manager.next("END"));
  for (const auto& message : manager.seen) EXPECT_FALSE(message.contains("READY"));
}

TEST_F(ServiceTest, stopping_is_said_with_what_is_saved) {
  Kvtierd daemon(scratch, small_config(scratch) + disk_config((scratch / "disk").string()), "",
                 nullptr, manager.environment());
  ASSERT_TRUE(manager.next("READY"));
  daemon.signal(SIGTERM);
  ASSERT_TRUE(manager.next("STOPPING"));
  ASSERT_TRUE(manager.next("EXTEND_TIMEOUT_USEC"));
  EXPECT_EQ(daemon.wait(), 0);
  EXPECT_TRUE(manager.said("Saving: 0 blocks wait for the disk"));
}

TEST_F(ServiceTest, the_control_loop_feeds_the_watchdog) {
  Kvtierd daemon(scratch, small_config(scratch), "", nullptr, manager.environment("30000"));
  ASSERT_TRUE(manager.next("READY"));
  for (int fed = 0; fed < 5; ++fed) ASSERT_TRUE(manager.next("WATCHDOG"));
}

TEST_F(ServiceTest, a_reload_changes_what_can_change_and_names_what_waits_for_a_restart) {
  Kvtierd daemon(scratch, config_with("4MiB"), "", nullptr, manager.environment());
  ASSERT_TRUE(manager.next("READY"));
  EXPECT_EQ(host_cap(), 4_MiB);
  const auto ready = reload(daemon, config_with("8MiB",
                                                "log_level = 'debug'\n"
                                                "lease_time_ms = 5000\n") +
                                        "prefault = true\n[disk]\nscrub_mib_per_s = 3\n");
  EXPECT_EQ(ready.at("STATUS"),
            "Serving on " + socket() + "; a restart would change host.prefault");
  EXPECT_EQ(host_cap(), 8_MiB);
  const std::string said = daemon.output();
  EXPECT_NE(said.find("host.capacity is '8MiB' now, was '4MiB'"), std::string::npos) << said;
  EXPECT_NE(said.find("host.prefault stays false, not true: it needs a restart"), std::string::npos)
      << said;
  EXPECT_NE(said.find("4 keys changed, 1 wait for a restart"), std::string::npos) << said;
}

TEST_F(ServiceTest, a_file_with_a_mistake_changes_nothing_and_is_named) {
  Kvtierd daemon(scratch, config_with("4MiB"), "", nullptr, manager.environment());
  ASSERT_TRUE(manager.next("READY"));
  const auto ready = reload(daemon, config_with("8MiB") + "size = 1\n");
  EXPECT_NE(ready.at("STATUS").find("the last reload was refused: "), std::string::npos);
  EXPECT_NE(ready.at("STATUS").find("unknown key 'size' in [host]"), std::string::npos);
  EXPECT_EQ(host_cap(), 4_MiB);
  EXPECT_EQ(reload(daemon, config_with("8MiB")).at("STATUS"), "Serving on " + socket());
  EXPECT_EQ(host_cap(), 8_MiB);
}

TEST_F(ServiceTest, a_reload_changes_a_tenants_quota) {
  const std::string tenant = "[[tenant]]\nname = 'a'\nsalts = ['s']\n";
  Kvtierd daemon(scratch, config_with("4MiB") + tenant + "[tenant.quota]\nhost = '2MiB'\n", "",
                 nullptr, manager.environment());
  ASSERT_TRUE(manager.next("READY")) << daemon.output();
  // The default tenant is there also where the file does not name it.
  const auto ready =
      reload(daemon, config_with("4MiB") + tenant + "[tenant.quota]\nhost = '1MiB'\n" +
                         "[[tenant]]\nname = 'default'\nquota = { host = '50%' }\n");
  EXPECT_EQ(ready.at("STATUS"), "Serving on " + socket());
  const std::string said = daemon.output();
  EXPECT_NE(said.find("tenant.a.host: the quota is 1048576 bytes now"), std::string::npos) << said;
  EXPECT_NE(said.find("tenant.default.host: the quota is 2097152 bytes now"), std::string::npos)
      << said;
}

TEST_F(ServiceTest, other_tenants_wait_for_a_restart) {
  Kvtierd daemon(scratch, config_with("4MiB"), "", nullptr, manager.environment());
  ASSERT_TRUE(manager.next("READY")) << daemon.output();
  const auto ready =
      reload(daemon, config_with("4MiB") + "[[tenant]]\nname = 'a'\nsalts = ['s']\n");
  EXPECT_EQ(ready.at("STATUS"), "Serving on " + socket() + "; a restart would change tenant");
}

// As a socket unit does: descriptors from 3 on are listening sockets on these paths.
std::function<void()> passing(std::vector<std::string> paths) {
  return [paths = std::move(paths)] {
    int next = 3;
    for (const std::string& path : paths) {
      const int fd = bound_socket(path, SOCK_STREAM);
      KVTIER_CHECK(::listen(fd, 16) == 0);
      if (fd != next) ::dup2(fd, next), ::close(fd);
      ++next;
    }
    ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
    ::setenv("LISTEN_FDS", std::to_string(paths.size()).c_str(), 1);
  };
}

TEST_F(ServiceTest, a_socket_that_was_passed_is_served_and_left_alone_at_the_end) {
  const std::string passed = (scratch / "passed").string();
  Kvtierd daemon(scratch, small_config(scratch), "", nullptr, passing({passed}));
  EXPECT_TRUE(WireClient::greeted(passed).status());
  EXPECT_FALSE(std::filesystem::exists(socket()));
  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.wait(), 0);
  EXPECT_TRUE(std::filesystem::exists(passed));
  EXPECT_NE(daemon.output().find("`socket` = " + socket() + " is not used"), std::string::npos);
}

TEST_F(ServiceTest, two_sockets_that_were_passed_are_refused_with_the_mend) {
  Kvtierd daemon(scratch, small_config(scratch), "", nullptr,
                 passing({(scratch / "one").string(), (scratch / "two").string()}));
  const int status = daemon.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2) << daemon.output();
  EXPECT_NE(daemon.output().find("leave one ListenStream="), std::string::npos);
}

}  // namespace
}  // namespace kvtier::daemon::testing
