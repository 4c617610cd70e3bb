#include <sys/eventfd.h>

#include <latch>

#include "client/session/session.h"
#include "tests/client/fixture.h"

namespace kvtier::test {
namespace {

using SessionTest = ClientTest;

TEST_F(SessionTest, InvalidOptionsAreNamed) {
  const auto no_socket = Client::start({.socket = ""});
  ASSERT_FALSE(no_socket);
  EXPECT_EQ(no_socket.error().code, Errc::invalid);
  EXPECT_NE(no_socket.error().message.find("socket"), std::string::npos);
  const auto greedy = Client::start({.slots_ahead = 1U << 30});
  ASSERT_FALSE(greedy);
  EXPECT_NE(greedy.error().message.find("slots_ahead"), std::string::npos);
}

TEST_F(SessionTest, AnInvalidNamespaceIsRefused) {
  start();
  Namespace bad = ns;
  bad.block_tokens = 1025;
  const auto opened = client->open(bad);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Errc::invalid);
}

TEST_F(SessionTest, WithNoDaemonEverythingIsAMiss) {
  client = Client::start({.socket = "/nonexistent/kvtierd.sock"}).value();
  cache = client->open(ns).value();
  const auto prompt = prompt_of(64);
  EXPECT_EQ(cache->match(prompt).blocks, 0U);
  const auto lease = cache->lease(prompt, 2, soon());
  ASSERT_FALSE(lease);
  EXPECT_EQ(lease.error().code, Errc::unavailable);
  RecordPages pages(4, layout.record_bytes);
  auto write = cache->write_back(prompt, 0, pages.pages());
  write.wait();
  EXPECT_EQ(write.accepted(), 0U);
  const auto connected = client->wait_connected(in(milliseconds(1)));
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code, Errc::deadline);
  EXPECT_NE(connected.error().message.find("is kvtierd running?"), std::string::npos);
  EXPECT_EQ(client->stats().misses, 3U);
  EXPECT_EQ(client->stats().blocks_dropped, 4U);
}

TEST_F(SessionTest, AnotherProtocolVersionIsAClearError) {
  daemon.with([](auto& s) { s.version = 99; });
  start();
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.connections >= 3; }));
  const auto connected = client->wait_connected(in(milliseconds(1)));
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code, Errc::deadline);
  EXPECT_NE(connected.error().message.find("version 99"), std::string::npos)
      << connected.error().message;
}

TEST_F(SessionTest, ADaemonThatRefusesTheVersionIsQuoted) {
  daemon.with(
      [](auto& s) { s.refused[Which::HELLO] = make_error(Errc::version, "speak version 7"); });
  start();
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.connections >= 3; }));
  const auto connected = client->wait_connected(in(milliseconds(1)));
  ASSERT_FALSE(connected);
  EXPECT_NE(connected.error().message.find("speak version 7"), std::string::npos);
  // The daemon was mended: the client finds out by itself.
  daemon.with([](auto& s) { s.refused.clear(); });
  EXPECT_TRUE(client->wait_connected(soon()));
}

TEST_F(SessionTest, MalformedFramesEndTheConnectionOnly) {
  for (const char* bytes :
       {"HTTP/1.1 400 Bad Request\r\n\r\n", "KVW1\xFF\xFF\xFF\xFF-----------------"}) {
    daemon.with([&](auto& s) {
      s.mangle_hello = [bytes](std::vector<std::byte>& out) {
        const auto* b = reinterpret_cast<const std::byte*>(bytes);
        out.assign(b, b + std::strlen(bytes));
      };
    });
    start();
    const int before = daemon.with([](auto& s) { return s.connections; });
    ASSERT_TRUE(daemon.eventually([&](const auto& s) { return s.connections > before + 2; }));
    const auto connected = client->wait_connected(in(milliseconds(1)));
    ASSERT_FALSE(connected);
    EXPECT_NE(connected.error().message.find("frame"), std::string::npos)
        << connected.error().message;
    daemon.with([](auto& s) { s.mangle_hello = nullptr; });
    EXPECT_TRUE(client->wait_connected(soon()));
  }
}

TEST_F(SessionTest, MoreSlotsThanWereAskedForEndTheConnection) {
  daemon.with([](auto& s) {
    s.slots_left = {0, 100};
    s.slots_more = 1;
  });
  start();
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.connections == 2; }));
  daemon.with([](auto& s) { s.slots_more = 0; });
  EXPECT_TRUE(client->wait_connected(soon()));
}

