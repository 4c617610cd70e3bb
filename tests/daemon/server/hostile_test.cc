// What a hostile client may cost the daemon and the others: descriptors, lines of the log, time of
// the control thread.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <set>

#include "daemon/cache/loans/reservations.h"
#include "daemon/peers/log_budget.h"
#include "tests/daemon/support/server_fixture.h"
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = WireClient::Builder;

// A socket that lingers: whoever closes it last waits until its peer reads, or for minutes.
class LingeringSocket {
 public:
  LingeringSocket() {
    UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const where = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener.get(), where, length), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), where, &length), 0);
    mine_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(mine_.get(), where, length), 0);
    peer_ = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::vector<std::byte> bytes(64 << 10);
    while (::send(mine_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
    const linger minutes{1, 300};
    EXPECT_EQ(::setsockopt(mine_.get(), SOL_SOCKET, SO_LINGER, &minutes, sizeof minutes), 0);
  }
  int fd() const { return mine_.get(); }
  // Only who closes it last waits, so the daemon must have it first.
  void leave_to_the_daemon() { mine_.reset(); }

 private:
  UniqueFd mine_, peer_;  // whoever waits is let go when the peer is closed
};

class HostileTest : public ServerTest {
 protected:
  // Descriptors by which the daemon waits for the ends of processes.
  std::size_t processes_watched() const {
    std::size_t watched = 0;
    const auto folder = "/proc/" + std::to_string(daemon.pid()) + "/fd";
    for (const auto& fd : std::filesystem::directory_iterator(folder)) {
      std::error_code gone;
      watched += std::filesystem::read_symlink(fd.path(), gone) == "anon_inode:[pidfd]" ? 1 : 0;
    }
    return watched;
  }
  // With these bytes, and so that the daemon is the last to have it.
  bool send(WireClient& client, std::span<const std::byte> bytes, LingeringSocket& lingering) {
    daemon.signal(SIGSTOP);
    const bool sent = client.send_raw(bytes, lingering.fd());
    lingering.leave_to_the_daemon();
    daemon.signal(SIGCONT);
    return sent;
  }
};

// Processes that connect, do `work` and stay, without a connection.
class Idlers {
 public:
  Idlers(std::size_t count, const std::function<void()>& work) {
    EXPECT_EQ(::pipe(done_), 0);
    EXPECT_EQ(::pipe(stay_), 0);
    for (std::size_t i = 0; i < count; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::close(stay_[1]);
        work();
        char byte = 1;
        if (::write(done_[1], &byte, 1) != 1) ::_exit(1);
        ::_exit(static_cast<int>(::read(stay_[0], &byte, 1)));
      }
      children_.push_back(child);
    }
    char byte;
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(::read(done_[0], &byte, 1), 1);
  }
  ~Idlers() {
    ::close(stay_[1]);
    for (const pid_t child : children_) ::waitpid(child, nullptr, 0);
    for (const int fd : {done_[0], done_[1], stay_[0]}) ::close(fd);
  }
  Idlers(const Idlers&) = delete;

 private:
  int done_[2], stay_[2];
  std::vector<pid_t> children_;
};

// Each process that had ever connected cost a descriptor until it ended: any user could take them
// all.
TEST_F(HostileTest, a_process_that_has_closed_its_last_session_costs_no_descriptor) {
  WireClient here = client();
  ASSERT_TRUE(comes_to_hold([&] { return processes_watched() == 1; }));
  const Idlers idlers(8, [this] { client().close(); });
  EXPECT_TRUE(comes_to_hold([&] { return here.status()->sessions == 1; }));
  EXPECT_TRUE(comes_to_hold([&] { return processes_watched() == 1; })) << processes_watched();
}

TEST_F(HostileTest, a_process_with_slots_that_it_may_still_write_to_is_watched_to_its_end) {
  WireClient here = client();
  {
    const Idlers idlers(2, [this] {
      WireClient c = client();
      c.reserve(c.open(ns), 3);
      c.close();
    });
    EXPECT_TRUE(comes_to_hold([&] { return here.status()->quarantined == 6; }));
    EXPECT_EQ(processes_watched(), 3U);
  }
  EXPECT_TRUE(comes_to_hold([&] { return here.status()->quarantined == 0; }));
  EXPECT_TRUE(comes_to_hold([&] { return processes_watched() == 1; })) << processes_watched();
}

