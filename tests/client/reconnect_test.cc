// What a client keeps when its daemon goes and another comes, and what it lets go.
#include <atomic>
#include <condition_variable>
#include <future>

#include "core/base/points.h"
#include "tests/client/fixture.h"

namespace kvtier::test {
namespace {

// Holds whoever passes a point until it is opened.
class Gate {
 public:
  explicit Gate(const char* point) {
    gate = this;
    point_ = point;
    point_hook.store(&pass);
  }
  ~Gate() {
    open();
    point_hook.store(nullptr);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return inside_ == 0; });
    gate = nullptr;
  }
  // Until somebody is held.
  void wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_until(lock, soon(), [&] { return inside_ > 0; })) << point_;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  static void pass(const char* name) noexcept {
    Gate* const of = gate.load();
    if (of != nullptr && std::strcmp(name, of->point_) == 0) of->hold();
  }
  void hold() {
    std::unique_lock lock(mutex_);
    ++inside_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    --inside_;
    changed_.notify_all();
  }

  static inline std::atomic<Gate*> gate = nullptr;
  const char* point_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int inside_ = 0;
};

class ReconnectTest : public ClientTest {
 protected:
  // A client that has used the daemon's extents, and their addresses.
  void use_extents() {
    daemon.with([](auto& s) { s.slots_left = {64, 64}; });
    cache_prompt(prompt);
    start_connected();
    EXPECT_EQ(load(), 4U);
  }
  std::uint32_t load() {
    auto lease = cache->lease(prompt, 4, soon());
    if (!lease) return 0;
    lease->wait_ready(soon());
    RecordPages pages(4, layout.record_bytes);
    auto load = lease->load_into(pages.pages());
    return load ? load->finish() : 0;
  }
  enum class Then { flush, lease };
  void reconnect(Then then = Then::flush) {
    const int before = daemon.with([](auto& s) { return s.connections; });
    daemon.hang_up();
    ASSERT_TRUE(daemon.eventually([&](const auto& s) { return s.connections > before; }));
    while (!daemon.with([&](auto& s) { return s.connections > before && s.open_connections == 1; }))
      std::this_thread::yield();
    ASSERT_TRUE(client->wait_connected(soon()));
    const bool said = then == Then::flush ? client->flush(soon()).has_value()
                                          : cache->lease(prompt, 4, soon()).has_value();
    ASSERT_TRUE(said);
  }
  int let_go_said() {
    return daemon.with([](auto& s) { return s.seen[Which::LET_GO]; });
  }

  const std::vector<Token> prompt = prompt_of(65);
};

TEST_F(ReconnectTest, ExtentsOfTheSameLineageStayMapped) {
  daemon.with([](auto& s) { s.lineage = "0123456789abcdef"; });
  use_extents();
  EXPECT_EQ(daemon.with([](auto& s) { return s.extents_sent; }), 2);
  for (int round = 0; round < 3; ++round) {
    reconnect();
    EXPECT_EQ(daemon.with([](auto& s) { return s.known_extents; }), (std::set{1U, 2U}));
    EXPECT_EQ(load(), 4U);
  }
  EXPECT_EQ(daemon.with([](auto& s) { return s.extents_sent; }), 2) << "none was sent again";
}

TEST_F(ReconnectTest, ExtentsOfAnotherLineageAreDroppedAndThoseOfTheNextDaemonMapped) {
  daemon.with([](auto& s) { s.lineage = "0123456789abcdef"; });
  use_extents();
  daemon.with([](auto& s) { s.lineage = "fedcba9876543210"; });
  reconnect();
  EXPECT_TRUE(daemon.with([](auto& s) { return s.known_extents.empty(); }));
  EXPECT_EQ(load(), 4U);
  EXPECT_EQ(daemon.with([](auto& s) { return s.extents_sent; }), 4);
}

TEST_F(ReconnectTest, ADaemonThatNamesAnExtentAsKnownThatIsNotLosesTheSession) {
  use_extents();
  daemon.with([](auto& s) {
    s.lineage = "0123456789abcdef";
    s.mangle_hello = [](std::vector<std::byte>& bytes) {
      capnp::MallocMessageBuilder message;
      auto root = message.initRoot<wire::Message>();
      root.setId(1);
      auto welcome = root.initWelcome();
      welcome.setVersion(wire::kProtocolVersion);
      welcome.setLeaseMs(1000);
      welcome.initExtents(1).set(0, 77);
      const auto words = capnp::messageToFlatArray(message);
      const auto body = words.asBytes();
      const wire::FrameHeader header{wire::kFrameMagic, static_cast<std::uint32_t>(body.size()), 0,
                                     0};
      bytes.resize(sizeof header + body.size());
      std::memcpy(bytes.data(), &header, sizeof header);
      std::memcpy(bytes.data() + sizeof header, body.begin(), body.size());
    };
  });
  const int before = daemon.with([](auto& s) { return s.connections; });
  daemon.hang_up();
  EXPECT_TRUE(daemon.eventually([&](const auto& s) { return s.connections >= before + 3; }));
  EXPECT_FALSE(client->connected());
}

// The next daemon may give slots away before this process has noticed anything.
TEST_F(ReconnectTest, ACopyIsWorthNothingOnceTheDaemonIsGoneThoughTheSessionThreadHasNotNoticed) {
  use_extents();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  RecordPages pages(4, layout.record_bytes);
  // Another request wakes the session thread, which stands still, having read nothing, when the
  // daemon goes.
  Gate session("client.session.woken");
  const auto other =
      std::async(std::launch::async, [&] { return cache->lease(prompt, 4, soon()).has_value(); });
  session.wait();
  auto load = lease->load_into(pages.pages());
  ASSERT_TRUE(load);
  EXPECT_TRUE(lease->held());
  daemon.hang_up();
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.open_connections == 0; }));
  EXPECT_TRUE(client->connected()) << "the session thread knows nothing of it yet";
  EXPECT_FALSE(lease->held());
  EXPECT_EQ(load->finish(), 0U);
  EXPECT_EQ(lease->load_into(pages.pages()).error().code, Errc::stale);
  session.open();
}

