// Buffers of the store's own.
#include "storage/store/thread/own_memory.h"

#include <algorithm>

#include "tests/storage/thread/parts.h"

namespace kvtier::storage {
namespace {

using namespace testing;

class OwnMemoryTest : public Parts {
 protected:
  OwnMemoryTest() { EXPECT_TRUE(files.open_to_write({0, 0}, 8_KiB)); }
  Result<BlockDevice::Transfer> take(std::uint64_t bytes = 8_KiB) {
    return memory.read_from(files, {0, 0}, 8_KiB, bytes);
  }
  OwnMemory memory{shared, extents.numbers(), OwnMemory::Of::place_tests};
};

TEST_F(OwnMemoryTest, EachTransferHasAPartOfItsOwnUntilItIsGivenBack) {
  std::vector<std::byte*> parts;
  for (std::uint32_t n = 0; n < OwnMemory::kPartsMax; ++n) {
    ASSERT_TRUE(memory.has_room(8_KiB));
    const auto transfer = take();
    ASSERT_TRUE(transfer);
    EXPECT_EQ(memory.part(memory.part_at(transfer->memory)).data(), transfer->memory);
    EXPECT_EQ(std::ranges::count(parts, transfer->memory), 0);
    parts.push_back(transfer->memory);
  }
  EXPECT_FALSE(memory.has_room(8_KiB));
  memory.give_back(memory.part_at(parts[2]));
  ASSERT_TRUE(memory.has_room(8_KiB));
  EXPECT_EQ(take()->memory, parts[2]);
}

TEST_F(OwnMemoryTest, ItGrowsForALargerRecordOnlyWhileNoPartIsInUse) {
  const auto small = take(4_KiB);
  ASSERT_TRUE(small);
  EXPECT_FALSE(memory.has_room(8_KiB));
  memory.give_back(memory.part_at(small->memory));
  ASSERT_TRUE(memory.has_room(8_KiB));
  const auto large = take(8_KiB);
  ASSERT_TRUE(large);
  EXPECT_EQ(memory.part(0).size(), 8_KiB);
  EXPECT_EQ(large->buffer, BufferId(5));
}

TEST_F(OwnMemoryTest, ItHasNoneWhereAnExtentHasItsNumber) {
  ASSERT_TRUE(extents.numbers().take(BufferId(5)));
  EXPECT_EQ(take().error().code, Errc::no_space);
  extents.numbers().give_back(BufferId(5));
  EXPECT_TRUE(take());
  EXPECT_FALSE(extents.numbers().take(BufferId(5)));
}

TEST_F(OwnMemoryTest, WhatIsNoPlaceOfARecordTakesNoPart) {
  EXPECT_EQ(memory.read_from(files, {0, 0}, 8_KiB, 12_KiB).error().code, Errc::invalid);
  EXPECT_EQ(memory.read_from(files, {9, 0}, 8_KiB, 8_KiB).error().code, Errc::corrupt);
  EXPECT_TRUE(memory.has_room(1_MiB)) << "no part is in use";
}

}  // namespace
}  // namespace kvtier::storage
