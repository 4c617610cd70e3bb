#include "client/ctl/units.h"

#include <gtest/gtest.h>

namespace kvtier::ctl {
namespace {

TEST(UnitsTest, sizes_are_read_as_they_are_written_and_nonsense_is_named) {
  EXPECT_EQ(parse_bytes("0").value(), 0U);
  EXPECT_EQ(parse_bytes("4GiB").value(), 4ULL << 30);
  EXPECT_EQ(parse_bytes("512 MiB").value(), 512ULL << 20);
  for (const char* wrong : {"", "GiB", "4GB", "-1", "4.5GiB", "99999999TiB", "4GiBx"}) {
    const auto parsed = parse_bytes(wrong);
    ASSERT_FALSE(parsed) << wrong;
    EXPECT_NE(parsed.error().message.find("give 1024, 64MiB or 4GiB"), std::string::npos);
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
