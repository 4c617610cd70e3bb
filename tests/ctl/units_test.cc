#include "core/terminal/units.h"

#include <gtest/gtest.h>

#include "core/base/sizes.h"

namespace kvtier::ctl {
namespace {

TEST(UnitsTest, sizes_are_read_as_they_are_written_and_nonsense_is_named) {
  EXPECT_EQ(parse_size("0").value(), 0U);
  EXPECT_EQ(parse_size("1000").value(), 1000U);
  for (const char* four : {"4GiB", "4 GiB", "4G", "4g", "4096MiB", "4.0GiB", "4194304K"})
    EXPECT_EQ(parse_size(four).value(), 4ULL << 30) << four;
  EXPECT_EQ(parse_size("2.5GiB").value(), 5ULL << 29);
  EXPECT_EQ(parse_size("0.5 TiB").value(), 1ULL << 39);
  EXPECT_EQ(parse_size("2GB").value(), 2'000'000'000ULL / 4096 * 4096);
  EXPECT_EQ(parse_size("1.1MiB").value(), (11ULL << 20) / 10 / 4096 * 4096);
  for (const char* wrong : {"", "GiB", "-1", "4.GiB", ".5GiB", "1.5", "1.5B", "99999999TiB",
                            "4GiBx", "4 cows", "4Gib ", "4 PiB", "4e9", "0x10", "1,5GiB"}) {
    const auto parsed = parse_size(wrong);
    ASSERT_FALSE(parsed) << wrong;
    for (const char* named : {"64MiB", "2.5GiB", "TiB", "KB"})
      EXPECT_NE(parsed.error().message.find(named), std::string::npos) << parsed.error().message;
  }
}

TEST(UnitsTest, lifetimes_have_a_unit_and_a_bound) {
  EXPECT_EQ(parse_duration("90s").value().count(), 90);
  EXPECT_EQ(parse_duration("2h").value().count(), 7200);
  EXPECT_EQ(parse_duration("30d").value().count(), 30 * 86'400);
  for (const char* wrong : {"", "90", "0s", "31d", "721h", "1w", "s", "18446744073709551615d"})
    EXPECT_FALSE(parse_duration(wrong)) << wrong;
}

TEST(UnitsTest, numbers_are_short_for_people) {
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_duration(90'061'000), "1d 01:01:01");
  EXPECT_EQ(human_rate(0), "0");
  EXPECT_EQ(human_rate(12'345), "12.3 k");
  EXPECT_EQ(percent(1, 0), "-");
  EXPECT_EQ(percent(1, 3), "33.3 %");
}

}  // namespace
}  // namespace kvtier::ctl
