// The scrub: what it checks, what it forgets, and how fast it goes.
#include "daemon/server/scrubber.h"

#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

class ScrubTest : public ::testing::Test {
 protected:
  ScrubTest() : cache({.disk_slots = 48, .disks = 2}), ns(cache.open(small_namespace("m"))) {}

  Scrubber scrubber(std::uint64_t bytes_per_second = 0) {
    Scrubber::Options options;
    options.bytes_per_second = bytes_per_second;
    options.now = [this] { return now; };
    return {options, cache->disk(), cache->catalogue()};
  }

  TestCache cache;
  const std::uint16_t ns;
  Scrubber::Time now{std::chrono::hours(1)};
};

TEST_F(ScrubTest, every_record_of_every_disk_is_checked_a_few_at_a_time) {
  const auto blocks = cache.prefix(ns, 20, 1);
  cache.put_on_disk(ns, blocks);
  const auto order = cache.order(Tier::disk, kRecordBytes, 0);
  Scrubber scrub = scrubber();
  scrub.start();
  EXPECT_EQ(cache.store().under_way().size(), storage::kScrubsMax);
  now += std::chrono::seconds(3);
  cache.store().complete_all();
  EXPECT_FALSE(scrub.running());
  EXPECT_EQ(scrub.last().records, 20U);
  EXPECT_EQ(scrub.last().bytes, 20 * kRecordBytes);
  EXPECT_EQ(scrub.last().corrupt + scrub.last().skipped, 0U);
  EXPECT_EQ(scrub.last().ended - scrub.last().began, std::chrono::seconds(3));
  EXPECT_EQ(cache.order(Tier::disk, kRecordBytes, 0), order);
}

TEST_F(ScrubTest, a_record_that_does_not_hold_is_forgotten_and_its_slot_retired) {
  const auto blocks = cache.prefix(ns, 8, 1);
  cache.put_on_disk(ns, blocks);
  cache.store().spoil(blocks[5].key());
  const std::uint32_t disk = cache.disk_of(blocks[5]);
  const auto used = cache->disk().devices()[disk]->space().bytes_in_use();
  Scrubber scrub = scrubber();
  scrub.start();
  cache.store().complete_all();
  EXPECT_EQ(scrub.last().records, 8U);
  EXPECT_EQ(scrub.last().corrupt, 1U);
  EXPECT_EQ(cache.find(blocks[5].key()), nullptr);
  EXPECT_FALSE(cache.store().indexed(blocks[5].key()));
  EXPECT_EQ(cache->disk().devices()[disk]->counts.corrupt, 1U);
  EXPECT_EQ(cache->disk().devices()[disk]->space().bytes_in_use(), used - kRecordBytes);
}

// Its slot may by then hold another record, or half of one.
TEST_F(ScrubTest, a_slot_that_lost_its_block_during_the_read_is_skipped_not_corrupt) {
  const auto blocks = cache.prefix(ns, 2, 1);
  cache.put_on_disk(ns, blocks);
  Scrubber scrub = scrubber();
  scrub.start();
  const auto reads = cache.store().under_way();
  ASSERT_EQ(reads.size(), 2U);
  cache->drop(ns, TierSet{}.with(Tier::disk));
  for (const auto read : reads) cache.store().complete(read, FakeStore::Fate::corrupt);
  cache.store().complete_all();
  EXPECT_EQ(scrub.last().records, 0U);
  EXPECT_EQ(scrub.last().corrupt, 0U);
  EXPECT_EQ(scrub.last().skipped, 2U);
}

TEST_F(ScrubTest, the_blocks_of_a_disk_that_is_offline_are_skipped) {
  cache.put_on_disk(ns, cache.prefix(ns, 8, 1));
  cache.store()[0].set_online(false);
  Scrubber scrub = scrubber();
  scrub.start();
  cache.store().complete_all();
  EXPECT_EQ(scrub.last().records, 4U);
  EXPECT_EQ(scrub.last().skipped, 4U);
}

TEST_F(ScrubTest, the_background_pass_keeps_to_its_rate_and_comes_once_a_day) {
  cache.put_on_disk(ns, cache.prefix(ns, 12, 1));
  Scrubber scrub = scrubber(2 * kRecordBytes);
  scrub.tick();
  for (int second = 1; second <= 5; ++second) {
    now += std::chrono::seconds(1);
    scrub.tick();
    cache.store().complete_all();
    EXPECT_LE(scrub.current().records, 2U * static_cast<unsigned>(second) + 1);
  }
  for (int second = 0; second < 5; ++second) {
    now += std::chrono::seconds(1);
    scrub.tick();
    cache.store().complete_all();
  }
  EXPECT_EQ(scrub.passes(), 1U);
  EXPECT_EQ(scrub.last().records, 12U);
  now += std::chrono::hours(23);
  scrub.tick();
  EXPECT_FALSE(scrub.running());
  now += std::chrono::hours(1);
  scrub.tick();
  EXPECT_TRUE(scrub.running());
  cache.store().complete_all();
}

TEST_F(ScrubTest, one_that_is_asked_for_overtakes_the_background_pass) {
  cache.put_on_disk(ns, cache.prefix(ns, 12, 1));
  Scrubber scrub = scrubber(1);
  scrub.tick();
  scrub.start();
  cache.store().complete_all();
  EXPECT_FALSE(scrub.running());
  EXPECT_EQ(scrub.last().records, 12U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
