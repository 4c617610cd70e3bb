// Leases that nobody waits for: a descriptor and a callback tell what came of them.
#include <poll.h>

#include <atomic>

#include "tests/client/fixture.h"

namespace kvtier::test {
namespace {

// Whether `fd` is readable within `time`.
bool readable(int fd, milliseconds time) {
  pollfd one{fd, POLLIN, 0};
  return ::poll(&one, 1, static_cast<int>(time.count())) == 1;
}
constexpr milliseconds kSoon{20'000};

class LeaseAsyncTest : public ClientTest {
 protected:
  Prefix prefix_of(std::span<const Token> tokens) const {
    Prefix prefix(ns);
    EXPECT_TRUE(prefix.append(tokens));
    return prefix;
  }
  Lease ask(Deadline deadline = soon()) {
    return cache->lease_async(prefix_of(prompt), {0, 4}, deadline).value();
  }
  std::uint64_t last_lease() {
    return daemon.with([](auto& s) { return s.last_lease; });
  }
  const std::vector<Token> prompt = prompt_of(64 + 1);
};

TEST_F(LeaseAsyncTest, ItIsAskedAtFirstAndSettledOnceAllBlocksAreInMemory) {
  cache_prompt(prompt);
  start_connected();
  daemon.with([](auto& s) { s.ignored = {Which::LEASE}; });
  Lease lease = ask();
  const int fd = lease.event_fd().value();
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.seen.contains(Which::LEASE); }));
  EXPECT_EQ(lease.state(), LeaseState::asked);
  EXPECT_EQ(lease.blocks(), 0U);
  EXPECT_FALSE(lease.settled_at());
  EXPECT_FALSE(lease.error());
  EXPECT_FALSE(readable(fd, milliseconds(0)));
  daemon.answer_ignored();
  ASSERT_TRUE(readable(fd, kSoon));
  EXPECT_EQ(lease.state(), LeaseState::settled);
  EXPECT_EQ(lease.blocks(), 4U);
  EXPECT_TRUE(lease.settled_at());
  RecordPages pages(4, layout.record_bytes);
  EXPECT_EQ(lease.load_into(pages.pages())->finish(), 4U);
  EXPECT_TRUE(payload_is(pages.memory[3], 4));
  EXPECT_EQ(client->stats().hits[index_of(Tier::host)], 4U);
}

TEST_F(LeaseAsyncTest, BlocksOnTheirWayAreWaitedFor) {
  cache_prompt(prompt);
  for (const Key& key : keys(prompt)) daemon.publish(key, TierSet{}.with(Tier::disk), 0);
  start_connected();
  Lease lease = ask();
  const int fd = lease.event_fd().value();
  std::atomic<int> called{0};
  lease.on_settled([&] { ++called; });
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.last_lease != 0; }));
  daemon.send_ready(last_lease(), {0, 1, 2},
                    {daemon.slot_name(Tier::host, 0), daemon.slot_name(Tier::host, 1),
                     daemon.slot_name(Tier::host, 2)});
  const Deadline deadline = soon();
  while (lease.state() == LeaseState::asked && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(lease.state(), LeaseState::arriving);
  EXPECT_FALSE(readable(fd, milliseconds(0)));
  EXPECT_EQ(called, 0);
  daemon.send_ready(last_lease(), {3}, {daemon.slot_name(Tier::host, 3)});
  ASSERT_TRUE(readable(fd, kSoon));
  EXPECT_EQ(lease.wait_ready(soon()), 4U);
  while (called == 0 && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(called, 1);
}

TEST_F(LeaseAsyncTest, WithItsDeadlineItIsLostAndALateGrantGoesBack) {
  cache_prompt(prompt);
  start_connected();
  daemon.with([](auto& s) { s.ignored = {Which::LEASE}; });
  Lease lease = ask(in(milliseconds(30)));
  ASSERT_TRUE(readable(lease.event_fd().value(), kSoon));
  EXPECT_EQ(lease.state(), LeaseState::lost);
  EXPECT_EQ(lease.error()->code, Errc::deadline);
  EXPECT_EQ(lease.wait_ready(soon()), 0U);
  EXPECT_FALSE(lease.held());
  RecordPages pages(4, layout.record_bytes);
  EXPECT_EQ(lease.load_into(pages.pages()).error().code, Errc::stale);
  daemon.answer_ignored();
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.usable.size() == 1; }))
      << "released, with nothing of use";
  EXPECT_EQ(lease.blocks(), 0U);
}

TEST_F(LeaseAsyncTest, WithItsDeadlineWhatHasComeOfABlockRowCanBeLoaded) {
  cache_prompt(prompt);
  for (const Key& key : keys(prompt)) daemon.publish(key, TierSet{}.with(Tier::disk), 0);
  start_connected();
  Lease lease = ask(in(milliseconds(300)));
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.last_lease != 0; }));
  daemon.send_ready(last_lease(), {0, 1},
                    {daemon.slot_name(Tier::host, 0), daemon.slot_name(Tier::host, 1)});
  ASSERT_TRUE(readable(lease.event_fd().value(), kSoon));
  EXPECT_EQ(lease.state(), LeaseState::arriving);
  RecordPages pages(4, layout.record_bytes);
  EXPECT_EQ(lease.load_into(pages.pages())->finish(), 2U);
}

