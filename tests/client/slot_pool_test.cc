// Slots at hand, and which of them go back.
#include "client/session/slot_pool.h"

#include <gtest/gtest.h>

#include "client/session/limits.h"

namespace kvtier::session {
namespace {

constexpr std::uint64_t name(std::uint32_t extent, std::uint32_t slot) {
  return std::uint64_t{extent} << 32 | slot;
}
std::vector<ReservedSlot> slots(std::initializer_list<std::uint64_t> names) {
  std::vector<ReservedSlot> made;
  for (const std::uint64_t each : names) made.push_back({{each, nullptr}, nullptr, nullptr});
  return made;
}
std::vector<std::uint64_t> names(const std::vector<ReservedSlot>& slots) {
  std::vector<std::uint64_t> found;
  for (const ReservedSlot& slot : slots) found.push_back(slot.ref.name);
  return found;
}

const Clock::time_point kStart{std::chrono::hours(1)};

TEST(SlotPool, ANumberThatMayStayAreTheFirstToBeUsed) {
  SlotPool pool(8);
  pool.arrive(slots({name(1, 0), name(1, 1), name(1, 2), name(1, 3)}), kStart);
  EXPECT_EQ(names(pool.shed(3)), std::vector{name(1, 3)});
  EXPECT_EQ(pool.take(kStart)->ref.name, name(1, 0));
  EXPECT_EQ(pool.shed(0).size(), 2U);
  EXPECT_FALSE(pool.take(kStart));
}

TEST(SlotPool, ThoseOfOneExtentGoBackAndTheOthersStayInOrder) {
  SlotPool pool(8);
  pool.arrive(slots({name(1, 0), name(2, 1), name(1, 2), name(3, 3)}), kStart);
  EXPECT_EQ(names(pool.shed_extent(1)), (std::vector{name(1, 0), name(1, 2)}));
  EXPECT_EQ(pool.take(kStart)->ref.name, name(2, 1));
  EXPECT_EQ(pool.take(kStart)->ref.name, name(3, 3));
}

TEST(SlotPool, WhatNobodyTakesForAWhileGoesBackButForAPart) {
  SlotPool pool(8);
  pool.arrive(slots({name(1, 0), name(1, 1), name(1, 2), name(1, 3), name(1, 4)}), kStart);
  EXPECT_TRUE(pool.has_surplus());
  EXPECT_TRUE(pool.shed_idle(kStart + kSlotsIdleMax - milliseconds(1)).empty());
  ASSERT_TRUE(pool.take(kStart + milliseconds(100)));
  EXPECT_TRUE(pool.shed_idle(kStart + kSlotsIdleMax).empty()) << "one was taken since";
  EXPECT_EQ(pool.shed_idle(kStart + milliseconds(100) + kSlotsIdleMax).size(), 2U);
  EXPECT_FALSE(pool.has_surplus());
  EXPECT_TRUE(pool.take(kStart)) << "a part is kept";
}

// Its own slots were all that was due to it, and it asked no more until long after they were
// blocks.
TEST(SlotPool, OnceSlotsHaveBecomeBlocksItAsksAgainAtOnce) {
  SlotPool pool(8);
  ASSERT_EQ(pool.claim(kStart), 8U);
  pool.arrive({}, kStart);
  EXPECT_EQ(pool.claim(kStart), 0U);
  pool.committed();
  ASSERT_EQ(pool.claim(kStart), 8U);
  // The answer is to what was asked before the commit.
  pool.committed();
  pool.arrive({}, kStart);
  EXPECT_EQ(pool.claim(kStart), 8U);
}

TEST(SlotPool, ThereIsHopeWhileSlotsComeOrAreFilled) {
  SlotPool pool(8);
  EXPECT_FALSE(pool.hopeful(kStart));
  pool.claim(kStart);
  EXPECT_TRUE(pool.hopeful(kStart));
  pool.arrive(slots({name(1, 0)}), kStart);
  EXPECT_FALSE(pool.hopeful(kStart));
  ASSERT_TRUE(pool.take(kStart));
  EXPECT_TRUE(pool.hopeful(kStart));
  pool.filled(kStart);
  EXPECT_TRUE(pool.hopeful(kStart));
  EXPECT_FALSE(pool.hopeful(kStart + kSlotLinger));
}

}  // namespace
}  // namespace kvtier::session
