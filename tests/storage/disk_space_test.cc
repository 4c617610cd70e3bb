#include "storage/store/disk_space.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "core/base/units.h"

namespace kvtier::storage {
namespace {

using Slot = std::pair<std::uint32_t, std::uint32_t>;

TEST(DiskSpace, SegmentsAndTheirHeadersStayBelowTheCapacity) {
  DiskSpace space(10_MiB + 5, 1_MiB);
  std::set<Slot> slots;
  while (const auto at = space.allocate(64_KiB)) {
    EXPECT_TRUE(slots.insert({at->segment, at->slot}).second);
    EXPECT_LE(4096 + (at->slot + 1) * 64_KiB, 1_MiB);
  }
  EXPECT_EQ(slots.size(), 10 * 15u);
  EXPECT_EQ(space.bytes_in_use(), 150 * 64_KiB);
  EXPECT_EQ(space.bytes_taken(), 10_MiB);
}

TEST(DiskSpace, RecordLargerThanASegmentNeverFits) {
  DiskSpace space(10_MiB, 1_MiB);
  EXPECT_FALSE(space.allocate(1_MiB));
  EXPECT_TRUE(space.allocate(1_MiB - 4_KiB));
}

TEST(DiskSpace, EmptiedSegmentIsGivenToAnotherSlotSize) {
  DiskSpace space(1_MiB, 1_MiB);
  const auto first = space.allocate(64_KiB);
  EXPECT_FALSE(space.allocate(128_KiB));
  space.free(*first);
  const auto second = space.allocate(128_KiB);
  ASSERT_TRUE(second);
  EXPECT_EQ(space.slot_bytes_of(second->segment), 128_KiB);
}

TEST(DiskSpace, RetiredSlotIsNeverGivenOutAndKeepsItsSegment) {
  DiskSpace space(1_MiB, 1_MiB);
  const auto bad = space.allocate(64_KiB);
  space.retire(*bad);
  EXPECT_EQ(space.bytes_in_use(), 0u);
  EXPECT_FALSE(space.allocate(128_KiB));
  int slots = 0;
  while (const auto at = space.allocate(64_KiB)) {
    EXPECT_NE(*at, *bad);
    ++slots;
  }
  EXPECT_EQ(slots, 14);
}

TEST(DiskSpace, BadPlaceIsLeftOutOfEverySlotSize) {
  DiskSpace space(1_MiB, 1_MiB);
  space.mark_bad({0, 4_KiB + 5 * 64_KiB, 64_KiB});
  std::set<std::uint32_t> given;
  while (const auto at = space.allocate(64_KiB)) given.insert(at->slot);
  EXPECT_EQ(given.size(), 14U);
  EXPECT_FALSE(given.contains(5));
  for (const std::uint32_t slot : given) space.free({0, slot});
  given.clear();
  while (const auto at = space.allocate(128_KiB)) given.insert(at->slot);
  EXPECT_EQ(given, (std::set<std::uint32_t>{0, 1, 3, 4, 5, 6}));
  EXPECT_EQ(space.bad_bytes(), 64_KiB);
}

TEST(DiskSpace, SlotThatIsFoundBadInUseIsLeftOutOnceItIsFree) {
  DiskSpace space(1_MiB, 1_MiB);
  const auto at = space.allocate(64_KiB);
  space.mark_bad({at->segment, 4_KiB + at->slot * 64_KiB, 64_KiB});
  EXPECT_EQ(space.bytes_in_use(), 64_KiB);
  space.free(*at);
  EXPECT_EQ(space.bytes_in_use(), 0U);
  for (int i = 0; i < 14; ++i) EXPECT_NE(space.allocate(64_KiB), at);
  EXPECT_FALSE(space.allocate(64_KiB));
}

TEST(DiskSpace, RecordInABadPlaceIsNotClaimed) {
  DiskSpace space(2_MiB, 1_MiB);
  space.mark_bad({1, 4_KiB, 64_KiB});
  EXPECT_TRUE(space.claim({1, 1}, 64_KiB));
  EXPECT_EQ(space.claim({1, 0}, 64_KiB).error().code, Errc::corrupt);
}

TEST(DiskSpace, SegmentWithoutAGoodSlotIsPassedOver) {
  DiskSpace space(2_MiB, 1_MiB);
  space.mark_bad({0, 4_KiB, 1_MiB - 4_KiB});
  const auto at = space.allocate(512_KiB);
  ASSERT_TRUE(at);
  EXPECT_EQ(at->segment, 1U);
  EXPECT_FALSE(space.allocate(512_KiB));
}

TEST(DiskSpace, BadPlacePastTheCapacityIsNoFault) {
  DiskSpace space(1_MiB, 1_MiB);
  space.mark_bad({7, 4_KiB, 64_KiB});
  EXPECT_TRUE(space.allocate(64_KiB));
}

TEST(DiskSpace, ClaimRefusesWhatCannotBe) {
  DiskSpace space(2_MiB, 1_MiB);
  EXPECT_TRUE(space.claim({1, 3}, 64_KiB));
  EXPECT_EQ(space.claim({1, 3}, 64_KiB).error().code, Errc::corrupt);
  EXPECT_EQ(space.claim({1, 4}, 128_KiB).error().code, Errc::corrupt);
  EXPECT_EQ(space.claim({2, 0}, 64_KiB).error().code, Errc::corrupt);
  EXPECT_EQ(space.claim({0, 15}, 64_KiB).error().code, Errc::corrupt);
  EXPECT_EQ(space.claim({0, 0}, 0).error().code, Errc::corrupt);
}

TEST(DiskSpace, SlotThatIsNotInUseCannotBeFreed) {
  DiskSpace space(2_MiB, 1_MiB);
  const auto at = space.allocate(64_KiB);
  space.free(*at);
  EXPECT_DEATH(space.free(*at), "check failed");
}

TEST(DiskSpace, RandomUseAgreesWithAModelAndNeverPassesTheCap) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    DiskSpace space(8_MiB, 1_MiB);
    std::map<Slot, std::uint64_t> used;
    const std::uint64_t sizes[] = {8_KiB, 20_KiB, 128_KiB, 1_MiB - 4_KiB};
    for (int step = 0; step < 5000; ++step) {
      if (random() % 100 < (step / 500 % 2 == 0 ? 70u : 30u)) {
        const std::uint64_t size = sizes[random() % 4];
        if (const auto at = space.allocate(size)) {
          ASSERT_TRUE(used.emplace(Slot(at->segment, at->slot), size).second);
          ASSERT_EQ(space.slot_bytes_of(at->segment), size);
        }
      } else if (!used.empty()) {
        const auto victim = std::next(used.begin(), random() % used.size());
        space.free({victim->first.first, victim->first.second});
        used.erase(victim);
      }
      std::uint64_t bytes = 0;
      std::map<std::uint32_t, std::uint64_t> size_of;
      for (const auto& [slot, size] : used) {
        bytes += size;
        ASSERT_EQ(size_of.emplace(slot.first, size).first->second, size);
      }
      ASSERT_EQ(space.bytes_in_use(), bytes);
      ASSERT_LE(space.bytes_taken(), space.capacity_bytes());
    }
    DiskSpace recovered(8_MiB, 1_MiB);
    for (const auto& [slot, size] : used)
      ASSERT_TRUE(recovered.claim({slot.first, slot.second}, size));
    ASSERT_EQ(recovered.bytes_in_use(), space.bytes_in_use());
    while (const auto at = recovered.allocate(8_KiB))
      ASSERT_FALSE(used.contains({at->segment, at->slot}));
  }
}

}  // namespace
}  // namespace kvtier::storage
