// Number formats from their definitions, in double precision and without looking at the kernels:
// the oracle of conversions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvtier/dtype.h"

namespace kvtier::kernels {

// The value of a code of `type`, which is not f32 (an enumeration of 2^32 codes is too long).
double value_of(DType type, std::uint32_t code);

// The nearest code to `value`; of two equally near the even one. FP8 saturates, the others overflow
// to infinity from half a step beyond their largest finite value on. NaN is any code whose value is
// NaN.
std::uint32_t nearest_code(DType type, double value);

bool is_nan_code(DType type, std::uint32_t code);
std::uint32_t codes_of(DType type);
double largest_finite(DType type);

std::uint32_t read_code(DType type, const std::byte* element);
std::vector<std::byte> all_codes(DType type);

}  // namespace kvtier::kernels