TEST_F(LeaseAsyncTest, ARefusalIsToldWithItsText) {
  start_connected();
  daemon.with(
      [](auto& s) { s.refused[Which::LEASE] = make_error(Errc::no_space, "too many leases"); });
  Lease lease = ask();
  ASSERT_TRUE(readable(lease.event_fd().value(), kSoon));
  EXPECT_EQ(lease.state(), LeaseState::lost);
  EXPECT_EQ(lease.error()->code, Errc::refused);
  EXPECT_NE(lease.error()->message.find("too many leases"), std::string::npos);
}

TEST_F(LeaseAsyncTest, WithoutADaemonItIsLostAtOnce) {
  daemon.hang_up();
  auto alone = Client::start({.socket = "/nowhere/kvtierd.sock"}).value();
  auto of = alone->open(ns).value();
  Lease lease = of->lease_async(prefix_of(prompt), {0, 4}, soon()).value();
  ASSERT_TRUE(readable(lease.event_fd().value(), kSoon));
  EXPECT_EQ(lease.error()->code, Errc::unavailable);
}

TEST_F(LeaseAsyncTest, TheEndOfTheConnectionIsTold) {
  cache_prompt(prompt);
  for (const Key& key : keys(prompt)) daemon.publish(key, TierSet{}.with(Tier::disk), 0);
  start_connected();
  Lease lease = ask();
  std::atomic<bool> called{false};
  lease.on_settled([&] { called = true; });
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.last_lease != 0; }));
  daemon.hang_up();
  ASSERT_TRUE(readable(lease.event_fd().value(), kSoon));
  EXPECT_EQ(lease.state(), LeaseState::lost);
  const Deadline deadline = soon();
  while (!called && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(called);
}

TEST_F(LeaseAsyncTest, ACallbackMayLoadAskAgainAndLetItsLeaseGo) {
  cache_prompt(prompt);
  start_connected();
  std::atomic<bool> loading{false}, again{false};
  std::optional<Load> load;
  RecordPages pages(4, layout.record_bytes);
  auto lease = std::make_shared<std::optional<Lease>>(ask());
  auto next = std::make_shared<std::optional<Lease>>();
  (*lease)->on_settled([&, lease, next] {
    load.emplace((*lease)->load_into(pages.pages()).value());
    next->emplace(ask());
    (*next)->on_settled([&] { again = true; });
    lease->reset();
    loading = true;
  });
  const Deadline deadline = soon();
  while ((!loading || !again) && Clock::now() < deadline) std::this_thread::yield();
  ASSERT_TRUE(loading && again);
  EXPECT_EQ(load->finish(soon()), 4U);
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.released.size() == 1; }));
}

TEST_F(LeaseAsyncTest, ACallbackOfWhatIsSettledAlreadyIsCalledInTheCall) {
  cache_prompt(prompt);
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  bool called = false;
  lease->on_settled([&] { called = true; });
  EXPECT_TRUE(called);
  EXPECT_TRUE(readable(lease->event_fd().value(), milliseconds(0)));
}

TEST_F(LeaseAsyncTest, ALeaseThatWasReleasedCallsNobodyAndItsGrantGoesBack) {
  cache_prompt(prompt);
  start_connected();
  daemon.with([](auto& s) { s.ignored = {Which::LEASE}; });
  std::atomic<bool> called{false};
  {
    Lease lease = ask();
    lease.on_settled([&] { called = true; });
    ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.seen.contains(Which::LEASE); }));
  }
  daemon.answer_ignored();
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.usable.size() == 1; }));
  EXPECT_FALSE(called);
}

TEST_F(LeaseAsyncTest, AClientThatEndsTellsWhoStillWaits) {
  cache_prompt(prompt);
  start_connected();
  daemon.with([](auto& s) { s.ignored = {Which::LEASE}; });
  Lease lease = ask();
  const int fd = lease.event_fd().value();
  client.reset();
  ASSERT_TRUE(readable(fd, kSoon));
  EXPECT_EQ(lease.error()->code, Errc::unavailable);
  const auto after = cache->lease_async(prefix_of(prompt), {0, 4}, soon());
  EXPECT_EQ(after.error().code, Errc::unavailable);
}

TEST_F(LeaseAsyncTest, APrefixOfAnotherNamespaceIsRefused) {
  start_connected();
  Prefix other(small_namespace(StorageFormat::bf16));
  EXPECT_EQ(cache->lease_async(other, {0, 1}, soon()).error().code, Errc::invalid);
}

}  // namespace
}  // namespace kvtier::test
