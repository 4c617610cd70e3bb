// Records of different sizes in one tier: age decides what goes, and nothing goes for nothing.
#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

class SizesTest : public ::testing::Test {
 protected:
  static std::vector<TestBlock> blocks_of(CacheParts& parts, std::uint16_t ns, std::size_t count,
                                          Token first = 1) {
    std::vector<TestBlock> blocks;
    for (; blocks.size() < count; first += 1000) {
      const auto prefix = parts.prefix(ns, std::min<std::size_t>(count - blocks.size(), 10), first);
      blocks.insert(blocks.end(), prefix.begin(), prefix.end());
    }
    return blocks;
  }
  static std::size_t in_tier(CacheParts& parts, std::span<const TestBlock> blocks, Tier tier) {
    std::size_t there = 0;
    for (const auto& block : blocks) there += parts.tiers(block).has(tier) ? 1 : 0;
    return there;
  }
  // How many of 400 wide blocks stay, one after the other put into a tier that is full of others
  // which nobody uses, and how many in an empty one.
  struct Kept {
    std::size_t of_full, of_empty;
  };
  template <class Put>
  static Kept kept(Tier tier, std::size_t full, Put&& put) {
    Kept kept{};
    for (const bool empty : {true, false}) {
      CacheParts parts;
      const auto ns = parts.open(small_namespace("m"));
      const auto wide = parts.open(small_namespace("w", true));
      if (!empty) {
        for (const auto& block : blocks_of(parts, ns, full)) put(parts, ns, block);
        EXPECT_EQ(parts.catalogue.counts(tier).blocks, full);
      }
      const auto blocks = blocks_of(parts, wide, 400);
      for (const auto& block : blocks) put(parts, wide, block);
      (empty ? kept.of_empty : kept.of_full) = in_tier(parts, blocks, tier);
    }
    return kept;
  }

  // The first of each segment.
  std::map<std::uint32_t, BlockId> put_on_disk(std::span<const TestBlock> blocks) {
    std::map<std::uint32_t, BlockId> first;
    for (const auto& block : blocks) {
      const BlockId id = parts.put_on_disk(ns, block);
      first.try_emplace(parts.catalogue.block(id).places[index_of(Tier::disk)].container, id);
    }
    return first;
  }

  CacheParts parts;
  const std::uint16_t ns = parts.open(small_namespace("m"));
  const std::uint16_t wide = parts.open(small_namespace("w", true));
};

TEST_F(SizesTest, in_memory_a_new_size_has_what_one_that_nobody_uses_had) {
  const auto kept = SizesTest::kept(
      Tier::host, 40, [](CacheParts& in, auto of, const auto& block) { in.put(of, block); });
  EXPECT_GE(kept.of_full, kept.of_empty * 9 / 10) << "of " << kept.of_empty;
}

TEST_F(SizesTest, on_disk_a_new_size_has_what_one_that_nobody_uses_had) {
  const auto kept = SizesTest::kept(Tier::disk, 96, [](CacheParts& in, auto of, const auto& block) {
    in.put_on_disk(of, block);
  });
  EXPECT_GE(kept.of_full, kept.of_empty * 9 / 10) << "of " << kept.of_empty;
}

TEST_F(SizesTest, two_sizes_in_use_do_not_take_each_others_extents_in_turns) {
  const auto small = blocks_of(parts, ns, 400), big = blocks_of(parts, wide, 400);
  const auto emptied = [&] {
    return parts.catalogue.counts(Tier::host)
        .removals[static_cast<std::size_t>(Removal::other_size)];
  };
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < small.size(); ++i) {
    parts.put(ns, small[i]);
    parts.put(wide, big[i]);
    if (i == small.size() / 2) before = emptied();
  }
  EXPECT_GT(in_tier(parts, small, Tier::host), 0U);
  EXPECT_GT(in_tier(parts, big, Tier::host), 0U);
  EXPECT_LE(emptied() - before, 16U) << "one extent in 200 rounds, whose blocks are all replaced";
}

TEST_F(SizesTest, what_is_used_is_not_taken_for_a_size_that_is_new) {
  const auto small = blocks_of(parts, ns, 40);
  const auto ids = parts.put_all(ns, small);
  std::size_t put = 0;
  for (const auto& block : blocks_of(parts, wide, 100)) {
    const auto stamp = parts.catalogue.tick();
    for (const BlockId id : ids) {
      if (parts.catalogue.block(id).tiers.has(Tier::host)) {
        parts.catalogue.touch({&id, 1});
        parts.catalogue.set_last_access(id, stamp);
      }
    }
    put += parts.put(wide, block) != kNoBlock ? 1 : 0;
  }
  EXPECT_EQ(put, 100U);
  EXPECT_EQ(in_tier(parts, small, Tier::host), 24U) << "one extent went, for the first of them";
}

// Ninety-six became six, and the wide one was not stored.
TEST_F(SizesTest, where_each_segment_has_a_block_that_is_held_nothing_goes) {
  const auto small = blocks_of(parts, ns, 96);
  const auto first_of_segment = put_on_disk(small);
  for (const auto& [segment, id] : first_of_segment) {
    ASSERT_TRUE(parts.catalogue.hold(id, Tier::disk));
  }
  const auto block = parts.prefix(wide, 1, 1)[0];
  parts.put_on_disk(wide, block);
  EXPECT_EQ(in_tier(parts, small, Tier::disk), 96U);
  EXPECT_FALSE(parts.tiers(block).has(Tier::disk));
  // Of one that nobody holds any more all goes, and of the others nothing, wherever it is.
  parts.catalogue.unhold(first_of_segment.rbegin()->second, Tier::disk);
  parts.put_on_disk(wide, block);
  EXPECT_EQ(in_tier(parts, small, Tier::disk), 80U);
  EXPECT_TRUE(parts.tiers(block).has(Tier::disk));
}

// Ninety became none.
TEST_F(SizesTest, where_each_segment_has_a_slot_that_is_bad_nothing_goes) {
  const auto small = blocks_of(parts, ns, 96);
  const auto first_of_segment = put_on_disk(small);
  for (const auto& [segment, id] : first_of_segment)
    parts.disk.retire(id, make_error(Errc::corrupt, "planted"));
  parts.stores.complete_all();
  const auto block = parts.prefix(wide, 1, 1)[0];
  parts.put_on_disk(wide, block);
  EXPECT_EQ(in_tier(parts, small, Tier::disk), 90U);
  EXPECT_FALSE(parts.tiers(block).has(Tier::disk));
}

}  // namespace
}  // namespace kvtier::daemon::testing
