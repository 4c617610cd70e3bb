// Sessions: their bounds, their ends, and what they leave behind.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "core/base/check.h"
#include "daemon/limits.h"
#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = WireClient::Builder;

// A process of its own that runs `work` and then waits to be killed.
class OtherProcess {
 public:
  explicit OtherProcess(const std::function<void()>& work) {
    int ready[2];
    KVTIER_CHECK(::pipe(ready) == 0);
    pid_ = ::fork();
    KVTIER_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      work();
      char done = 1;
      (void)!::write(ready[1], &done, 1);
      for (;;) ::pause();
    }
    ::close(ready[1]);
    char done = 0;
    KVTIER_CHECK(::read(ready[0], &done, 1) == 1);
    ::close(ready[0]);
  }
  ~OtherProcess() { kill(); }
  void kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

TEST_F(ServerTest, what_one_client_commits_another_leases) {
  WireClient writer = client();
  WireClient reader = client();
  const auto prefix = prefix_of(id_of(ns), 3, 1);
  const auto handle = writer.open(ns);
  for (const auto& block : prefix) EXPECT_TRUE(writer.put(handle, ns, block));
  const auto slots = reader.lease(reader.open(ns), prefix);
  ASSERT_EQ(slots.size(), 3U);
  for (const auto slot : slots) EXPECT_NE(slot, 0U);
  EXPECT_EQ(reader.status()->leases, 1U);
  reader.close();
  EXPECT_TRUE(comes_to_hold([&] { return writer.status()->leases == 0; }));
}

TEST_F(ServerTest, slots_of_a_closed_connection_wait_for_the_end_of_their_process) {
  WireClient watcher = client();
  OtherProcess other([&] {
    WireClient c = client();
    if (c.reserve(c.open(ns), 5).size() != 5) ::_exit(1);
    c.close();
  });
  EXPECT_TRUE(comes_to_hold([&] { return watcher.status()->quarantined == 5; }));
  EXPECT_EQ(watcher.status()->reserved, 0U);
  other.kill();
  EXPECT_TRUE(comes_to_hold([&] { return watcher.status()->quarantined == 0; }));
}

TEST_F(ServerTest, slots_and_leases_of_a_killed_client_come_back) {
  WireClient watcher = client();
  const auto handle = watcher.open(ns);
  const auto prefix = prefix_of(id_of(ns), 2, 1);
  for (const auto& block : prefix) ASSERT_TRUE(watcher.put(handle, ns, block));
  std::unique_ptr<WireClient> theirs;
  OtherProcess other([&] {
    theirs = std::make_unique<WireClient>(client());
    const auto opened = theirs->open(ns);
    if (theirs->reserve(opened, 5).size() != 5 || theirs->lease(opened, prefix).size() != 2)
      ::_exit(1);
  });
  EXPECT_EQ(watcher.status()->reserved, 5U);
  EXPECT_EQ(watcher.status()->leases, 1U);
  other.kill();
  EXPECT_TRUE(comes_to_hold([&] {
    const auto status = watcher.status();
    return status->reserved + status->quarantined + status->leases == 0 && status->sessions == 1;
  }));
}

class BoundedServerTest : public ServerTest {
 protected:
  BoundedServerTest() : ServerTest("[limits]\nsessions_per_user = 256\nunread_time_ms = 500\n") {}
};

TEST_F(BoundedServerTest, a_client_that_never_reads_is_cut_off_and_hurts_nobody) {
  WireClient bystander = client();
  WireClient deaf = client();
  const auto request = message_bytes([](Builder m) {
    m.setId(9);
    m.setStatus();
  });
  bool cut_off = false;
  for (int i = 0; i < 500'000 && !cut_off; ++i) cut_off = !deaf.send_raw(request);
  EXPECT_TRUE(cut_off);
  EXPECT_EQ(bystander.status()->sessions, 1U);
  EXPECT_TRUE(client().status());
}

TEST_F(BoundedServerTest, sessions_past_the_bound_are_turned_away_until_one_ends) {
  // This user is an administrator.
  constexpr unsigned kFit = 256 + limits::kAdminSessionsMax;
  std::vector<WireClient> sessions;
  for (unsigned i = 0; i < kFit; ++i) sessions.push_back(client());
  WireClient late(socket());
  late.hello();
  EXPECT_TRUE(late.is_closed());
  EXPECT_EQ(sessions[0].status()->sessions, kFit);
  sessions.pop_back();
  EXPECT_TRUE(comes_to_hold([&] { return sessions[0].status()->sessions == kFit - 1; }));
  EXPECT_TRUE(client().status());
}

TEST(ServerDescriptorsTest,
     without_a_descriptor_left_new_clients_are_turned_away_and_later_ones_are_served) {
  Scratch scratch;
  Kvtierd daemon(scratch, small_config(scratch));
  const std::string socket = (scratch / "s").string();
  EXPECT_TRUE(WireClient::greeted(socket).status());
  // At its start it takes as many as it may have.
  rlimit limit;
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
  const rlimit few{64, limit.rlim_max};
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  {
    std::vector<WireClient> clients;
    for (int i = 0; i < 80; ++i) clients.emplace_back(socket);
    EXPECT_TRUE(
        comes_to_hold([&] { return daemon.output().find("is turned away") != std::string::npos; }));
  }
  EXPECT_TRUE(WireClient::greeted(socket).status());
}

class ShortLeaseTest : public ServerTest {
 protected:
  ShortLeaseTest() : ServerTest("lease_time_ms = 100") {}
};

TEST_F(ShortLeaseTest, a_silent_clients_leases_end_after_the_lease_time) {
  WireClient silent = client();
  WireClient watcher = client();
  const auto block = prefix_of(id_of(ns), 1, 1);
  const auto handle = silent.open(ns);
  ASSERT_TRUE(silent.put(handle, ns, block[0]));
  ASSERT_EQ(silent.lease(handle, block).size(), 1U);
  EXPECT_EQ(watcher.status()->leases, 1U);
  EXPECT_TRUE(comes_to_hold([&] { return watcher.status()->leases == 0; }));
  EXPECT_TRUE(silent.status());  // the session itself lives
}

class DiskServerTest : public ::testing::Test {
 protected:
  Scratch scratch;
  const std::string config = small_config(scratch, "") + disk_config((scratch / "disk").string());
  const std::string socket = (scratch / "s").string();
  const Namespace ns = small_namespace("m");
};

TEST_F(DiskServerTest, what_was_flushed_is_served_after_a_kill) {
  const auto prefix = prefix_of(id_of(ns), 3, 1);
  {
    Kvtierd daemon(scratch, config);
    WireClient writer = WireClient::greeted(socket);
    const auto handle = writer.open(ns);
    for (const auto& block : prefix) ASSERT_TRUE(writer.put(handle, ns, block));
    ASSERT_TRUE(writer.request([](Builder m) { m.setFlush(); }));
    daemon.signal(SIGKILL);
    daemon.wait();
  }
  Kvtierd again(scratch, config);
  WireClient reader = WireClient::greeted(socket);
  const auto handle = reader.open(ns);
  EXPECT_EQ(reader.lease(handle, prefix), (std::vector<std::uint64_t>{0, 0, 0}));
  ASSERT_TRUE(reader.wait_ready(3));
  for (const auto& [block, slot] : reader.ready) EXPECT_NE(slot, 0U) << block;
}

}  // namespace
}  // namespace kvtier::daemon::testing
