// Number types of engines' pages and weights.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtier {

enum class DType : std::uint8_t { f32, f16, bf16, fp8_e4m3, fp8_e5m2 };

constexpr std::size_t bytes_of(DType type) noexcept {
  return type == DType::f32 ? 4 : (type == DType::f16 || type == DType::bf16) ? 2 : 1;
}

}  // namespace kvtier
