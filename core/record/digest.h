// XXH3 digests. Fast, not secure: equality of what was hashed decides, never the digest alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace kvtier {

// Canonical (big-endian) byte order.
std::array<std::byte, 16> xxh3_128(std::span<const std::byte> bytes) noexcept;
std::uint64_t xxh3_64(std::span<const std::byte> bytes) noexcept;
// Of the concatenation of `pieces`.
std::uint64_t xxh3_64_of_pieces(std::initializer_list<std::span<const std::byte>> pieces) noexcept;

}  // namespace kvtier
