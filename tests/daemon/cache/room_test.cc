// Who gets room when a tier, the index or a process's share is full.
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

class RoomTest : public ::testing::Test {
 protected:
  explicit RoomTest(const CacheSizes& sizes = {})
      : cache(sizes),
        ns(cache.open(small_namespace("m"))),
        wide(cache.open(small_namespace("w", true))) {}

  std::size_t in_tier(std::span<const TestBlock> blocks, Tier tier) {
    std::size_t there = 0;
    for (const auto& block : blocks) there += cache.tiers(block).has(tier) ? 1 : 0;
    return there;
  }

  TestCache cache;
  const std::uint16_t ns, wide;
  static constexpr TierSet kHost{2};
};

TEST_F(RoomTest, a_size_class_without_room_empties_the_coldest_extent_of_another) {
  std::vector<storage::ExtentId> retired;
  const auto forget = cache->memory(Tier::host).on_retired;
  cache->memory(Tier::host).on_retired = [&](storage::Extent& extent) {
    retired.push_back(extent.id());
    forget(extent);
  };
  const auto blocks = cache.prefix(ns, 40, 1);
  ASSERT_EQ(cache.put_all(ns, blocks), 40U);
  cache.store().complete_all();
  const auto coldest = cache.find(blocks[39].key())->places[index_of(Tier::host)].container;
  ASSERT_EQ(cache.put_all(wide, cache.prefix(wide, 1, 1)), 1U);
  EXPECT_EQ(retired, std::vector{storage::ExtentId(coldest)});
  EXPECT_LE(cache->memory(Tier::host).taken_bytes(), cache->memory(Tier::host).cap_bytes());
}

TEST_F(RoomTest, an_extent_in_use_is_not_emptied_for_another_size_class) {
  const auto blocks = cache.prefix(ns, 40, 1);
  ASSERT_EQ(cache.put_all(ns, blocks), 40U);
  cache.store().complete_all();
  const auto grant = cache.lease(ns, blocks);
  EXPECT_FALSE(cache.put(wide, cache.prefix(wide, 1, 1)[0]));
  cache->release(1, grant.lease);
  EXPECT_TRUE(cache.put(wide, cache.prefix(wide, 1, 1)[0]));
}

TEST_F(RoomTest, a_size_class_without_room_on_disk_empties_a_cold_segment_of_another) {
  for (Token first = 1; first < 9600; first += 1000) {
    ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 10, first)), 10U);
    cache.store().complete_all();
  }
  ASSERT_EQ(cache->catalogue().counts(Tier::disk).blocks, 96U);
  const auto block = cache.prefix(wide, 1, 1)[0];
  ASSERT_TRUE(cache.put(wide, block));
  cache.store().complete_all();
  EXPECT_TRUE(cache.tiers(block).has(Tier::disk));
  EXPECT_EQ(cache->catalogue().counts(Tier::disk).blocks, 81U);  // one segment of 16 for it
  EXPECT_LE(cache->disk().taken_bytes(), cache->disk().cap_bytes());
}

// Any other removal that completed ended the wait for the segment, and the next one was emptied
// too.
TEST_F(RoomTest, one_segment_is_emptied_at_a_time) {
  for (Token first = 1; first < 9600; first += 1000) {
    ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 10, first)), 10U);
    cache.store().complete_all();
  }
  const auto gone = cache.prefix(ns, 10, 9001)[0].key();
  cache->drop(ns, kHost);
  cache.remove(ns, gone);
  const auto other = cache.store().under_way().back();
  ASSERT_TRUE(cache.put(wide, cache.prefix(wide, 1, 1)[0]));
  const auto evicted = cache->catalogue().counts(Tier::disk).evictions();
  cache.store().complete(other);
  EXPECT_EQ(cache->catalogue().counts(Tier::disk).evictions(), evicted);
  cache.store().complete_all();
}