TEST_F(SessionTest, AReadyEventOfMoreBlocksThanWereLeasedEndsTheConnection) {
  const auto prompt = prompt_of(64 + 1);
  cache_prompt(prompt);
  start_connected();
  const auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  const auto id = daemon.with([](const auto& s) { return s.last_lease; });
  daemon.send_ready(id, std::vector<std::uint32_t>(5, 0), std::vector<std::uint64_t>(5, 0));
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.connections == 2; }));
  EXPECT_FALSE(lease->held());
}

TEST_F(SessionTest, GarbageInTheMiddleOfASessionMakesANewOne) {
  start_connected();
  const std::vector<std::byte> garbage(64, std::byte{0xA5});
  daemon.send_bytes(garbage);
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.connections == 2; }));
  EXPECT_TRUE(client->wait_connected(soon()));
}

TEST_F(SessionTest, ADaemonThatNeverAnswersCostsTheDeadline) {
  daemon.with([](auto& s) { s.ignored = {Which::LEASE, Which::FLUSH}; });
  start();
  ASSERT_TRUE(client->wait_connected(soon()));
  const auto before = Clock::now();
  const auto lease = cache->lease(prompt_of(64), 2, before + milliseconds(50));
  const auto flushed = client->flush(before + milliseconds(100));
  const auto waited = Clock::now() - before;
  ASSERT_FALSE(lease);
  EXPECT_EQ(lease.error().code, Errc::deadline);
  ASSERT_FALSE(flushed);
  EXPECT_EQ(flushed.error().code, Errc::deadline);
  EXPECT_GE(waited, milliseconds(100));
  EXPECT_LT(waited, milliseconds(3000));
  EXPECT_EQ(client->stats().deadlines_missed, 2U);
}

TEST_F(SessionTest, ADaemonThatClosesWakesEveryWaiter) {
  daemon.with([](auto& s) { s.ignored = {Which::LEASE, Which::FLUSH}; });
  start();
  ASSERT_TRUE(client->wait_connected(soon()));
  Errc lease_error{}, flush_error{};
  std::thread leaser([&] { lease_error = cache->lease(prompt_of(64), 2, soon()).error().code; });
  std::thread flusher([&] { flush_error = client->flush(soon()).error().code; });
  ASSERT_TRUE(daemon.eventually([](const auto& s) {
    return s.seen.contains(Which::LEASE) && s.seen.contains(Which::FLUSH);
  }));
  daemon.hang_up();
  leaser.join();
  flusher.join();
  EXPECT_EQ(lease_error, Errc::unavailable);
  EXPECT_EQ(flush_error, Errc::unavailable);
}

TEST_F(SessionTest, DestroyingTheClientWakesEveryWaiter) {
  daemon.with([](auto& s) { s.ignored = {Which::LEASE}; });
  start();
  ASSERT_TRUE(client->wait_connected(soon()));
  Errc lease_error{};
  std::thread leaser(
      [&, held = cache] { lease_error = held->lease(prompt_of(64), 2, soon()).error().code; });
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.seen.contains(Which::LEASE); }));
  client.reset();
  leaser.join();
  EXPECT_EQ(lease_error, Errc::unavailable);
}

TEST_F(SessionTest, HandlesMayOutliveTheirClient) {
  const auto prompt = prompt_of(64);
  cache_prompt(prompt);
  start_connected();
  auto lease = cache->lease(prompt, 3, soon());
  ASSERT_TRUE(lease);
  RecordPages pages(3, layout.record_bytes);
  auto load = lease->load_into(pages.pages());
  ASSERT_TRUE(load);
  client.reset();
  EXPECT_EQ(load->finish(), 0U);
  EXPECT_FALSE(lease->held());
  EXPECT_EQ(lease->wait_ready(soon()), 0U);
  EXPECT_EQ(lease->load_into(pages.pages()).error().code, Errc::stale);
  EXPECT_EQ(cache->match(prompt).blocks, 0U);
  EXPECT_EQ(cache->lease(prompt, 3, soon()).error().code, Errc::unavailable);
  auto write = cache->write_back(prompt, 0, pages.pages());
  write.wait();
  EXPECT_EQ(write.accepted(), 0U);
}

