// Which of a cluster's 16,384 slots a key lies in: CRC-16/XMODEM of it, as the specification of
// Redis Cluster has it. Of keys without braces, which would have only what is between them hashed.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace kvtier::storage {

inline constexpr std::uint16_t kClusterSlots = 16'384;

constexpr std::uint16_t crc16(std::string_view bytes) noexcept {
  constexpr auto kTable = [] {
    std::array<std::uint16_t, 256> table{};
    for (unsigned byte = 0; byte < table.size(); ++byte) {
      unsigned crc = byte << 8;
      for (int bit = 0; bit < 8; ++bit) crc = (crc << 1) ^ ((crc & 0x8000U) != 0 ? 0x1021U : 0U);
      table[byte] = static_cast<std::uint16_t>(crc);
    }
    return table;
  }();
  std::uint16_t crc = 0;
  for (const char c : bytes) {
    const auto at = static_cast<unsigned char>((crc >> 8) ^ static_cast<unsigned char>(c));
    crc = static_cast<std::uint16_t>((crc << 8) ^ kTable[at]);
  }
  return crc;
}
static_assert(crc16("123456789") == 0x31C3);  // the check value of this CRC

constexpr std::uint16_t key_slot(std::string_view key) noexcept {
  return crc16(key) % kClusterSlots;
}

}  // namespace kvtier::storage
