// Where the integers of int8 and int4 and the scales of their groups lie in one head's K or V of
// one block (docs/format.md has the rules of their values, adr/0041 why they are what they are).
//
//   [integers: block_tokens rows][scales: one byte a group][zeros up to a multiple of 16]
//
// A group is 32 numbers: of K a few neighbouring channels of up to 16 tokens, of V 32 channels of
// one token. The scale of channel d of token t is byte scale_at(t, d) of the head.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kvtier/namespace.h"

namespace kvtier {

inline constexpr std::uint32_t kGroupNumbers = 32;
inline constexpr std::uint32_t kGroupTokensMax = 16;
// Where a head begins, so that wide loads are aligned.
inline constexpr std::size_t kGroupedHeadAlignment = 16;

struct GroupedHead {
  std::uint32_t group_tokens = 0;    // a power of two; the last group of tokens may be shorter
  std::uint32_t group_channels = 0;  // likewise
  std::uint32_t token_groups = 0;
  std::uint32_t channel_groups = 0;
  std::size_t row_bytes = 0;      // of one token's integers
  std::size_t scales_offset = 0;  // in the head: [token_groups][channel_groups]
  std::size_t bytes = 0;          // of the head

  constexpr std::size_t scale_at(std::uint32_t token, std::uint32_t channel) const noexcept {
    return scales_offset + std::size_t{token / group_tokens} * channel_groups +
           channel / group_channels;
  }
};

// `format` is int8 or int4.
constexpr GroupedHead grouped_head(StorageFormat format, std::uint32_t block_tokens,
                                   std::uint32_t dim, bool v) noexcept {
  const auto divided_up = [](std::uint32_t n, std::uint32_t by) { return (n + by - 1) / by; };
  GroupedHead head;
  const std::uint32_t tokens =
      block_tokens < kGroupTokensMax ? std::bit_floor(block_tokens) : kGroupTokensMax;
  head.group_tokens = v ? 1 : tokens;
  head.group_channels = kGroupNumbers / head.group_tokens;
  head.token_groups = divided_up(block_tokens, head.group_tokens);
  head.channel_groups = divided_up(dim, head.group_channels);
  head.row_bytes = format == StorageFormat::int8 ? dim : divided_up(dim, 2);
  head.scales_offset = block_tokens * head.row_bytes;
  const std::size_t end = head.scales_offset + std::size_t{head.token_groups} * head.channel_groups;
  head.bytes = (end + kGroupedHeadAlignment - 1) / kGroupedHeadAlignment * kGroupedHeadAlignment;
  return head;
}

}  // namespace kvtier
