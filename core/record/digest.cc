#define XXH_STATIC_LINKING_ONLY  // the state lives on the stack
#include <xxhash.h>

#include "core/record/digest.h"
#include "kvtier/key.h"

namespace kvtier {

std::array<std::byte, 16> xxh3_128(std::span<const std::byte> bytes) noexcept {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  std::array<std::byte, 16> digest;
  std::memcpy(digest.data(), canonical.digest, digest.size());
  return digest;
}

std::uint64_t xxh3_64(std::span<const std::byte> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t xxh3_64_of_pieces(std::initializer_list<std::span<const std::byte>> pieces) noexcept {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const auto piece : pieces) XXH3_64bits_update(&state, piece.data(), piece.size());
  return XXH3_64bits_digest(&state);
}

std::string to_hex(std::span<const std::byte, 16> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(32);
  for (const std::byte b : bytes) {
    hex.push_back(kDigits[std::to_integer<unsigned>(b) >> 4]);
    hex.push_back(kDigits[std::to_integer<unsigned>(b) & 15]);
  }
  return hex;
}

Result<std::array<std::byte, 16>> from_hex(const std::string& hex) {
  const auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::array<std::byte, 16> bytes;
  bool good = hex.size() == 32;
  for (std::size_t i = 0; good && i < bytes.size(); ++i) {
    const int high = digit(hex[2 * i]);
    const int low = digit(hex[2 * i + 1]);
    good = high >= 0 && low >= 0;
    bytes[i] = static_cast<std::byte>((high << 4 | low) & 0xFF);
  }
  if (!good) {
    return make_error(Errc::invalid, "'" + hex + "' is not an id: give 32 hexadecimal digits");
  }
  return bytes;
}

}  // namespace kvtier
