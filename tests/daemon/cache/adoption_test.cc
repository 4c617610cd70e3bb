// Slot tables of an earlier daemon become blocks and quarantined slots.
#include "daemon/cache/adoption.h"

#include "core/record/digest.h"
#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

using storage::SlotState;

class AdoptionTest : public ::testing::Test {
 protected:
  AdoptionTest() {
    for (const auto* of : {&memory, &device_memory}) {
      const ExtentId number(static_cast<std::uint32_t>(left.extents.size() + 1));
      auto extent = (*of)->create(number, {4 * kRecordBytes, kRecordBytes, 0});
      EXPECT_TRUE(extent);
      left.extents.push_back(std::move(*extent));
    }
    left.encoding = [this](const NamespaceId& asked) {
      return asked == id ? std::span<const std::byte>(encoded) : std::span<const std::byte>();
    };
  }
  void seal(std::uint32_t slot, const TestBlock& block, std::uint64_t stamp,
            std::uint32_t flags = 0, std::size_t extent = 0) {
    storage::SlotEntry entry{};
    entry.ns = id;
    entry.key = block.key();
    entry.parent = block.identity.parent;
    entry.block_index = block.identity.block_index;
    entry.last_access = stamp;
    storage::SlotTable& table = left.extents[extent]->table();
    table.set_reserved(slot, {1});
    table.set_sealed(slot, entry);
    table.set_flags(slot, flags);
  }
  Adoption::Adopted adopt() {
    Adoption adoption(parts.catalogue, parts.memory, parts.placements, namespaces, reservations);
    return adoption.adopt(std::move(left));
  }

  const std::vector<std::byte> encoded = encode(small_namespace("m"));
  const NamespaceId id{xxh3_128(encoded)};
  const std::vector<TestBlock> blocks = prefix_of(id, 2, 1);
  std::unique_ptr<storage::MemoryExtents> memory = storage::make_memfd_extents(Tier::host, {});
  std::unique_ptr<storage::MemoryExtents> device_memory =
      storage::make_memfd_extents(Tier::device, {});
  CacheParts parts;
  Pins pins{parts.catalogue, [](Tier, std::uint32_t) { return 1U << 30; }};
  BlockRemoval removal{parts.catalogue, parts.disk, parts.remote, pins, parts.placements};
  CachedNamespaces namespaces{parts.catalogue, parts.memory.host(), parts.disk, parts.placements,
                              removal,         parts.counts};
  Reservations reservations;
  Adoption::Left left;
};

TEST_F(AdoptionTest, sealed_slots_become_blocks_and_the_clock_goes_on_past_their_stamps) {
  seal(0, blocks[0], 70);
  seal(1, blocks[1], 70, storage::kDiskOwed);
  const auto adopted = adopt();
  const auto ns = parts.catalogue.namespaces().find(id);
  ASSERT_TRUE(ns);
  for (const TestBlock& block : blocks) EXPECT_NE(parts.catalogue.find(*ns, block.key()), kNoBlock);
  EXPECT_EQ(parts.catalogue.clock(), 71U);
  ASSERT_EQ(adopted.owed.size(), 1U);
  EXPECT_EQ(parts.catalogue.block(adopted.owed[0].first).key, blocks[1].key());
  const BlockId first_to_go = parts.catalogue.oldest(Tier::host);
  EXPECT_EQ(parts.catalogue.block(first_to_go).key, blocks[1].key()) << "tails before heads";
}

// As whoever is killed between the two leaves it.
TEST_F(AdoptionTest, of_two_tiers_stamps_the_later_is_the_blocks_in_both) {
  constexpr std::size_t kInHost = 0, kOnDevice = 1;
  const auto other = prefix_of(id, 1, 50'000)[0];
  seal(0, blocks[0], 90, 0, kOnDevice);
  seal(0, blocks[0], 70, 0, kInHost);
  seal(1, other, 80, 0, kInHost);
  adopt();
  const BlockId first_to_go = parts.catalogue.oldest(Tier::host);
  EXPECT_EQ(parts.catalogue.block(first_to_go).key, other.key());
  EXPECT_EQ(parts.catalogue.block(parts.catalogue.oldest(Tier::device)).last_access, 90U);
}

TEST_F(AdoptionTest, a_second_slot_of_a_key_is_freed) {
  seal(0, blocks[0], 70);
  seal(1, blocks[0], 80);
  adopt();
  EXPECT_EQ(parts.catalogue.counts(Tier::host).blocks, 1U);
  EXPECT_EQ(parts.memory.host().used_bytes(), kRecordBytes);
}

TEST_F(AdoptionTest, a_slot_that_somebody_may_be_writing_to_is_quarantined_for_whoever_that_is) {
  left.extents[0]->table().set_reserved(2, {300, 9, 5});
  const auto adopted = adopt();
  EXPECT_EQ(adopted.writers, (std::vector<ProcessId>{{300, 9}}));
  EXPECT_EQ(reservations.quarantined(), 1U);
  EXPECT_TRUE(reservations.holds({300, 9}));
  EXPECT_EQ(parts.memory.host().table({1, 2}).entry(2).state, SlotState::quarantined);
}

}  // namespace
}  // namespace kvtier::daemon::testing
