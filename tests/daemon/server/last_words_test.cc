// What a client says before it goes is heard, however it goes.
#include <sys/wait.h>

#include <csignal>

#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = WireClient::Builder;

class LastWords : public ServerTest {
 protected:
  static constexpr std::size_t kBlocks = 20;

  // A session of client number `number`; 0: it has none.
  WireClient client_called(std::uint64_t number) const {
    WireClient c(socket());
    EXPECT_TRUE(c.request([&](Builder m) {
      auto hello = m.initHello();
      hello.setVersion(wire::kProtocolVersion);
      hello.setClient(number);
    }));
    return c;
  }
  // Has slots of its own filled. The commits of them, one a frame, each to be answered.
  std::vector<std::byte> filled(WireClient& c) {
    const auto handle = c.open(ns);
    const auto slots = c.reserve(handle, kBlocks);
    EXPECT_EQ(slots.size(), kBlocks);
    std::vector<std::byte> bytes;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      fill_record(c.record(slots[i]), RecordLayout::of(ns), blocks[i]);
      const auto frame = message_bytes([&](Builder m) {
        m.setId(1000 + i);
        fill_commit(m, handle, blocks[i], std::span(slots).subspan(i, 1));
      });
      bytes.insert(bytes.end(), frame.begin(), frame.end());
    }
    return bytes;
  }
  // All blocks are there, and no slot is kept from others although this process goes on.
  void expect_heard() {
    WireClient other = client();
    const auto handle = other.open(ns);
    EXPECT_TRUE(comes_to_hold([&] { return other.status()->sessions == 1; }));
    EXPECT_EQ(other.look(handle, ns, blocks), std::vector(kBlocks, WireClient::Seen::right));
    EXPECT_EQ(other.status()->quarantined, 0U);
    EXPECT_EQ(other.status()->reserved, 0U);
  }

  const std::vector<TestBlock> blocks = prefix_of(id_of(ns), kBlocks, 1);
};

// The first answer that could not be sent ended the session, and the frames behind its request were
// lost.
TEST_F(LastWords, commits_of_a_client_that_has_closed_are_taken_though_it_reads_no_answer) {
  WireClient c = client();
  const auto commits = filled(c);
  daemon.signal(SIGSTOP);
  ASSERT_TRUE(c.send_raw(commits));
  c.close();
  daemon.signal(SIGCONT);
  expect_heard();
}

TEST_F(LastWords, slots_that_a_client_asked_for_and_closed_are_not_kept_from_others) {
  WireClient c = client();
  const auto handle = c.open(ns);
  daemon.signal(SIGSTOP);
  for (int i = 0; i < 3; ++i) {
    c.send(
        [&](Builder m) {
          auto r = m.initReserve();
          r.setNs(handle);
          r.setTier(1);
          r.setCount(4);
        },
        1000);
  }
  c.close();
  daemon.signal(SIGCONT);
  WireClient other = client();
  EXPECT_TRUE(comes_to_hold([&] { return other.status()->sessions == 1; }));
  EXPECT_EQ(other.status()->quarantined, 0U);
  EXPECT_EQ(other.status()->reserved, 0U);
}

TEST_F(LastWords, commits_of_a_process_that_has_ended_are_taken) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    WireClient c = client();
    const auto commits = filled(c);
    daemon.signal(SIGSTOP);
    ::_exit(c.send_raw(commits) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  daemon.signal(SIGCONT);
  expect_heard();
}

// The new session ended the old one at once, and what the old one had said before was lost.
TEST_F(LastWords, commits_of_a_client_that_has_a_new_session_by_now_are_taken) {
  WireClient old = client_called(7);
  const auto commits = filled(old);
  daemon.signal(SIGSTOP);
  // More than the daemon hears of one session before it turns to the others.
  std::vector<std::byte> bytes;
  for (int i = 0; i < 400; ++i) {
    const auto frame = message_bytes([](Builder m) { m.initRelease(1).set(0, 1); });
    bytes.insert(bytes.end(), frame.begin(), frame.end());
  }
  bytes.insert(bytes.end(), commits.begin(), commits.end());
  ASSERT_TRUE(old.send_raw(bytes));
  WireClient fresh(socket());
  fresh.send(
      [](Builder m) {
        auto hello = m.initHello();
        hello.setVersion(wire::kProtocolVersion);
        hello.setClient(7);
      },
      1);
  daemon.signal(SIGCONT);
  EXPECT_TRUE(old.is_closed());
  fresh.close();
  expect_heard();
}

}  // namespace
}  // namespace kvtier::daemon::testing
