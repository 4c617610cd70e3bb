// What the control thread says of its blocks, and of which it says nothing.
#include "daemon/events/event_feed.h"

#include <gtest/gtest.h>

#include "daemon/events/known_blocks.h"
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

using events::EntryKind;

Tenant tenant(const std::string& name, bool isolated = false) {
  Tenant made;
  made.name = name;
  if (name != kDefaultTenantName) made.salts = {name};
  made.isolated = isolated;
  return made;
}

class FeedTest : public ::testing::Test {
 protected:
  void begin(const Config::Events& config, std::size_t queue_bytes = 1 << 20) {
    queue.emplace(queue_bytes);
    feed.emplace(config, *cache, *queue);
    feed->begin_walk();
    take_all();
  }
  // As the events' thread does it.
  void take_all() {
    std::vector<std::byte> entry;
    while (queue->pop(entry)) {
      switch (static_cast<EntryKind>(entry.front())) {
        case EntryKind::block: {
          events::BlockEntry block;
          std::memcpy(&block, entry.data(), sizeof block);
          Heard& heard_of = heard[block.key];
          heard_of.tiers = block.tiers;
          const std::size_t bytes = entry.size() - sizeof block;
          if (bytes != 0) heard_of.tokens.resize(bytes / sizeof(Token));
          if (bytes != 0) std::memcpy(heard_of.tokens.data(), entry.data() + sizeof block, bytes);
          ++entries;
          break;
        }
        case EntryKind::space:
          break;
        case EntryKind::walk_begun:
          ++walks;
          break;
        case EntryKind::walk_goes_on:
          feed->walk_on();
          break;
        case EntryKind::walk_ended:
          ++walks_ended;
          break;
      }
    }
  }
  // Of one block of a namespace with this salt.
  bool is_heard_of(const std::string& salt, const std::string& model = "m@1",
                   std::uint32_t rank = 0) {
    Namespace ns = small_namespace(model);
    ns.tenant = salt;
    ns.rank = rank;
    ns.ranks = 2;
    const auto number = cache.open(ns);
    const auto blocks = cache.prefix(number, 1, 7);
    EXPECT_TRUE(cache.put(number, blocks[0]));
    take_all();
    return heard.contains(blocks[0].key());
  }

  struct Heard {
    TierSet tiers;
    std::vector<Token> tokens;
  };
  TestCache cache{{.tenants = {tenant("default"), tenant("a"), tenant("alone", true)}}};
  std::optional<events::EventQueue> queue;
  std::optional<events::EventFeed> feed;
  std::map<Key, Heard> heard;
  int entries = 0, walks = 0, walks_ended = 0;
};

TEST_F(FeedTest, without_a_word_only_what_has_no_salt_is_told) {
  begin({});
  EXPECT_TRUE(is_heard_of(""));
  EXPECT_FALSE(is_heard_of("a"));
  EXPECT_FALSE(is_heard_of("alone"));
  EXPECT_FALSE(is_heard_of("a salt that nobody has listed"));
}

TEST_F(FeedTest, tenants_that_are_named_are_told_of_and_no_others) {
  Config::Events config;
  config.tenants = {"a"};
  begin(config);
  EXPECT_TRUE(is_heard_of("a"));
  EXPECT_FALSE(is_heard_of(""));
  EXPECT_FALSE(is_heard_of("alone"));
  config.tenants = {"default", "alone"};
  feed.reset();
  begin(config);
  EXPECT_TRUE(is_heard_of("alone", "m@2"));
  EXPECT_TRUE(is_heard_of("", "m@2"));
  EXPECT_TRUE(is_heard_of("a salt that nobody has listed", "m@2"));
  EXPECT_FALSE(is_heard_of("a", "m@2"));
}

TEST_F(FeedTest, models_and_ranks_can_be_chosen) {
  Config::Events config;
  config.models = {"m"};
  begin(config);
  EXPECT_TRUE(is_heard_of("", "m@3"));
  EXPECT_FALSE(is_heard_of("", "mm@3"));
  EXPECT_FALSE(is_heard_of("", "m@3", 1));
  config.ranks = Config::Ranks::all;
  feed.reset();
  begin(config);
  EXPECT_TRUE(is_heard_of("", "m@4", 1));
}

