#include "tests/kernels/number_formats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace kvtier::kernels {
namespace {

struct Definition {
  int exponent_bits;
  int mantissa_bits;
  int bias;
};

Definition definition_of(DType type) {
  switch (type) {
    case DType::f16:
      return {5, 10, 15};
    case DType::bf16:
      return {8, 7, 127};
    case DType::fp8_e4m3:
      return {4, 3, 7};
    case DType::fp8_e5m2:
      return {5, 2, 15};
    case DType::f32:
      break;
  }
  return {8, 23, 127};
}

// Codes 0, 1, .. of the finite values >= 0, which are in order.
std::vector<double> finite_values(DType type) {
  std::vector<double> values;
  for (std::uint32_t code = 0; std::isfinite(value_of(type, code)); ++code) {
    values.push_back(value_of(type, code));
  }
  return values;
}

const std::vector<double>& finite_values_once(DType type) {
  static const std::array<std::vector<double>, 5> values = {
      std::vector<double>{}, finite_values(DType::f16), finite_values(DType::bf16),
      finite_values(DType::fp8_e4m3), finite_values(DType::fp8_e5m2)};
  return values[static_cast<std::size_t>(type)];
}

bool saturates(DType type) {
  return type == DType::fp8_e4m3 || type == DType::fp8_e5m2;
}

std::uint32_t nearest_magnitude(DType type, double magnitude) {
  const std::vector<double>& values = finite_values_once(type);
  const auto above = std::lower_bound(values.begin(), values.end(), magnitude);
  const auto last = static_cast<std::uint32_t>(values.size() - 1);
  if (above == values.end()) {
    const double half_step = (values[last] - values[last - 1]) / 2;
    const bool overflows = !saturates(type) && magnitude >= values[last] + half_step;
    return overflows ? last + 1 : last;
  }
  const auto code = static_cast<std::uint32_t>(above - values.begin());
  if (*above == magnitude) return code;
  const double below = magnitude - values[code - 1];
  const double beyond = values[code] - magnitude;
  if (below != beyond) return below < beyond ? code - 1 : code;
  return code % 2 == 0 ? code : code - 1;
}

}  // namespace

double value_of(DType type, std::uint32_t code) {
  const Definition d = definition_of(type);
  const std::uint32_t mantissa = code & ((1U << d.mantissa_bits) - 1);
  const std::uint32_t exponents = 1U << d.exponent_bits;
  const std::uint32_t exponent = (code >> d.mantissa_bits) & (exponents - 1);
  const bool negative = ((code >> (d.mantissa_bits + d.exponent_bits)) & 1) != 0;
  const double sign = negative ? -1 : 1;
  if (exponent == exponents - 1) {
    if (type == DType::fp8_e4m3) {
      if (mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
    } else {
      return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                           : std::numeric_limits<double>::quiet_NaN();
    }
  }
  const int least = 1 - d.bias - d.mantissa_bits;
  if (exponent == 0) return sign * std::ldexp(mantissa, least);
  return sign *
         std::ldexp(mantissa + (1U << d.mantissa_bits), least + static_cast<int>(exponent) - 1);
}

std::uint32_t nearest_code(DType type, double value) {
  const Definition d = definition_of(type);
  const std::uint32_t sign = std::signbit(value) ? 1U << (d.mantissa_bits + d.exponent_bits) : 0;
  return sign | nearest_magnitude(type, std::abs(value));
}

bool is_nan_code(DType type, std::uint32_t code) {
  return std::isnan(value_of(type, code));
}

std::uint32_t codes_of(DType type) {
  return bytes_of(type) == 1 ? 256 : 65536;
}

double largest_finite(DType type) {
  return finite_values_once(type).back();
}

std::uint32_t read_code(DType type, const std::byte* element) {
  std::uint32_t code = 0;
  std::memcpy(&code, element, bytes_of(type));
  return code;
}

std::vector<std::byte> all_codes(DType type) {
  std::vector<std::byte> elements(codes_of(type) * bytes_of(type));
  for (std::uint32_t code = 0; code < codes_of(type); ++code) {
    std::memcpy(elements.data() + code * bytes_of(type), &code, bytes_of(type));
  }
  return elements;
}

}  // namespace kvtier::kernels