// The control thread closed what a client had sent, and stood still for as long as the client
// liked.
TEST_F(HostileTest, a_descriptor_that_takes_minutes_to_close_holds_nobody_up) {
  WireClient here = client(), evil = client();
  LingeringSocket lingering;
  ASSERT_TRUE(send(evil, message_bytes([](Builder m) { m.setStatus(); }), lingering));
  EXPECT_TRUE(evil.is_closed());
  EXPECT_TRUE(here.status().has_value());
}

TEST_F(HostileTest, a_descriptor_that_lies_unread_in_a_session_that_ends_holds_nobody_up) {
  WireClient here = client(), evil = client();
  LingeringSocket lingering;
  const std::vector<std::byte> noise(16);
  daemon.signal(SIGSTOP);
  ASSERT_TRUE(evil.send_raw(noise));
  ASSERT_TRUE(send(evil, noise, lingering));
  EXPECT_TRUE(evil.is_closed());
  EXPECT_TRUE(here.status().has_value());
}

TEST_F(HostileTest, who_sends_many_descriptors_that_take_minutes_to_close_is_let_in_no_more) {
  WireClient here = client();
  std::vector<WireClient> evil;
  std::vector<std::unique_ptr<LingeringSocket>> lingering;
  for (std::uint32_t i = 0; i < limits::kClosingsPerUserMax; ++i) {
    evil.push_back(client());
    lingering.push_back(std::make_unique<LingeringSocket>());
  }
  // Stopped once for all: that ends a close which waits.
  daemon.signal(SIGSTOP);
  for (std::size_t i = 0; i < evil.size(); ++i) {
    ASSERT_TRUE(evil[i].send_raw(std::vector<std::byte>(16), lingering[i]->fd()));
    lingering[i]->leave_to_the_daemon();
  }
  daemon.signal(SIGCONT);
  for (WireClient& one : evil) ASSERT_TRUE(one.is_closed());
  WireClient refused(socket());
  EXPECT_TRUE(refused.is_closed());
  EXPECT_NE(refused.why.find("take long to close"), std::string::npos) << refused.why;
  EXPECT_TRUE(here.status().has_value());
  lingering.clear();
  EXPECT_TRUE(comes_to_hold([&] {
    WireClient again(socket());
    return again.request([](Builder m) { m.initHello().setVersion(wire::kProtocolVersion); });
  }));
}

// A line for every request without a right filled the log and the page of problems.
TEST_F(HostileTest, requests_without_the_right_to_them_do_not_fill_the_log) {
  WireClient c = WireClient::greeted(socket(), true);
  const auto handle = c.open(ns);
  constexpr std::size_t kRequests = 3000;
  for (std::size_t i = 0; i < kRequests; ++i) ASSERT_TRUE(c.reserve(handle, 1).empty());
  EXPECT_EQ(c.status()->denied, kRequests);
  EXPECT_TRUE(comes_to_hold([&] {
    c.reserve(handle, 1);
    return daemon.output().find("lines like it left out") != std::string::npos;
  }));
}

TEST(LogBudget, a_second_has_so_many_lines_and_the_next_one_says_how_many_were_left_out) {
  LogBudget budget(3);
  const LogBudget::Time start{std::chrono::seconds(100)};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(budget.take(start), 0U);
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(budget.take(start + std::chrono::milliseconds(999)), std::nullopt);
  EXPECT_EQ(budget.take(start + std::chrono::milliseconds(1000)), 5U);
  EXPECT_EQ(budget.take(start + std::chrono::milliseconds(1000)), 0U);
  EXPECT_EQ(lines_left_out(0), "");
  EXPECT_EQ(lines_left_out(5), " (and 5 lines like it left out)");
}

