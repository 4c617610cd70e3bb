// Drive wear as an operator reads it: bytes a day, at the rate of the last 24 hours.
#include "daemon/server/write_rate.h"

#include <gtest/gtest.h>

namespace kvtier::daemon {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kGigabyte = 1'000'000'000;

class WriteRateTest : public ::testing::Test {
 protected:
  // A second after the other, at so many bytes each.
  void pass(std::chrono::seconds time, std::uint64_t bytes_per_second) {
    for (std::chrono::seconds passed{}; passed < time; passed += 1s) {
      rate_.note(now_ += 1s, written_ += bytes_per_second);
    }
  }

  WriteRate rate_;
  WriteRate::Time now_{1h};
  std::uint64_t written_ = 0;
};

TEST_F(WriteRateTest, nothing_is_said_before_any_time_has_passed) {
  EXPECT_EQ(rate_.bytes_per_day(), 0U);
  rate_.note(now_, kGigabyte);
  EXPECT_EQ(rate_.bytes_per_day(), 0U);
}

TEST_F(WriteRateTest, the_first_minutes_are_taken_for_the_whole_day) {
  rate_.note(now_, 0);
  pass(10min, kGigabyte);
  EXPECT_EQ(rate_.bytes_per_day(), 86'400 * kGigabyte);
}

TEST_F(WriteRateTest, what_was_written_before_yesterday_does_not_count) {
  rate_.note(now_, 0);
  pass(2h, 100 * kGigabyte);
  pass(30h, 0);
  EXPECT_EQ(rate_.bytes_per_day(), 0U);
}

TEST_F(WriteRateTest, a_burst_counts_for_a_day_and_not_for_more_than_it_was) {
  rate_.note(now_, 0);
  pass(24h, 0);
  pass(60s, kGigabyte);
  const double burst = 60.0 * kGigabyte;
  EXPECT_NEAR(static_cast<double>(rate_.bytes_per_day()), burst, burst / 20);
  pass(12h, 0);
  EXPECT_NEAR(static_cast<double>(rate_.bytes_per_day()), burst, burst / 20);
  pass(14h, 0);
  EXPECT_EQ(rate_.bytes_per_day(), 0U);
}

}  // namespace
}  // namespace kvtier::daemon
