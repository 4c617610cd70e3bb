// A tier that has no free slot yet: how long a store waits, and what it says where it did not.
#include "tests/client/fixture.h"

namespace kvtier::test {
namespace {

class SlotWaitTest : public ClientTest {
 protected:
  SlotWaitTest() : pages(4, layout.record_bytes) {}
  // The daemon's tier grows while the store waits.
  std::thread grows_after(milliseconds time) {
    return std::thread([this, time] {
      std::this_thread::sleep_for(time);
      daemon.with([](auto& s) { s.slots_left = {0, 64}; });
    });
  }
  const std::vector<Token> prompt = prompt_of(64);
  RecordPages pages;
};

TEST_F(SlotWaitTest, AStoreWaitsForSlotsUntilItsOwnDeadline) {
  start_connected();
  auto grower = grows_after(milliseconds(150));
  auto write = cache->write_back(prompt, 0, pages.pages(), {}, soon());
  write.wait();
  grower.join();
  EXPECT_EQ(write.accepted(), 4U);
  EXPECT_EQ(write.dropped().total(), 0U);
}

TEST_F(SlotWaitTest, OrAsLongAsTheClientSays) {
  start_connected({.slot_wait = milliseconds(20'000)});
  auto grower = grows_after(milliseconds(150));
  auto write = cache->write_back(prompt, 0, pages.pages());
  write.wait();
  grower.join();
  EXPECT_EQ(write.accepted(), 4U);
}

TEST_F(SlotWaitTest, WhatHasNoSlotByThenIsDroppedAndSaidSo) {
  start_connected();
  const auto before = Clock::now();
  auto write = cache->write_back(prompt, 0, pages.pages(), {}, in(milliseconds(120)));
  EXPECT_FALSE(write.wait(in(milliseconds(10)))) << "its slots may come yet";
  write.wait();
  EXPECT_GE(Clock::now() - before, milliseconds(119));
  EXPECT_EQ(write.accepted(), 0U);
  EXPECT_EQ(write.dropped()[DropReason::no_slot], 4U);
  EXPECT_EQ(client->stats().dropped[DropReason::no_slot], 4U);
}

TEST_F(SlotWaitTest, ItIsGivenUpWhenTheEngineIsInAHurry) {
  start_connected();
  auto write = cache->write_back(prompt, 0, pages.pages(), {}, soon());
  write.hurry();
  EXPECT_TRUE(write.wait(soon()));
  EXPECT_EQ(write.dropped()[DropReason::no_slot], 4U);
}

TEST_F(SlotWaitTest, WithoutAConnectionNothingIsWaitedFor) {
  auto alone = Client::start({.socket = "/nowhere/kvtierd.sock"}).value();
  auto write = alone->open(ns).value()->write_back(prompt, 0, pages.pages(), {},
                                                   Clock::now() + std::chrono::hours(1));
  ASSERT_TRUE(write.wait(soon()));
  EXPECT_EQ(write.dropped()[DropReason::disconnected], 4U);
}

TEST_F(SlotWaitTest, RefusedPagesAreToldByName) {
  start_connected();
  Pages wrong = pages.pages();
  wrong.k_pages = {reinterpret_cast<void* const*>(pages.pointers.data()), 1};
  auto write = cache->write_back(prompt, 0, wrong);
  EXPECT_TRUE(write.ended());
  EXPECT_EQ(write.error()->code, Errc::invalid);
  EXPECT_EQ(write.dropped()[DropReason::failed], 4U);
}

TEST_F(SlotWaitTest, WhatTheQueueHasNoRoomForIsToldApart) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected({.write_backs_queued_max = 3});
  auto write = cache->write_back(prompt, 0, pages.pages());
  write.wait();
  EXPECT_EQ(write.accepted(), 3U);
  EXPECT_EQ(write.dropped()[DropReason::queue_full], 1U);
}

TEST_F(SlotWaitTest, ATimeOfMoreThanAnHourIsRefused) {
  EXPECT_EQ(Client::start({.slot_wait = std::chrono::hours(2)}).error().code, Errc::invalid);
  EXPECT_EQ(Client::start({.slot_wait = milliseconds(-1)}).error().code, Errc::invalid);
}

}  // namespace
}  // namespace kvtier::test
