// The publisher with real sockets, over a real cache, and a subscriber that rebuilds the index.
#include "daemon/events/event_publisher.h"

#include <gtest/gtest.h>

#include <deque>
#include <mutex>

#include "tests/daemon/events/event_subscriber.h"
#include "tests/daemon/support/kvtierd_process.h"
#include "tests/daemon/support/random_cache.h"

namespace kvtier::daemon::testing {
namespace {

using events::EventPublisher;
using View = EventSubscriber::View;
using std::chrono::milliseconds;

// What a cache's catalogue says, as a subscriber would see it, but for the tokens.
View index_of_cache(const Catalogue& catalogue) {
  View view;
  const auto text = [](const Key& key) {
    return key.is_zero()
               ? std::string()
               : std::string(reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size());
  };
  catalogue.each([&](BlockId id) {
    const Block& block = catalogue.block(id);
    const TierSet tiers = block.doomed ? TierSet{} : catalogue.reachable(id);
    if (tiers.empty()) return true;
    auto& seen = view[text(block.key)];
    for (const Tier tier : kAllTiers) {
      if (tiers.has(tier)) seen.media.insert(events::medium_of(tier));
    }
    seen.parent = text(catalogue.parent(id));
    const KnownNamespace& known = catalogue.namespaces()[block.ns];
    seen.space = to_hex(known.id);
    seen.model = known.ns.model;
    seen.block_tokens = known.ns.block_tokens;
    return true;
  });
  return view;
}

bool same(const View& a, const View& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.media == y.second.media &&
           x.second.parent == y.second.parent && x.second.space == y.second.space &&
           x.second.model == y.second.model && x.second.block_tokens == y.second.block_tokens;
  });
}

Key key_of(const std::string& text) {
  Key key;
  std::memcpy(key.bytes.data(), text.data(), std::min(text.size(), key.bytes.size()));
  return key;
}

// A publisher whose control thread is the test.
class Published {
 public:
  explicit Published(BlockCache& cache, Config::Events config = {}) : config_(std::move(config)) {
    config_.endpoint = endpoint();
    config_.replay_endpoint = replay_endpoint();
    config_.block_hashes = Config::BlockHashes::bytes;
    config_.tokens = true;
    publisher_ =
        std::make_unique<EventPublisher>(config_, cache, [this](std::function<void()> task) {
          const std::lock_guard lock(mutex_);
          tasks_.push_back(std::move(task));
        });
  }

  // Does what the publisher asks of the control thread.
  void run() {
    while (true) {
      std::function<void()> task;
      {
        const std::lock_guard lock(mutex_);
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }
  bool comes_to_hold(const std::function<bool()>& condition) {
    return testing::comes_to_hold([&] {
      run();
      return condition();
    });
  }
  // The first walk is over.
  bool begun() {
    return comes_to_hold([&] { return counts().listening && counts().walks == 1 && idle(); });
  }
  bool has_subscriber() {
    return comes_to_hold([&] { return counts().subscriptions != 0; });
  }
  bool idle() { return publisher_->queued_bytes() == 0; }
  const events::EventCounts& counts() const { return publisher_->counts(); }
  EventPublisher& publisher() { return *publisher_; }
  std::string endpoint() const { return "ipc://" + (scratch_ / "e").string(); }
  std::string replay_endpoint() const { return "ipc://" + (scratch_ / "r").string(); }
  EventSubscriber subscribe() { return EventSubscriber(endpoint(), replay_endpoint()); }

 private:
  Scratch scratch_;
  Config::Events config_;
  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;
  std::unique_ptr<EventPublisher> publisher_;
};

void expect_tokens_prove_keys(const View& view) {
  for (const auto& [name, seen] : view) {
    if (seen.tokens.empty()) continue;
    NamespaceId space;
    space.bytes = from_hex(seen.space).value();
    EXPECT_EQ(chain_key(space, key_of(seen.parent), seen.tokens), key_of(name));
  }
}

class RandomEvents : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(RandomEvents, a_subscriber_has_the_index_whatever_happens_and_is_lost) {
  RandomCache random({GetParam(), true, {.disks = 2}});
  BlockCache& cache = *random.cache();
  Config::Events config;
  config.queue_bytes = 2500;
  config.replay_bytes = 16384;
  Published published(cache, config);
  EventSubscriber subscriber = published.subscribe();
  for (int round = 0; round < 12; ++round) {
    for (int step = 0; step < 500; ++step) {
      random.step();
      if (step % 20 == 0) published.run();
      if (step % 100 == 0) subscriber.read(milliseconds(0));
    }
    const View expected = index_of_cache(cache.catalogue());
    ASSERT_TRUE(subscriber.comes_to([&](const View& view) { return same(view, expected); },
                                    [&] { published.run(); }))
        << "round " << round << ": " << subscriber.view().size() << " blocks, not "
        << expected.size();
    expect_tokens_prove_keys(subscriber.view());
  }
  EXPECT_GT(published.publisher().lost(), 0U);
  EXPECT_GT(published.counts().walks, 1U);
  // One that comes only now has the same, though most of the batches are kept no more.
  EventSubscriber late = published.subscribe();
  EXPECT_FALSE(late.ask(0).empty());
  EXPECT_TRUE(same(late.view(), subscriber.view()));
  EXPECT_EQ(late.clears(), 1U);
  random.drop_everything();
  random.finish();
  random.drop_everything();
  EXPECT_TRUE(
      subscriber.comes_to([](const View& view) { return view.empty(); }, [&] { published.run(); }));
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomEvents, ::testing::Values(1, 2, 3));

class EventsOverACache : public ::testing::Test {
 protected:
  EventsOverACache() : ns(cache.open(small_namespace("m"))) {}
  View expected() { return index_of_cache(cache->catalogue()); }
  bool sees_all(EventSubscriber& subscriber, Published& published) {
    const View wanted = expected();
    return subscriber.comes_to([&](const View& view) { return same(view, wanted); },
                               [&] { published.run(); });
  }
  // So many batches, of so many blocks each.
  void publish_batches(Published& published, int batches, std::size_t blocks) {
    for (int i = 0; i < batches; ++i) {
      const auto before = published.counts().batches.load();
      if (i % 2 == 0) {
        ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, blocks, 1)), blocks);
      } else {
        cache->drop(ns, TierSet{7});
      }
      ASSERT_TRUE(published.comes_to_hold(
          [&] { return published.counts().batches > before && published.idle(); }));
    }
  }

  TestCache cache{{.blocks_max = 1000, .host_slots = 640}, false};
  const std::uint16_t ns;
};