TEST_F(RoomTest, one_process_reserves_a_quarter_at_most_of_what_others_leave_of_a_tier) {
  const ProcessId other{200, 1};
  EXPECT_EQ(cache->reserve(1, TestCache::kWriter, ns, Tier::host, 100).size(), 10U);
  EXPECT_EQ(cache->reserve(2, TestCache::kWriter, ns, Tier::host, 1).size(), 0U);
  EXPECT_EQ(cache->reserve(3, other, ns, Tier::host, 100).size(), 7U);
  EXPECT_EQ(cache->reserve(1, TestCache::kWriter, ns, Tier::device, 100).size(), 6U);
  EXPECT_TRUE(cache->reserve(1, TestCache::kWriter, ns, Tier::disk, 1).empty());
}

TEST_F(RoomTest, slots_of_an_ended_session_are_quarantined_until_its_process_has_ended) {
  const auto slots = cache->reserve(1, TestCache::kWriter, ns, Tier::host, 3);
  cache->end_session(1);
  const Place at = place_named(slots[0]);
  EXPECT_EQ(cache->memory(Tier::host).table(at).entry(at.slot).state,
            storage::SlotState::quarantined);
  EXPECT_EQ(cache->reservations().quarantined(), 3U);
  cache->abandon(1, slots[0]);
  EXPECT_FALSE(cache.commit(ns, cache.prefix(ns, 1, 1)[0], slots));
  cache->end_process({100, 2});  // the same pid, used again
  EXPECT_EQ(cache->reservations().quarantined(), 3U);
  cache->end_process(TestCache::kWriter);
  EXPECT_EQ(cache->reservations().quarantined(), 0U);
  EXPECT_EQ(cache->memory(Tier::host).used_bytes(), 0U);
}

TEST_F(RoomTest, the_reservation_of_a_live_session_is_never_taken) {
  const auto slots = cache->reserve(1, TestCache::kWriter, ns, Tier::host, 10);
  for (Token first = 1; first < 9600; first += 1000) {
    for (const auto& block : cache.prefix(ns, 10, first)) {
      const auto slot = cache->reserve(2, {200, 1}, ns, Tier::host, 1);
      if (slot.empty()) continue;
      fill_record(cache.record(slot[0]), cache.known(ns).layout, block);
      cache.commit(ns, block, slot, 2);
    }
    cache.store().complete_all();
  }
  const auto blocks = cache.prefix(ns, 10, 77000);
  for (std::size_t i = 0; i < 10; ++i) {
    fill_record(cache.record(slots[i]), cache.known(ns).layout, blocks[i]);
    EXPECT_TRUE(cache.commit(ns, blocks[i], std::span(&slots[i], 1)));
  }
}

class SmallIndexTest : public RoomTest {
 protected:
  SmallIndexTest() : RoomTest({.blocks_max = 16}) {}
};

// Every block lay in two tiers, none was taken for removal, and nothing new was cached ever after.
TEST_F(SmallIndexTest, a_full_index_makes_room_by_forgetting_the_coldest_block_in_every_tier) {
  const auto old = cache.prefix(ns, 16, 1);
  ASSERT_EQ(cache.put_all(ns, old), 16U);
  cache.store().complete_all();
  ASSERT_TRUE(cache.put(ns, cache.prefix(ns, 1, 900)[0]));
  EXPECT_EQ(cache->catalogue().size(), 16U);
  EXPECT_EQ(cache.find(old[15].key()), nullptr);
  EXPECT_EQ(in_tier(old, Tier::disk), 15U);
}

TEST_F(SmallIndexTest, a_full_index_of_leased_blocks_drops_the_commit_and_frees_its_slot) {
  const auto held = cache.prefix(ns, 16, 1);
  ASSERT_EQ(cache.put_all(ns, held), 16U);
  cache.store().complete_all();
  cache.lease(ns, held);
  const auto used = cache->memory(Tier::host).used_bytes();
  EXPECT_FALSE(cache.put(ns, cache.prefix(ns, 1, 900)[0]));
  EXPECT_EQ(cache->memory(Tier::host).used_bytes(), used);
}

}  // namespace
}  // namespace kvtier::daemon::testing