TEST_F(SessionTest, NamespacesAreOpenedAgainAfterAReconnect) {
  const auto prompt = prompt_of(64);
  cache_prompt(prompt);
  start_connected();
  ASSERT_EQ(cache->match(prompt).blocks, 3U);
  daemon.hang_up();
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.connections == 2; }));
  ASSERT_TRUE(client->wait_connected(soon()));
  EXPECT_EQ(cache->match(prompt).blocks, 3U);
  const auto lease = cache->lease(prompt, 3, soon());
  ASSERT_TRUE(lease) << lease.error().message;
  EXPECT_EQ(lease->blocks(), 3U);
  EXPECT_TRUE(
      daemon.eventually([](const auto& s) { return s.seen.at(Which::OPEN_NAMESPACE) == 2; }));
  EXPECT_EQ(client->stats().connects, 2U);
}

TEST_F(SessionTest, ARefusedNamespaceRefusesItsLeases) {
  daemon.with(
      [](auto& s) { s.refused[Which::OPEN_NAMESPACE] = make_error(Errc::refused, "no more"); });
  start_connected();
  const auto lease = cache->lease(prompt_of(64), 2, soon());
  ASSERT_FALSE(lease);
  EXPECT_EQ(lease.error(), make_error(Errc::refused, "no more"));
}

TEST_F(SessionTest, ManyFlushesShareRequests) {
  daemon.with([](auto& s) { s.ignored = {Which::FLUSH}; });
  start();
  ASSERT_TRUE(client->wait_connected(soon()));
  std::vector<std::thread> flushers;
  std::atomic<int> good{0};
  for (int i = 0; i < 24; ++i)
    flushers.emplace_back([&] { good += client->flush(soon()).has_value(); });
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.seen.contains(Which::FLUSH); }));
  EXPECT_EQ(daemon.with([](auto& s) { return s.seen.at(Which::FLUSH); }), 1);
  daemon.answer_ignored();
  for (auto& f : flushers) f.join();
  EXPECT_EQ(good, 24);
}

TEST_F(SessionTest, ReportsCarryTheCounters) {
  daemon.with([](auto& s) { s.lease_ms = 300; });
  start_connected();
  ASSERT_TRUE(cache->lease(prompt_of(65), 0, soon()));
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.reported_misses == 4; }));
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.seen.at(Which::REPORT) >= 4; }));
  EXPECT_EQ(daemon.with([](auto& s) { return s.reported_misses; }), 4U);
}

TEST_F(SessionTest, ALookupIsToldOnceWithItsLeaseRequestOrInAReport) {
  const auto prompt = prompt_of(65);
  cache_prompt(prompt);
  daemon.with([](auto& s) { s.lease_ms = 300; });
  start_connected();
  ASSERT_TRUE(cache->lease(prompt, 2, soon()));
  EXPECT_EQ(daemon.with([](auto& s) { return s.asked_lookups; }), 4U);
  EXPECT_TRUE(daemon.eventually([](const auto& s) {
    return s.seen.contains(Which::REPORT) && s.seen.at(Which::REPORT) >= 3;
  }));
  EXPECT_EQ(daemon.with([](auto& s) { return s.reported_misses; }), 0U);
}

TEST_F(SessionTest, GpuMemoryForAClientWithoutAGpuEndsTheConnection) {
  daemon.with([](auto& s) { s.extent_kind = 1; });
  const auto prompt = prompt_of(33);
  cache_prompt(prompt);
  start();
  // A lease may also meet the time between two connections.
  std::string why;
  const auto until = soon();
  while (why.find("memory of a kind that this client cannot map") == std::string::npos) {
    ASSERT_LT(Clock::now(), until) << why;
    (void)client->wait_connected(until);
    const auto lease = cache->lease(prompt, 2, until);
    ASSERT_FALSE(lease);
    EXPECT_EQ(lease.error().code, Errc::unavailable);
    why = lease.error().message;
  }
  daemon.with([](auto& s) { s.extent_kind = 0; });
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.connections >= 2; }));
}

TEST_F(SessionTest, AGpuThatIsNotThereIsUnavailableWithTheMend) {
  const auto refused = Client::start({.cuda_device = 63, .socket = daemon.socket()});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::unavailable);
  EXPECT_NE(refused.error().message.find("cuda_device"), std::string::npos);
  EXPECT_NE(refused.error().message.find("63"), std::string::npos);
}

