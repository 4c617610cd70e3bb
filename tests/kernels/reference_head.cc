#include "tests/kernels/reference_head.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kvtier/dtype.h"
#include "tests/kernels/number_formats.h"

namespace kvtier::kernels {
namespace {

bool is_integer(StorageFormat format) {
  return format == StorageFormat::int8 || format == StorageFormat::int4;
}

DType element_type(StorageFormat format) {
  switch (format) {
    case StorageFormat::fp8_e4m3:
      return DType::fp8_e4m3;
    case StorageFormat::fp8_e5m2:
      return DType::fp8_e5m2;
    case StorageFormat::bf16:
      return DType::bf16;
    default:
      return DType::f32;
  }
}

float largest_magnitude(const std::vector<float>& values) {
  float largest = 0;
  for (const float x : values) largest = std::max(largest, std::abs(x));
  return largest;
}

// Where integers and scales of one head lie.
struct GroupsOfHead {
  explicit GroupsOfHead(const HeadShape& shape) : of(shape) {
    if (!shape.v) {
      while (tokens < 16 && tokens * 2 <= shape.tokens) tokens *= 2;
    }
    channels = 32 / tokens;
    row = shape.format == StorageFormat::int8 ? shape.dim : (shape.dim + 1) / 2;
    across = (shape.dim + channels - 1) / channels;
    scales = shape.tokens * row;
    bytes = (scales + (shape.tokens + tokens - 1) / tokens * across + 15) / 16 * 16;
  }
  std::size_t scale_of(std::size_t token, std::size_t channel) const {
    return scales + token / tokens * across + channel / channels;
  }
  // f(index of a number) for those that share a scale with one.
  template <typename F>
  void for_each_of(std::size_t token, std::size_t channel, const F& f) const {
    const std::size_t t = token / tokens * tokens;
    const std::size_t d = channel / channels * channels;
    for (std::size_t i = t; i < std::min(t + tokens, of.tokens); ++i) {
      for (std::size_t j = d; j < std::min(d + channels, of.dim); ++j) f(i * of.dim + j);
    }
  }

  HeadShape of;
  std::size_t tokens = 1;
  std::size_t channels;
  std::size_t row;
  std::size_t across;
  std::size_t scales;
  std::size_t bytes;
};

int read_integer(const HeadShape& shape, const std::byte* row, std::size_t channel) {
  if (shape.format == StorageFormat::int8) {
    return static_cast<signed char>(std::to_integer<unsigned char>(row[channel]));
  }
  const unsigned both = std::to_integer<unsigned>(row[channel / 2]);
  const int code = static_cast<int>(channel % 2 == 0 ? both & 15 : both >> 4);
  return code < 8 ? code : code - 16;
}

void write_integer(const HeadShape& shape, std::byte* row, std::size_t channel, int value) {
  if (shape.format == StorageFormat::int8) {
    row[channel] = static_cast<std::byte>(value);
  } else {
    row[channel / 2] |= static_cast<std::byte>((value & 15) << (channel % 2 == 0 ? 0 : 4));
  }
}

std::uint32_t scale_code(StorageFormat format, float wanted) {
  if (format == StorageFormat::int4) return nearest_code(DType::fp8_e4m3, wanted);
  std::uint32_t code = 0;
  while (code < 0x7E && value_of(DType::fp8_e4m3, code) < std::abs(wanted)) ++code;
  return code | (std::signbit(wanted) ? 0x80 : 0);
}

StoredHead integers(const HeadShape& shape, const std::vector<float>& values) {
  const GroupsOfHead groups(shape);
  const float low = shape.format == StorageFormat::int8 ? 128 : 8;
  StoredHead head{std::vector<std::byte>(groups.bytes), 1};
  const float amax = largest_magnitude(values);
  if (amax != 0) head.scale = std::max(amax / (448 * low), std::ldexp(1.0F, -117));
  const float to_scale = 1 / (head.scale * low);
  for (std::size_t token = 0; token < shape.tokens; ++token) {
    for (std::size_t channel = 0; channel < shape.dim; ++channel) {
      float most = 0;
      float least = 0;
      groups.for_each_of(token, channel, [&](std::size_t i) {
        most = std::max(most, values[i]);
        least = std::max(least, -values[i]);
      });
      const float wanted = (most > least ? -most : least) * to_scale;
      const std::uint32_t code = scale_code(shape.format, wanted);
      head.bytes[groups.scale_of(token, channel)] = static_cast<std::byte>(code);
      const float scale = static_cast<float>(value_of(DType::fp8_e4m3, code)) * head.scale;
      const float factor = scale == 0 ? 0 : 1 / scale;
      const float x = values[token * shape.dim + channel] * factor;
      const float integer = std::clamp(std::nearbyint(x), -low, low - 1);
      write_integer(shape, head.bytes.data() + token * groups.row, channel,
                    static_cast<int>(integer));
    }
  }
  return head;
}

}  // namespace

StoredHead reference_head(const HeadShape& shape, const std::vector<float>& values) {
  if (is_integer(shape.format)) return integers(shape, values);
  const DType type = element_type(shape.format);
  StoredHead head{std::vector<std::byte>(values.size() * bytes_of(type)), 1};
  if (type == DType::f32) {
    std::memcpy(head.bytes.data(), values.data(), head.bytes.size());
    return head;
  }
  const float amax = largest_magnitude(values);
  if (has_scales(shape.format) && amax != 0) {
    head.scale = std::max(amax / static_cast<float>(largest_finite(type)), std::ldexp(1.0F, -126));
  }
  const float factor = 1 / head.scale;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t code = nearest_code(type, values[i] * factor);
    std::memcpy(head.bytes.data() + i * bytes_of(type), &code, bytes_of(type));
  }
  return head;
}

