// Blocks that are wanted no more, and what they leave behind while somebody holds them.
#include "daemon/cache/block_removal.h"

#include "core/record/digest.h"
#include "daemon/cache/cached_namespaces.h"
#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

constexpr TierSet kAll{7};

class BlockRemovalTest : public ::testing::Test {
 protected:
  BlockRemoval::Removed remove(BlockId block_id, TierSet tiers, bool force) {
    BlockRemoval::Removed removed;
    removal.remove({&block_id, 1}, tiers, force, removed, Removal::drop);
    return removed;
  }
  CacheParts parts;
  const std::uint16_t ns = parts.open(small_namespace("m"));
  const TestBlock block = parts.prefix(ns, 1, 1)[0];
  const BlockId id = parts.put_on_disk(ns, block);
  Pins pins{parts.catalogue, [](Tier, std::uint32_t) { return 1U << 30; }};
  BlockRemoval removal{parts.catalogue, parts.disk, parts.remote, pins, parts.placements};
  CachedNamespaces namespaces{parts.catalogue, parts.memory.host(), parts.disk, parts.placements,
                              removal,         parts.counts};
};

TEST_F(BlockRemovalTest, a_block_goes_from_the_tiers_that_were_named) {
  parts.put(ns, block);
  EXPECT_EQ(remove(id, CacheParts::kDisk, false).blocks, 1U);
  EXPECT_EQ(parts.tiers(block), CacheParts::kHost);
}

TEST_F(BlockRemovalTest, what_is_pinned_or_in_use_stays_and_is_told_apart) {
  parts.put(ns, block);
  ASSERT_EQ(pins.pin(id, Tier::host, {}), Pins::Outcome::pinned);
  EXPECT_EQ(remove(id, CacheParts::kHost, false).pinned, 1U);
  ASSERT_TRUE(parts.catalogue.hold(id, Tier::host));
  EXPECT_EQ(remove(id, CacheParts::kHost, false).in_use, 1U);
  EXPECT_TRUE(parts.tiers(block).has(Tier::host));
}

TEST_F(BlockRemovalTest, with_force_pins_end_and_what_is_held_goes_with_its_last_hold) {
  parts.put(ns, block);
  ASSERT_EQ(pins.pin(id, Tier::disk, {}), Pins::Outcome::pinned);
  ASSERT_TRUE(parts.catalogue.hold(id, Tier::host));
  EXPECT_EQ(remove(id, kAll, true).in_use, 1U);
  EXPECT_EQ(pins.blocks(Tier::disk), 0U);
  EXPECT_EQ(parts.tiers(block), CacheParts::kHost);
  EXPECT_EQ(parts.catalogue.find(ns, block.key()), kNoBlock);
  parts.catalogue.unhold(id, Tier::host);
  parts.placements.settle(id);
  EXPECT_TRUE(parts.tiers(block).empty());
}

TEST_F(BlockRemovalTest, blocks_of_other_namespaces_stay) {
  const auto other = parts.open(small_namespace("other"));
  EXPECT_EQ(removal.drop(other, kAll, Removal::drop), 0U);
  EXPECT_EQ(removal.drop(ns, kAll, Removal::drop), 1U);
}

TEST_F(BlockRemovalTest, a_namespace_is_forgotten_once_it_has_no_block_and_not_before) {
  namespaces.forget_unused();
  EXPECT_TRUE(parts.stores[0].remembers(parts.known(ns).id));
  removal.drop(ns, kAll, Removal::drop);
  namespaces.forget_unused();
  EXPECT_FALSE(namespaces.knows(encode(small_namespace("m"))));
}

TEST_F(BlockRemovalTest, a_closed_namespace_is_opened_anew_under_another_number) {
  NamespaceFilter filter;
  filter.model = "m";
  EXPECT_EQ(namespaces.close(filter), std::vector{ns});
  EXPECT_FALSE(namespaces.knows(encode(small_namespace("m"))));
  EXPECT_NE(namespaces.open(encode(small_namespace("m"))).value(), ns);
  EXPECT_TRUE(namespaces.close(filter).size() == 1) << "the new one";
}

// Records of the size of a wide namespace that claim to be of a small one.
TEST_F(BlockRemovalTest, orphans_of_the_wrong_size_go_as_their_namespace_is_opened) {
  const auto encoded = encode(small_namespace("late"));
  const auto orphan =
      parts.catalogue.namespaces().add_orphan(NamespaceId{xxh3_128(encoded)}, kWideRecordBytes);
  ASSERT_TRUE(orphan);
  const BlockId wrong = parts.catalogue.add(*orphan, prefix_of({}, 1, 500)[0].key(), {}, 0);
  MemoryTier& host = parts.memory.host();
  const Place at = *host.take(kWideRecordBytes);
  host.table(at).set_reserved(at.slot, {1});
  host.table(at).set_sealed(at.slot, {});
  host.set_block(at, wrong);
  parts.catalogue.place(wrong, Tier::host, at, {});
  EXPECT_TRUE(namespaces.open(encoded));
  EXPECT_EQ(parts.counts.faults, 1U);
  EXPECT_EQ(host.used_bytes(), 0U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