// The engine's weights are the old ones: nothing it could find or write is right any more.
TEST_F(SessionTest, AnInvalidatedNamespaceFindsLeasesAndWritesNothingUntilItIsOpenedAnew) {
  daemon.with([](auto& s) { s.slots_left = {8, 8}; });
  const auto prompt = prompt_of(65);
  cache_prompt(prompt);
  start_connected();
  ASSERT_EQ(cache->match(prompt).blocks, 4U);
  daemon.send_namespace_closed();
  // Its slots go back.
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return !s.abandoned.empty(); }));
  EXPECT_EQ(cache->match(prompt).blocks, 0U);
  const auto lease = cache->lease(prompt, 4, soon());
  ASSERT_FALSE(lease);
  EXPECT_EQ(lease.error().code, Errc::refused);
  EXPECT_NE(lease.error().message.find("weights were updated"), std::string::npos);
  RecordPages pages(4, layout.record_bytes);
  auto write = cache->write_back(prompt, 0, pages.pages());
  write.wait();
  EXPECT_EQ(write.accepted(), 0U);
  EXPECT_TRUE(daemon.with([](auto& s) { return s.committed.empty(); }));

  // Not by itself: this engine would write under the new name what the old weights made.
  daemon.hang_up();
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.connections == 2; }));
  ASSERT_TRUE(client->wait_connected(soon()));
  EXPECT_EQ(cache->match(prompt).blocks, 0U);
  const auto anew = client->open(ns).value();
  EXPECT_EQ(anew->match(prompt).blocks, 4U);
  EXPECT_TRUE(anew->lease(prompt, 4, soon()));
}

// A session whose thread can be held up, as a driver does that takes long to map memory.
class BusySessionTest : public ClientTest {
 protected:
  static constexpr milliseconds kAnswerMax{1500};

  void SetUp() override {
    daemon.with([](auto& s) { s.slots_left = {1, 1}; });
    ClientOptions options;
    options.socket = daemon.socket();
    options.slots_ahead = 64;
    busy = std::make_shared<session::Session>(
        std::move(options), UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        [this] {
          if (!hold_up.exchange(false)) return;
          held_up.count_down();
          go_on.wait();
        },
        nullptr, kAnswerMax);
    busy->start();
    entry = busy->open(ns);
    entry->users = 1;  // as a Cache would
    busy->refill(entry);
    ASSERT_TRUE(busy->wait_connected(soon()));
    ASSERT_TRUE(busy->flush(soon()));
  }
  void TearDown() override { busy->close(); }

  std::atomic<bool> hold_up{false};
  std::latch held_up{1}, go_on{1};
  std::shared_ptr<session::Session> busy;
  std::shared_ptr<session::NamespaceEntry> entry;
};

TEST_F(BusySessionTest, AnAnswerThatWaitsInTheSocketIsNotMissed) {
  const auto prompt = prompt_of(64);
  cache_prompt(prompt);
  daemon.with([](auto& s) { s.ignored = {Which::LEASE}; });
  const auto hold = std::make_shared<session::HeldBlocks>(busy, entry, 0, Key{}, keys(prompt),
                                                          proofs_of(ns, prompt), 64);
  Result<void> leased;
  std::thread leaser([&] { leased = busy->lease(hold, soon()); });
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.seen.contains(Which::LEASE); }));
  const auto asked_before = Clock::now();
  hold_up = true;
  busy->refill(entry);
  held_up.wait();
  daemon.answer_ignored();
  std::this_thread::sleep_until(asked_before + 2 * kAnswerMax);
  go_on.count_down();
  leaser.join();
  EXPECT_TRUE(leased) << leased.error().message;
  EXPECT_EQ(daemon.with([](auto& s) { return s.connections; }), 1);
}

TEST_F(BusySessionTest, ADaemonThatStaysSilentIsLeft) {
  daemon.with([](auto& s) { s.ignored = {Which::LEASE}; });
  const auto prompt = prompt_of(64);
  const auto hold = std::make_shared<session::HeldBlocks>(busy, entry, 0, Key{}, keys(prompt),
                                                          proofs_of(ns, prompt), 64);
  const auto leased = busy->lease(hold, soon());
  ASSERT_FALSE(leased);
  EXPECT_NE(leased.error().message.find("has not answered for 1500 ms"), std::string::npos)
      << leased.error().message;
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.connections >= 2; }));
}

}  // namespace
}  // namespace kvtier::test