TEST_F(FeedTest, tokens_are_told_only_where_that_is_asked_for) {
  const auto ns = cache.open(small_namespace("m"));
  const auto blocks = cache.prefix(ns, 3, 1);
  begin({});
  ASSERT_TRUE(cache.put(ns, blocks[0]));
  take_all();
  EXPECT_TRUE(heard.at(blocks[0].key()).tokens.empty());
  feed.reset();
  Config::Events config;
  config.tokens = true;
  begin(config);  // from its record
  EXPECT_EQ(heard.at(blocks[0].key()).tokens, blocks[0].tokens);
  ASSERT_TRUE(cache.put(ns, blocks[1]));  // from its commit
  take_all();
  EXPECT_EQ(heard.at(blocks[1].key()).tokens, blocks[1].tokens);
}

TEST_F(FeedTest, a_block_from_disk_brings_its_tokens_with_it) {
  const auto ns = cache.open(small_namespace("m"));
  const auto blocks = cache.prefix(ns, 2, 1);
  cache.put_on_disk(ns, blocks);
  Config::Events config;
  config.tokens = true;
  begin(config);
  EXPECT_EQ(heard.at(blocks[0].key()).tiers, TierSet{}.with(Tier::disk));
  EXPECT_TRUE(heard.at(blocks[0].key()).tokens.empty());
  ASSERT_EQ(cache.lease(ns, blocks).slots.size(), 2U);
  cache.store().complete_all();
  take_all();
  EXPECT_TRUE(heard.at(blocks[0].key()).tiers.has(Tier::host));
  EXPECT_EQ(heard.at(blocks[0].key()).tokens, blocks[0].tokens);
}

TEST_F(FeedTest, what_a_client_wrote_over_its_record_afterwards_is_not_believed) {
  const auto ns = cache.open(small_namespace("m"));
  const auto blocks = cache.prefix(ns, 1, 1);
  const auto slots = cache->reserve(1, TestCache::kWriter, ns, Tier::host, 1);
  fill_record(cache.record(slots[0]), cache.known(ns).layout, blocks[0]);
  ASSERT_TRUE(cache.commit(ns, blocks[0], slots));
  auto other = blocks[0];
  other.tokens[0] = 999;
  write_header(cache.record(slots[0]), cache.known(ns).layout, other.identity, other.proof());
  Config::Events config;
  config.tokens = true;
  begin(config);
  ASSERT_TRUE(heard.contains(blocks[0].key()));
  EXPECT_TRUE(heard.at(blocks[0].key()).tokens.empty());
}

TEST_F(FeedTest, blocks_with_more_to_them_than_tokens_are_told_without) {
  Config::Events config;
  config.tokens = true;
  begin(config);
  for (const Namespace& of : {namespace_with_extra("x"), namespace_of_digests("d")}) {
    const auto ns = cache.open(of);
    const auto blocks = of.digest_bytes != 0 ? blocks_of_digests(of, 2, 1)
                                             : blocks_with_extra(of, 2, 1, "an image of a cat");
    ASSERT_EQ(blocks.size(), 2U);
    ASSERT_EQ(cache.put_all(ns, blocks), 2U);
    take_all();
    EXPECT_TRUE(heard.at(blocks[0].key()).tokens.empty());
  }
}

TEST_F(FeedTest, a_full_queue_loses_what_comes_until_all_is_told_once_more) {
  const auto ns = cache.open(small_namespace("m"));
  begin({}, 1000);
  const auto blocks = cache.prefix(ns, 30, 1);
  ASSERT_EQ(cache.put_all(ns, blocks), 30U);
  EXPECT_GT(feed->lost(), 0U);
  take_all();
  EXPECT_LT(heard.size(), 30U);
  EXPECT_TRUE(queue->take_lost());
  EXPECT_FALSE(queue->take_lost());
  cache.store().complete_all();
  cache->drop(ns, TierSet{7});
  cache.store().complete_all();  // all of that is said to nobody
  EXPECT_EQ(queue->used(), 0U);
  ASSERT_EQ(cache.put_all(ns, std::span(blocks).first(25)), 25U);
  heard.clear();
  feed->begin_walk();
  take_all();
  // The walk never fills the queue.
  EXPECT_FALSE(queue->take_lost());
  EXPECT_EQ(walks, 2);
  EXPECT_EQ(walks_ended, 2);
  EXPECT_EQ(heard.size(), 25U);
}

TEST_F(FeedTest, what_changes_nothing_says_nothing) {
  const auto ns = cache.open(small_namespace("m"));
  begin({});
  const auto blocks = cache.prefix(ns, 3, 1);
  ASSERT_EQ(cache.put_all(ns, blocks), 3U);
  take_all();
  const int before = entries;
  ASSERT_EQ(cache.lease(ns, blocks).slots.size(), 3U);
  cache->release_all(1);
  take_all();
  EXPECT_EQ(entries, before);
}

}  // namespace
}  // namespace kvtier::daemon::testing
