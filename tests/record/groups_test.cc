#include "kvtier/groups.h"

#include <gtest/gtest.h>

#include <set>

#include "kvtier/record_layout.h"

namespace kvtier {
namespace {

double bits_a_number(StorageFormat format, std::uint32_t tokens, std::uint32_t dim) {
  const std::size_t both =
      head_bytes(format, tokens, dim, false) + head_bytes(format, tokens, dim, true);
  return 8.0 * static_cast<double>(both) / (2.0 * tokens * dim);
}

TEST(Groups, of_k_are_two_channels_of_16_tokens_and_of_v_32_channels_of_one) {
  const GroupedHead k = grouped_head(StorageFormat::int4, 16, 128, false);
  EXPECT_EQ(k.group_tokens, 16U);
  EXPECT_EQ(k.group_channels, 2U);
  EXPECT_EQ(k.row_bytes, 64U);
  EXPECT_EQ(k.scales_offset, 16U * 64);
  EXPECT_EQ(k.scale_at(15, 127), 16U * 64 + 63);
  EXPECT_EQ(k.bytes, 16U * 64 + 64);
  const GroupedHead v = grouped_head(StorageFormat::int8, 16, 128, true);
  EXPECT_EQ(v.group_tokens, 1U);
  EXPECT_EQ(v.group_channels, 32U);
  EXPECT_EQ(v.row_bytes, 128U);
  EXPECT_EQ(v.scale_at(3, 70), 16U * 128 + 3 * 4 + 2);
  EXPECT_EQ(v.bytes, 16U * 128 + 64);
}

TEST(Groups, take_no_more_bits_than_is_said) {
  for (const std::uint32_t dim : {64U, 128U, 256U}) {
    EXPECT_EQ(bits_a_number(StorageFormat::int4, 16, dim), 4.25);
    EXPECT_EQ(bits_a_number(StorageFormat::int8, 16, dim), 8.25);
    EXPECT_EQ(bits_a_number(StorageFormat::int4, 256, dim), 4.25);
  }
}

TEST(Groups, every_number_has_a_scale_inside_the_head_and_every_scale_has_numbers) {
  for (const std::uint32_t tokens : {1U, 2U, 3U, 15U, 16U, 17U, 40U, 1024U}) {
    for (const std::uint32_t dim : {1U, 7U, 33U, 64U, 100U}) {
      for (const bool v : {false, true}) {
        const GroupedHead head = grouped_head(StorageFormat::int4, tokens, dim, v);
        EXPECT_EQ(head.bytes % kGroupedHeadAlignment, 0U);
        EXPECT_EQ(head.group_tokens * head.group_channels, kGroupNumbers);
        std::set<std::size_t> scales;
        for (std::uint32_t t = 0; t < tokens; ++t) {
          for (std::uint32_t d = 0; d < dim; ++d) scales.insert(head.scale_at(t, d));
        }
        EXPECT_EQ(scales.size(), std::size_t{head.token_groups} * head.channel_groups);
        EXPECT_EQ(*scales.begin(), head.scales_offset);
        EXPECT_EQ(*scales.rbegin(), head.scales_offset + scales.size() - 1);
        EXPECT_LE(*scales.rbegin(), head.bytes - 1);
      }
    }
  }
}

TEST(Groups, a_head_without_channels_has_no_bytes) {
  EXPECT_EQ(head_bytes(StorageFormat::int4, 16, 0, true), 0U);
  EXPECT_EQ(head_bytes(StorageFormat::int8, 16, 0, true), 0U);
}

}  // namespace
}  // namespace kvtier
