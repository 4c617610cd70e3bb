// Slots between the daemon and the pools.
#include "client/session/thread/slot_exchange.h"

#include "client/session/limits.h"
#include "tests/client/thread/parts.h"

namespace kvtier::session {
namespace {

class SlotExchangeTest : public SessionParts {
 protected:
  SlotExchangeTest() {
    EXPECT_TRUE(map_extent());
    ns = opened();
    slots_changed = 0;
  }
  std::optional<ReservedSlot> take() { return ns->pool(Tier::host).take(Clock::now()); }
  Namespaces::Entry ns;
};

TEST_F(SlotExchangeTest, SlotsThatWereGrantedAreInThePoolWithTheirConnectionAndRight) {
  ASSERT_TRUE(reserve(ns, {slot_name(0), slot_name(1)}));
  EXPECT_EQ(slots_changed, 1);
  EXPECT_EQ(slots.asked(), 0U);
  EXPECT_FALSE(ns->pool(Tier::host).expected());
  const auto slot = take();
  ASSERT_TRUE(slot);
  EXPECT_EQ(slot->ref.name, slot_name(0));
  EXPECT_EQ(slot->connection, conversation.connection());
  EXPECT_EQ(slot->right, right);
  EXPECT_TRUE(slots.next_shed());
}

TEST_F(SlotExchangeTest, SlotsInNoExtentOrMoreThanWereAskedForAreMalformed) {
  EXPECT_EQ(reserve(ns, {slot_name(0, kExtent + 1)}).error().code, Errc::malformed);
  ns->pool(Tier::host).expect();
  slots.ask(ns, Tier::host, 1);
  said();
  const auto more = answer([](wire::Message::Builder m) { m.initReserved().initSlots(2); });
  EXPECT_EQ(more.error().code, Errc::malformed);
}

TEST_F(SlotExchangeTest, SlotsThatNobodyUsesAnyMoreGoBackAtOnce) {
  ns->users = 0;
  ASSERT_TRUE(reserve(ns, {slot_name(0), slot_name(1)}));
  EXPECT_EQ(abandoned(), (std::vector{slot_name(0), slot_name(1)}));
  EXPECT_FALSE(take());
}

TEST_F(SlotExchangeTest, WithoutAConnectionAnExpectationEndsWithoutSlots) {
  end();
  ns->pool(Tier::host).expect();
  slots.ask(ns, Tier::host, 4);
  EXPECT_FALSE(ns->pool(Tier::host).expected());
}

TEST_F(SlotExchangeTest, ARecallIsAnsweredAfterWhatIsGivenBack) {
  ASSERT_TRUE(reserve(ns, {slot_name(0), slot_name(1), slot_name(2)}));
  ASSERT_TRUE(event([](wire::Message::Builder m) {
    auto recall = m.initRecall();
    recall.setNumber(5);
    auto keep = recall.initKeeps(1)[0];
    keep.setNs(kHandle);
    keep.setTier(static_cast<std::uint8_t>(Tier::host));
    keep.setSlots(1);
  }));
  EXPECT_EQ(said(), (std::vector{Which::ABANDON, Which::RETURNED}));
  EXPECT_TRUE(take());
  EXPECT_FALSE(take());
}

TEST_F(SlotExchangeTest, TheDaemonHearsThatOldSlotsAreLetGoOnceNobodyCanWriteToThem) {
  ASSERT_TRUE(reserve(ns, {slot_name(0)}));
  auto writing = take();
  end();
  begin();
  slots.look_after(Clock::now());
  EXPECT_TRUE(said().empty()) << "somebody may still be writing";
  writing.reset();
  slots.look_after(Clock::now());
  EXPECT_EQ(said(), std::vector{Which::LET_GO});
  slots.look_after(Clock::now());
  EXPECT_TRUE(said().empty()) << "it is said once";
}

TEST_F(SlotExchangeTest, WhatLiesIdleGoesBackButForAPart) {
  ASSERT_TRUE(reserve(ns, {slot_name(0), slot_name(1), slot_name(2), slot_name(3), slot_name(4)}));
  slots.look_after(Clock::now());
  EXPECT_TRUE(said().empty());
  slots.look_after(Clock::now() + kSlotsIdleMax);
  EXPECT_EQ(abandoned().size(), 3U);
}

}  // namespace
}  // namespace kvtier::session
