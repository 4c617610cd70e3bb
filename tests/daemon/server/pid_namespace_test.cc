// Clients in PID namespaces that the daemon cannot see into: containers beside its own.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "daemon/peers/peer.h"
#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

// Goes on in a child that is the first process of a PID namespace of its own, and sees no other.
// The caller waits for it, and the child ends with the caller. False where that is not permitted.
bool enter_pid_namespace() {
  if (::unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) return false;
  const pid_t child = ::fork();
  if (child > 0) {
    int status = 0;
    ::waitpid(child, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128);
  }
  if (child < 0 || ::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return false;
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("proc", "/proc", "proc", 0, nullptr) == 0;
}

// Whether this machine lets us, in a process that ends at once.
bool permitted() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(enter_pid_namespace() ? 0 : 1);
  int status = 1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool kernel_names_processes() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return false;
  const auto peer = peer_of(pair[0]);
  ::close(pair[0]);
  ::close(pair[1]);
  return peer && peer->process != nullptr;
}

// A process in a namespace of its own that does `work`, says so, and stays until it is killed.
class Contained {
 public:
  explicit Contained(const std::function<bool()>& work) {
    EXPECT_EQ(::pipe2(said_, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const char good = enter_pid_namespace() && ::getpid() == 1 && work() ? 1 : 0;
      if (::write(said_[1], &good, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(said_[1]);
    char good = 0;
    worked = ::read(said_[0], &good, 1) == 1 && good == 1;
  }
  ~Contained() {
    kill();
    ::close(said_[0]);
  }
  Contained(const Contained&) = delete;
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  bool worked = false;

 private:
  int said_[2];
  pid_t pid_;
};

class PidNamespaceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!permitted()) GTEST_SKIP() << "needs the right to make PID and mount namespaces";
    if (!kernel_names_processes()) GTEST_SKIP() << "needs SO_PEERPIDFD (Linux 6.5)";
    daemon = std::make_unique<Kvtierd>(scratch, small_config(scratch), "", nullptr, [] {
      if (!enter_pid_namespace()) ::_exit(126);
    });
  }
  std::string socket() const { return (scratch / "s").string(); }

  Scratch scratch;
  std::unique_ptr<Kvtierd> daemon;
  const Namespace ns = small_namespace("m");
};

// Its pid is 0 here, so it could not be watched and was turned away.
TEST_F(PidNamespaceTest, a_client_in_a_container_beside_stores_and_loads_and_its_slots_come_back) {
  WireClient here = WireClient::greeted(socket());
  const auto blocks = prefix_of(id_of(ns), 3, 1);
  Contained engine([&] {
    WireClient c = WireClient::greeted(socket());
    const auto handle = c.open(ns);
    for (const TestBlock& block : blocks) {
      if (!c.put(handle, ns, block)) return false;
    }
    const bool right = c.look(handle, ns, blocks) ==
                       std::vector<WireClient::Seen>(blocks.size(), WireClient::Seen::right);
    // It may still write to these when its session is over.
    return c.reserve(handle, 5).size() == 5 && right;
  });
  ASSERT_TRUE(engine.worked) << daemon->output();
  EXPECT_TRUE(comes_to_hold([&] { return here.status()->quarantined == 5; }));
  const auto handle = here.open(ns);
  EXPECT_EQ(here.look(handle, ns, blocks),
            std::vector<WireClient::Seen>(blocks.size(), WireClient::Seen::right));
  EXPECT_EQ(here.status()->quarantined, 5U) << "for as long as it lives";
  engine.kill();
  EXPECT_TRUE(comes_to_hold([&] { return here.status()->quarantined == 0; }));
}

// A process of which nothing is known but its descriptor is still told from others.
TEST_F(PidNamespaceTest, two_containers_beside_are_two_processes) {
  WireClient here = WireClient::greeted(socket());
  const auto reserve = [&](std::uint32_t slots) {
    return [this, slots] {
      WireClient c = WireClient::greeted(socket());
      return c.reserve(c.open(ns), slots).size() == slots;
    };
  };
  Contained one(reserve(5)), two(reserve(7));
  ASSERT_TRUE(one.worked && two.worked) << daemon->output();
  ASSERT_TRUE(comes_to_hold([&] { return here.status()->quarantined == 12; }));
  one.kill();
  EXPECT_TRUE(comes_to_hold([&] { return here.status()->quarantined == 7; }));
  two.kill();
  EXPECT_TRUE(comes_to_hold([&] { return here.status()->quarantined == 0; }));
}

}  // namespace
}  // namespace kvtier::daemon::testing
