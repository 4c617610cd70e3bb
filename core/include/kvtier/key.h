// 128-bit identities: the namespace id and the block key. Both are made of XXH3-128 digests in
// canonical (big-endian) byte order, so they read the same in memory, on the wire and on disk.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "kvtier/result.h"

namespace kvtier {

template <class Tag>
struct Digest128 {
  std::array<std::byte, 16> bytes{};

  friend bool operator==(const Digest128&, const Digest128&) = default;
  friend auto operator<=>(const Digest128&, const Digest128&) = default;

  // The first and last eight bytes as numbers, for tables. The last are uniformly distributed; the
  // first have, in keys, much in common among the blocks of a prefix (chain_key()).
  std::uint64_t head() const noexcept { return word(0); }
  std::uint64_t tail() const noexcept { return word(8); }
  bool is_zero() const noexcept { return head() == 0 && tail() == 0; }

 private:
  std::uint64_t word(std::size_t at) const noexcept {
    std::uint64_t value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  }
};

using NamespaceId = Digest128<struct NamespaceTag>;
// The parent of a prefix's first block is the all-zero key.
using Key = Digest128<struct KeyTag>;
// Consecutive blocks of a prefix whose keys begin alike (chain_key()).
inline constexpr unsigned kKeyGroup = 7;

using Token = std::uint32_t;

// 32 lower-case hexadecimal digits.
std::string to_hex(std::span<const std::byte, 16> bytes);
template <class Tag>
std::string to_hex(const Digest128<Tag>& digest) {
  return to_hex(std::span<const std::byte, 16>(digest.bytes));
}
// Errors: invalid, unless `hex` is exactly 32 hexadecimal digits.
Result<std::array<std::byte, 16>> from_hex(const std::string& hex);

}  // namespace kvtier