float reference_value(const HeadShape& shape, const std::byte* bytes, float scale,
                      std::size_t token, std::size_t channel) {
  if (is_integer(shape.format)) {
    const GroupsOfHead groups(shape);
    const std::uint32_t code = read_code(DType::fp8_e4m3, bytes + groups.scale_of(token, channel));
    const int integer = read_integer(shape, bytes + token * groups.row, channel);
    return static_cast<float>(integer) *
           (static_cast<float>(value_of(DType::fp8_e4m3, code)) * scale);
  }
  const DType type = element_type(shape.format);
  const std::byte* element = bytes + (token * shape.dim + channel) * bytes_of(type);
  if (type == DType::f32) {
    float value = 0;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  const auto value = static_cast<float>(value_of(type, read_code(type, element)));
  return has_scales(shape.format) ? value * scale : value;
}

double error_bound(StorageFormat format, double x, double amax, double head_amax) {
  switch (format) {
    case StorageFormat::fp8_e4m3:
      return std::max(std::abs(x) / 16, amax / 448 / 1024) * 1.0001;
    case StorageFormat::fp8_e5m2:
      return std::max(std::abs(x) / 8, amax / 57344 / 131072) * 1.0001;
    case StorageFormat::bf16:
      return std::abs(x) / 256;
    // The opposite of the group's largest is cut off one step below it, which is further than half
    // a step. The scale of int4 may be a 17th too small beside that. The smallest scale of a group
    // is a 2^18th of the head's.
    case StorageFormat::int8:
      return amax / 128 * 1.0001 + head_amax / 128 / (448 * 512);
    case StorageFormat::int4:
      return amax * (1 - 7.0 / 8 * 16 / 17) * 1.0001 + head_amax / 8 / (448 * 1024);
    case StorageFormat::f32:
    case StorageFormat::raw:
      break;
  }
  return 0;
}

double group_amax(const HeadShape& shape, const std::vector<float>& values, std::size_t token,
                  std::size_t channel) {
  if (!is_integer(shape.format)) return largest_magnitude(values);
  float largest = 0;
  GroupsOfHead(shape).for_each_of(
      token, channel, [&](std::size_t i) { largest = std::max(largest, std::abs(values[i])); });
  return largest;
}

}  // namespace kvtier::kernels
