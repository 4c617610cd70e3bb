// Waits for copies that take long: each ends with its deadline, and the copies go on.
#include <atomic>
#include <string_view>

#include "core/base/points.h"
#include "tests/client/fixture.h"

namespace kvtier::test {
namespace {

// Holds the copy thread at one point for as long as it lives.
class HeldAt {
 public:
  explicit HeldAt(const char* point) {
    point_ = point;
    reached_ = false;
    holds_ = true;
    point_hook = [](const char* name) noexcept {
      if (std::string_view(name) != point_.load()) return;
      reached_ = true;
      while (holds_) std::this_thread::yield();
    };
  }
  ~HeldAt() {
    let_go();
    point_hook = nullptr;
  }
  static void let_go() { holds_ = false; }
  static bool is_reached() {
    const Deadline deadline = soon();
    while (!reached_ && Clock::now() < deadline) std::this_thread::yield();
    return reached_;
  }

 private:
  static inline std::atomic<const char*> point_ = nullptr;
  static inline std::atomic<bool> holds_ = false, reached_ = false;
};

class DeadlinesTest : public ClientTest {
 protected:
  DeadlinesTest() : pages(4, layout.record_bytes) {}
  const std::vector<Token> prompt = prompt_of(64 + 1);
  RecordPages pages;
};

TEST_F(DeadlinesTest, ALoadIsFinishedInTimeOrGoesOn) {
  cache_prompt(prompt);
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  HeldAt point("client.load.layer");
  auto load = lease->load_into(pages.pages());
  ASSERT_TRUE(load);
  EXPECT_EQ(load->layers(), ns.layers);
  ASSERT_TRUE(HeldAt::is_reached());
  EXPECT_FALSE(load->wait(in(milliseconds(10))));
  EXPECT_EQ(load->finish(in(milliseconds(10))), std::nullopt);
  HeldAt::let_go();
  EXPECT_EQ(load->finish(soon()), 4U);
  EXPECT_TRUE(payload_is(pages.memory[3], 4));
}

TEST_F(DeadlinesTest, AWriteBackIsWaitedForNoLongerThanTheDeadline) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected();
  HeldAt point("client.write_back.stored");
  auto write = cache->write_back(prompt, 0, pages.pages());
  ASSERT_TRUE(HeldAt::is_reached());
  EXPECT_FALSE(write.wait(in(milliseconds(10))));
  EXPECT_FALSE(write.ended());
  HeldAt::let_go();
  EXPECT_TRUE(write.wait(soon()));
  EXPECT_EQ(write.accepted(), 4U);
}

TEST_F(DeadlinesTest, AnAbandonedStoreWaitsForTheLayerThatIsBeingCopiedAlone) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected();
  Prefix prefix(ns);
  ASSERT_TRUE(prefix.append(prompt));
  HeldAt point("client.layer_store.copied");
  auto store = std::make_unique<LayerStore>(cache->begin_store(prefix, 0, pages.pages()).value());
  ASSERT_TRUE(store->layer(0));
  ASSERT_TRUE(store->layer(1));
  ASSERT_TRUE(HeldAt::is_reached());
  std::atomic<bool> gone{false};
  std::thread engine([&] {
    store.reset();
    gone = true;
  });
  for (const Deadline until = in(milliseconds(20)); Clock::now() < until;)
    ASSERT_FALSE(gone) << "the copy thread may still read the pages";
  HeldAt::let_go();
  engine.join();
  EXPECT_TRUE(client->flush(soon()));
  EXPECT_TRUE(daemon.with([](auto& s) { return s.committed.empty(); }));
}

}  // namespace
}  // namespace kvtier::test