// A record was read whole for each of a session's leases of it: seconds of the control thread for
// one report.
TEST(HostileReport, has_each_record_looked_at_once_however_many_leases_have_it) {
  TestCache cache({}, false);
  const auto ns = cache.open(small_namespace("m"));
  const auto blocks = cache.prefix(ns, 2, 1);
  ASSERT_EQ(cache.put_all(ns, blocks), 2U);
  ASSERT_EQ(cache.put_all(ns, std::span(blocks).first(1), Tier::device), 1U);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(cache.lease(ns, blocks).slots.size(), 2U);
  const std::vector<std::uint16_t> opened{ns};
  const std::vector<Key> keys(50, blocks[1].key());
  EXPECT_EQ(cache->report_bad(1, opened, keys), 50U) << "they hold";
  EXPECT_EQ(cache->counts().reported_records_read, 1U);
}

TEST(ReservationsTest, a_process_holds_slots_until_each_is_taken_let_go_or_its_own_no_more) {
  Reservations slots;
  const ProcessId one{10, 5}, reused{10, 9};
  EXPECT_FALSE(slots.holds(one));
  const Borrower mine{.process = one, .client = 70, .session = 7, .slot_bytes = kRecordBytes};
  slots.add(1, mine);
  slots.add(2, mine);
  slots.add(3, {.process = reused, .client = 70, .session = 8, .slot_bytes = kRecordBytes});
  Tier tier;
  ASSERT_TRUE(slots.take(1, 7, tier));
  EXPECT_TRUE(slots.holds(one));
  EXPECT_TRUE(slots.let_go(one, 70).empty()) << "its session goes on";
  EXPECT_EQ(slots.end_session(7).size(), 1U);
  EXPECT_TRUE(slots.holds(one));
  EXPECT_TRUE(slots.let_go(one, 71).empty());
  EXPECT_TRUE(slots.let_go(reused, 70).empty());
  EXPECT_EQ(slots.let_go(one, 70).size(), 1U);
  EXPECT_FALSE(slots.holds(one));
  EXPECT_TRUE(slots.let_go(one, 70).empty());
  EXPECT_EQ(slots.end_session(8).size(), 1U);
  EXPECT_EQ(slots.end_process(reused).size(), 1U);
  EXPECT_EQ(slots.quarantined(), 0U);
  EXPECT_FALSE(slots.holds(reused));
}

// Each end looked at the slots of all.
TEST(ReservationsTest, the_slots_of_many_sessions_are_kept_apart_in_whatever_order_they_go) {
  Reservations slots;
  const auto process = [](SlotName slot) {
    return ProcessId{static_cast<std::uint32_t>(10 + slot % 5), 1};
  };
  for (SlotName slot = 0; slot < 100; ++slot)
    slots.add(slot, {.process = process(slot),
                     .client = slot % 10,
                     .session = 1 + slot % 5,
                     .slot_bytes = kRecordBytes});
  Tier tier;
  for (SlotName slot = 0; slot < 100; slot += 3) {
    EXPECT_FALSE(slots.take(slot, 1 + (slot + 1) % 5, tier)) << "another session's";
    EXPECT_TRUE(slots.take(slot, 1 + slot % 5, tier));
  }
  for (SessionId session = 1; session <= 5; ++session) {
    std::set<SlotName> left, ended;
    for (SlotName slot = session - 1; slot < 100; slot += 5) {
      if (slot % 3 != 0) left.insert(slot);
    }
    EXPECT_EQ(slots.held_by_session(session), left.size());
    for (const auto& slot : slots.end_session(session)) ended.insert(slot.slot);
    EXPECT_EQ(ended, left);
    EXPECT_TRUE(slots.end_session(session).empty());
    const ProcessId of = process(session - 1);
    std::set<SlotName> gone;
    for (const auto& slot : slots.let_go(of, session - 1)) gone.insert(slot.slot);
    EXPECT_EQ(gone.size(), static_cast<std::size_t>(std::ranges::count_if(
                               left, [&](SlotName slot) { return slot % 10 == session - 1; })));
    for (const auto& slot : slots.end_process(of)) gone.insert(slot.slot);
    EXPECT_EQ(gone, left);
    EXPECT_FALSE(slots.holds(of));
  }
  EXPECT_EQ(slots.quarantined(), 0U);
  EXPECT_EQ(slots.reserved(), 0U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
