// The extents that the device knows as memory.
#include "storage/store/thread/ring_extents.h"

#include "tests/storage/thread/parts.h"

namespace kvtier::storage {
namespace {

using namespace testing;

class RingExtentsTest : public Parts {
 protected:
  void forget() {
    extents.forget({extent->id(), [this] { forgotten = true; }});
    tell();
  }
  bool forgotten = false;
};

TEST_F(RingExtentsTest, AnExtentIsLetGoOfAfterItsLastTransfer) {
  ASSERT_TRUE(extents.hold(extent->id()));
  ASSERT_TRUE(extents.hold(extent->id()));
  forget();
  extents.release(extent->id());
  tell();
  EXPECT_FALSE(forgotten);
  extents.release(extent->id());
  tell();
  EXPECT_TRUE(forgotten);
  EXPECT_FALSE(extents.hold(extent->id()));
}

TEST_F(RingExtentsTest, OneThatWasNeverThereIsForgottenAtOnce) {
  extents.forget({ExtentId(7), [this] { forgotten = true; }});
  tell();
  EXPECT_TRUE(forgotten);
  extents.release(ExtentId(7));
  EXPECT_FALSE(extents.hold(ExtentId(7)));
}

TEST_F(RingExtentsTest, OneThatIsForgottenWhileItGetsItsPagesWaitsForTheWorker) {
  const auto other = *make_memfd_extents(Tier::host, {})->create(ExtentId(2), {32_MiB, kSlotBytes});
  extents.add({other->id(), other->bytes(), kSlotBytes});
  extents.forget({other->id(), [this] { forgotten = true; }});
  tell();
  EXPECT_FALSE(forgotten);
  EXPECT_TRUE(extents.is_populating());
  pump_until([this] { return forgotten; });
  EXPECT_FALSE(extents.is_populating());
}

TEST_F(RingExtentsTest, ABufferNumberIsGivenToTheNextOnceItsExtentIsGone) {
  const auto number = [this](ExtentId id) {
    return extents.transfer(id, 0, kSlotBytes, {0, 0}, kSlotBytes)->buffer;
  };
  const BufferId first = number(extent->id());
  EXPECT_NE(extents.numbers().first_free(), first);
  forget();
  ASSERT_TRUE(forgotten);
  EXPECT_EQ(extents.numbers().first_free(), first);
  extents.add({ExtentId(9), extent->bytes(), kSlotBytes});
  EXPECT_EQ(number(ExtentId(9)), first);
  pump_until([this] { return !extents.is_populating(); });
}

TEST_F(RingExtentsTest, ATransferLiesInItsSlotAndItsPlaceOrIsRefused) {
  const auto transfer = extents.transfer(extent->id(), 3, 8_KiB, {2, 5}, 8_KiB);
  ASSERT_TRUE(transfer);
  EXPECT_EQ(transfer->memory, extent->slot(3).data());
  EXPECT_EQ(transfer->file, FileId(2));
  EXPECT_EQ(transfer->offset, slot_offset(5, 8_KiB));
  EXPECT_FALSE(extents.transfer(extent->id(), kSlots, 8_KiB, {2, 5}, 8_KiB)) << "past its end";
  EXPECT_FALSE(extents.transfer(extent->id(), 3, 2 * kSlotBytes, {2, 0}, 2 * kSlotBytes));
  EXPECT_FALSE(extents.transfer(extent->id(), 3, 8_KiB, {2, 1000}, 8_KiB)) << "past the segment";
}

TEST_F(RingExtentsTest, EveryMemoryFaultIsCounted) {
  extents.note_memory_fault(extent->id());
  extents.note_memory_fault(extent->id());
  EXPECT_EQ(counters.memory_faults, 2U);
}

}  // namespace
}  // namespace kvtier::storage
