// Blocks in slots: catalogue, tier and slot table say the same.
#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

using storage::SlotState;

class PlacementsTest : public ::testing::Test {
 protected:
  CacheParts parts;
  const std::uint16_t ns = parts.open(small_namespace("m"));
  const TestBlock block = parts.prefix(ns, 1, 1)[0];
  MemoryTier& host = parts.memory.host();
};

TEST_F(PlacementsTest, a_sealed_block_is_in_the_table_the_tier_and_the_catalogue_until_it_goes) {
  const BlockId id = parts.put(ns, block);
  const Place at = parts.catalogue.block(id).places[index_of(Tier::host)];
  EXPECT_EQ(host.block_at(at), id);
  EXPECT_EQ(host.table(at).entry(at.slot).state, SlotState::sealed);
  EXPECT_EQ(host.table(at).entry(at.slot).key, block.key());
  parts.placements.remove(id, Tier::host, Removal::drop);
  EXPECT_EQ(host.block_at(at), kNoBlock);
  EXPECT_EQ(host.table(at).entry(at.slot).state, SlotState::free);
  EXPECT_TRUE(parts.tiers(block).empty());
  EXPECT_EQ(host.used_bytes(), 0U);
}

TEST_F(PlacementsTest, a_namespace_is_remembered_once_and_with_its_first_block) {
  std::vector<NamespaceId> remembered;
  parts.placements.on_namespace = [&](const KnownNamespace& of) { remembered.push_back(of.id); };
  EXPECT_FALSE(parts.stores[0].remembers(parts.known(ns).id));
  for (const TestBlock& each : parts.prefix(ns, 3, 1)) parts.put(ns, each);
  EXPECT_EQ(remembered, std::vector{parts.known(ns).id});
  EXPECT_TRUE(parts.stores[0].remembers(parts.known(ns).id));
}

TEST_F(PlacementsTest, a_doomed_block_goes_from_every_tier_once_nobody_holds_it) {
  const BlockId id = parts.put_on_disk(ns, block);
  parts.put(ns, block);
  ASSERT_TRUE(parts.catalogue.hold(id, Tier::host));
  parts.catalogue.doom(id);
  parts.placements.settle(id);
  EXPECT_EQ(parts.tiers(block), CacheParts::kHost.with(Tier::disk));
  parts.catalogue.unhold(id, Tier::host);
  parts.placements.settle(id);
  EXPECT_TRUE(parts.tiers(block).empty());
}

TEST_F(PlacementsTest, of_a_spoilt_block_only_what_does_not_hold_goes) {
  const BlockId id = parts.put_on_disk(ns, block);
  parts.put(ns, block);
  parts.catalogue.spoil(id, CacheParts::kHost);
  parts.placements.settle(id);
  EXPECT_EQ(parts.tiers(block), CacheParts::kDisk);
}

}  // namespace
}  // namespace kvtier::daemon::testing