TEST_F(EventsOverACache, what_was_there_before_is_told_at_the_start) {
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 20, 1)), 20U);
  Published published(*cache);
  EventSubscriber subscriber = published.subscribe();
  ASSERT_TRUE(sees_all(subscriber, published));
  EXPECT_EQ(subscriber.view().size(), 20U);
  for (const auto& [name, seen] : subscriber.view()) EXPECT_EQ(seen.tokens.size(), kBlockTokens);
  expect_tokens_prove_keys(subscriber.view());
}

TEST_F(EventsOverACache, what_is_kept_is_replayed_batch_by_batch_with_its_numbers) {
  Published published(*cache);
  ASSERT_TRUE(published.begun());
  EventSubscriber subscriber = published.subscribe();
  ASSERT_TRUE(sees_all(subscriber, published));
  ASSERT_TRUE(published.has_subscriber());
  publish_batches(published, 5, 3);
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 2, 900'000)), 2U);  // as it was never before
  ASSERT_TRUE(sees_all(subscriber, published));
  const std::uint64_t next = *subscriber.last() + 1;
  ASSERT_TRUE(subscriber.answer(next));  // with which what was answered before has been counted
  const std::uint64_t snapshots = published.counts().snapshots;
  const auto three = subscriber.answer(next - 3);
  ASSERT_TRUE(three);
  // And perhaps an empty one, of a second later.
  ASSERT_GE(three->size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ((*three)[i].number, next - 3 + i);
    EXPECT_EQ((*three)[i].topic, "kv-events");
  }
  EXPECT_LE(subscriber.answer(next)->size(), 1U);
  EXPECT_EQ(published.counts().snapshots, snapshots);
}

TEST_F(EventsOverACache, older_numbers_and_those_of_nobody_are_answered_by_all_there_is) {
  Config::Events config;
  config.replay_bytes = 1;
  Published published(*cache, config);
  ASSERT_TRUE(published.begun());
  EventSubscriber subscriber = published.subscribe();
  ASSERT_TRUE(sees_all(subscriber, published));
  publish_batches(published, 3, 600);
  ASSERT_TRUE(sees_all(subscriber, published));
  const std::uint64_t last = *subscriber.last();
  for (const std::uint64_t from : {std::uint64_t{0}, last - 1, last + 100}) {
    EventSubscriber late = published.subscribe();
    const auto batches = late.answer(from);
    ASSERT_TRUE(batches && !batches->empty());
    EXPECT_EQ(batches->front().json()[1][0]["type"], "AllBlocksCleared");
    EXPECT_GE(batches->back().number, last);
    for (const auto& batch : *batches) {
      EXPECT_TRUE(from > last || batch.number >= from);
      EXPECT_LE(batch.number, batches->back().number);
    }
    late.ask(from);
    EXPECT_TRUE(same(late.view(), expected()));
    EXPECT_EQ(late.view().size(), 600U);
  }
}

