// Byte quantities as literals.
#pragma once

#include <cstdint>

namespace kvtier {
inline namespace units {

constexpr std::uint64_t operator""_KiB(unsigned long long n) noexcept {
  return n << 10;
}
constexpr std::uint64_t operator""_MiB(unsigned long long n) noexcept {
  return n << 20;
}
constexpr std::uint64_t operator""_GiB(unsigned long long n) noexcept {
  return n << 30;
}

}  // namespace units

constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t to) noexcept {
  return (n + to - 1) / to * to;
}

}  // namespace kvtier