TEST_F(ReconnectTest, OldSlotsAreLetGoOnceAndOnlyAfterAReconnect) {
  use_extents();
  EXPECT_EQ(let_go_said(), 0);
  reconnect();
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.seen.at(Which::LET_GO) == 1; }));
  reconnect();
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.seen.at(Which::LET_GO) == 2; }));
}

TEST_F(ReconnectTest, OldSlotsAreNotLetGoWhileSomebodyWritesToOne) {
  use_extents();
  const auto other = prompt_of(65, 5000);
  RecordPages pages(4, layout.record_bytes);
  Gate copy("client.write_back.stored");
  auto write = cache->write_back(other, 0, pages.pages());
  copy.wait();
  reconnect(Then::lease);
  EXPECT_EQ(let_go_said(), 0);
  copy.open();
  write.wait();
  EXPECT_TRUE(daemon.eventually([](const auto& s) {
    const auto said = s.seen.find(Which::LET_GO);
    return said != s.seen.end() && said->second == 1;
  }));
  const Key first = keys(other)[0];
  EXPECT_TRUE(daemon.with([&](auto& s) {
    return std::ranges::none_of(s.committed, [&](const auto& b) { return b.key == first; });
  })) << "the block that was being written went to a slot of the old connection";
}

// They stayed quarantined for as long as the process lived.
TEST_F(ReconnectTest, SlotsThatAreOnTheirWayWhenTheClientClosesAreHandedBack) {
  daemon.with([](auto& s) {
    s.ignored = {Which::RESERVE};
    s.slots_left = {4, 4};
  });
  start();
  ASSERT_TRUE(daemon.eventually([](const auto& s) {
    const auto asked = s.seen.find(Which::RESERVE);
    return asked != s.seen.end() && asked->second == 2;  // of each tier
  }));
  Gate closing("client.session.closing");
  std::thread closer([this] {
    cache.reset();
    client.reset();
  });
  closing.wait();
  daemon.answer_ignored();
  closing.open();
  closer.join();
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.abandoned.size() == 8; }));
}

// Each welcome set the time between attempts back to its least: hundreds of them in seconds.
TEST_F(ReconnectTest, SessionsThatEndSoonAfterTheirWelcomeComeLessAndLessOften) {
  daemon.with([](auto& s) { s.fatal = {Which::OPEN_NAMESPACE}; });
  ClientOptions options;
  options.socket = daemon.socket();
  const auto began = Clock::now();
  client = Client::start(std::move(options)).value();
  cache = client->open(ns).value();
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.connections >= 8; }));
  // 20, 40, 80 ... ms, at most reconnect_delay_max: 1.6 s.
  EXPECT_GE(Clock::now() - began, std::chrono::seconds(1));
  daemon.with([](auto& s) { s.fatal.clear(); });
  // The last of those sessions may end yet.
  bool flushed = false;
  for (const auto give_up = soon(); !flushed && Clock::now() < give_up;)
    flushed = client->wait_connected(give_up).has_value() && client->flush(give_up).has_value();
  EXPECT_TRUE(flushed);
}

TEST_F(ReconnectTest, AnExtentThatCannotBeMappedCostsItsBlocksAndNotTheSession) {
  constexpr std::uint32_t kHostExtent = 2;
  daemon.with([](auto& s) {
    s.unmappable = {kHostExtent};
    s.slots_left = {8, 8};
  });
  const auto other = prompt_of(65, 5000);
  cache_prompt(prompt, Tier::host);
  cache_prompt(other, Tier::device);
  start_connected();
  EXPECT_EQ(load(), 0U);
  auto lease = cache->lease(other, 4, soon());
  ASSERT_TRUE(lease);
  EXPECT_EQ(lease->wait_ready(soon()), 4U);
  RecordPages pages(4, layout.record_bytes);
  auto load = lease->load_into(pages.pages());
  ASSERT_TRUE(load);
  EXPECT_EQ(load->finish(), 4U);
  EXPECT_TRUE(daemon.eventually([&](const auto& s) {
    return std::ranges::count_if(s.abandoned,
                                 [](std::uint64_t slot) { return slot >> 32 == kHostExtent; }) >= 8;
  })) << "slots that cannot be written to are handed back";
  EXPECT_TRUE(client->connected());
  EXPECT_EQ(daemon.with([](auto& s) { return s.connections; }), 1);
}

// One that comes from disk into such an extent.
TEST_F(ReconnectTest, ABlockThatLandsInAnExtentThatCannotBeMappedHasFailed) {
  daemon.with([](auto& s) { s.unmappable = {2}; });
  const auto chain = keys(prompt);
  for (const Key& key : chain) daemon.publish(key, TierSet{}.with(Tier::disk), 0);
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  const auto id = daemon.with([](auto& s) { return s.last_lease; });
  daemon.send_ready(id, {0, 1, 2, 3},
                    {daemon.slot_name(Tier::host, 0), daemon.slot_name(Tier::host, 1),
                     daemon.slot_name(Tier::host, 2), daemon.slot_name(Tier::host, 3)});
  EXPECT_EQ(lease->wait_ready(soon()), 0U);
  EXPECT_TRUE(client->flush(soon()));
  EXPECT_EQ(daemon.with([](auto& s) { return s.connections; }), 1);
}

}  // namespace
}  // namespace kvtier::test