TEST_F(EventsOverACache, parents_come_before_their_children_in_what_is_told_of_old) {
  const auto trunk = cache.prefix(ns, 40, 1);
  // In an order of its own: leaves first is what the index may well have.
  for (std::size_t i = 0; i < trunk.size(); ++i)
    ASSERT_TRUE(cache.put(ns, trunk[(i * 17) % trunk.size()]));
  Published published(*cache);
  EventSubscriber late = published.subscribe();
  ASSERT_TRUE(published.comes_to_hold([&] { return published.counts().stored == 40; }));
  const auto batches = late.answer(0);
  ASSERT_TRUE(batches);
  std::set<nlohmann::json> known;
  std::size_t events = 0;
  for (const auto& batch : *batches) {
    const auto json = batch.json();
    for (const auto& event : json[1]) {
      if (event["type"] != "BlockStored") continue;
      ++events;
      EXPECT_TRUE(event["parent_block_hash"].is_null() ||
                  known.contains(event["parent_block_hash"]));
      known.insert(event["block_hashes"].begin(), event["block_hashes"].end());
    }
  }
  EXPECT_EQ(known.size(), 40U);
  EXPECT_EQ(events, 1U);
}

TEST_F(EventsOverACache, a_slow_subscriber_sees_a_gap_and_catches_up) {
  Config::Events config;
  config.subscriber_batches = 1;
  Published published(*cache, config);
  ASSERT_TRUE(published.begun());
  EventSubscriber slow(published.endpoint(), published.replay_endpoint(), "", 1);
  ASSERT_TRUE(sees_all(slow, published));
  ASSERT_TRUE(published.has_subscriber());
  publish_batches(published, 1, 5);
  ASSERT_TRUE(sees_all(slow, published));
  ASSERT_TRUE(slow.last());
  // More than the system keeps for a socket that nobody reads.
  cache->drop(ns, TierSet{7});
  publish_batches(published, 61, 600);
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 7, 900'000)), 7U);  // as it was never before
  ASSERT_TRUE(sees_all(slow, published));
  EXPECT_EQ(slow.view().size(), 607U);
  EXPECT_GT(slow.gaps(), 0U);
}

TEST_F(EventsOverACache, who_asks_and_does_not_read_keeps_nobody_from_an_answer) {
  Config::Events config;
  config.replay_bytes = 1;
  Published published(*cache, config);
  ASSERT_TRUE(published.begun());
  publish_batches(published, 1, 600);
  std::vector<std::unique_ptr<EventSubscriber>> deaf;
  const std::string zero(8, '\0');
  for (int i = 0; i < 3; ++i) {
    deaf.push_back(std::make_unique<EventSubscriber>(published.endpoint(),
                                                     published.replay_endpoint(), "", 1, 1));
    for (int j = 0; j < 2; ++j) deaf.back()->send_request(std::array<std::string, 2>{"", zero});
    // What is no request is none.
    deaf.back()->send_request(std::array<std::string, 1>{"x"});
    deaf.back()->send_request(std::array<std::string, 2>{"", "seven.."});
    deaf.back()->send_request(std::array<std::string, 3>{"", zero, zero});
  }
  EventSubscriber other = published.subscribe();
  EXPECT_FALSE(other.ask(0).empty());
  EXPECT_TRUE(same(other.view(), expected()));
}

TEST_F(EventsOverACache, subscriptions_are_counted) {
  Published published(*cache);
  ASSERT_TRUE(published.begun());
  {
    EventSubscriber one = published.subscribe(), two = published.subscribe();
    EXPECT_TRUE(published.comes_to_hold([&] { return published.counts().subscriptions == 2; }));
  }
  EXPECT_TRUE(published.comes_to_hold([&] { return published.counts().subscriptions == 0; }));
}

TEST_F(EventsOverACache, a_topic_is_what_subscribers_choose_by) {
  Config::Events config;
  config.topic = "kv@one";
  Published published(*cache, config);
  ASSERT_TRUE(published.begun());
  EventSubscriber right(published.endpoint(), published.replay_endpoint(), "kv@");
  EventSubscriber wrong(published.endpoint(), "", "kv-events");
  ASSERT_TRUE(published.comes_to_hold([&] { return published.counts().subscriptions == 2; }));
  publish_batches(published, 1, 5);
  ASSERT_TRUE(sees_all(right, published));
  EXPECT_EQ(right.view().size(), 5U);
  EXPECT_FALSE(wrong.read(milliseconds(0)));
}

TEST_F(EventsOverACache, an_endpoint_that_is_not_to_be_had_is_no_reason_to_stop) {
  Config::Events config;
  Published published(*cache, config);
  Published* const first = &published;
  ASSERT_TRUE(first->begun());
  Config::Events nowhere;
  nowhere.endpoint = "ipc:///nonexistent/events.sock";
  EXPECT_FALSE(events::EventSockets::open(nowhere));
  nowhere.endpoint = first->endpoint();
  nowhere.replay_endpoint = "ipc:///nonexistent/replay.sock";
  const auto error = events::EventSockets::open(nowhere);
  ASSERT_FALSE(error);
  EXPECT_NE(error.error().message.find("ipc:///nonexistent/replay.sock"), std::string::npos);
}

}  // namespace
}  // namespace kvtier::daemon::testing
