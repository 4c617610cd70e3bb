#include <bit>
#include <cmath>
#include <limits>

#include "tests/kernels/isa.h"
#include "tests/kernels/number_formats.h"

namespace kvtier::kernels {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3, DType::fp8_e5m2};
constexpr DType kNarrowTypes[] = {DType::f16, DType::bf16, DType::fp8_e4m3, DType::fp8_e5m2};

class Formats : public EveryIsa {
 protected:
  std::vector<std::byte> converted(const std::vector<std::byte>& from, DType src, DType dst) {
    const std::size_t count = from.size() / bytes_of(src);
    std::vector<std::byte> to(count * bytes_of(dst));
    kernels().convert(from.data(), src, to.data(), dst, count);
    return to;
  }
};
KVTIER_FOR_EVERY_ISA(Formats);

std::vector<std::byte> bytes_of_floats(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

float float_at(const std::vector<std::byte>& bytes, std::size_t index) {
  float value = 0;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

// Random bit patterns, and the neighbourhood of every boundary between two codes of FP16.
std::vector<float> interesting_floats() {
  std::vector<float> values = {0.0F,
                               -0.0F,
                               kInfinity,
                               -kInfinity,
                               std::nanf(""),
                               -std::nanf(""),
                               std::numeric_limits<float>::denorm_min(),
                               std::numeric_limits<float>::max(),
                               -std::numeric_limits<float>::max()};
  std::mt19937 engine(7);
  for (int i = 0; i < 50000; ++i) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(engine())));
  }
  for (std::uint32_t code = 0; code < 0x7C00; ++code) {
    const auto middle =
        static_cast<float>((value_of(DType::f16, code) +
                            (code + 1 == 0x7C00 ? 65536.0 : value_of(DType::f16, code + 1))) /
                           2);
    for (const float value :
         {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, kInfinity)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  return values;
}

std::vector<std::byte> interesting(DType type) {
  return type == DType::f32 ? bytes_of_floats(interesting_floats()) : all_codes(type);
}

double element_value(const std::vector<std::byte>& elements, DType type, std::size_t index) {
  if (type == DType::f32) return float_at(elements, index);
  return value_of(type, read_code(type, elements.data() + index * bytes_of(type)));
}

TEST_P(Formats, EveryCodeDecodesToItsDefinition) {
  for (const DType type : kNarrowTypes) {
    const auto decoded = converted(all_codes(type), type, DType::f32);
    for (std::uint32_t code = 0; code < codes_of(type); ++code) {
      const double expected = value_of(type, code);
      const float value = float_at(decoded, code);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(value)) << code;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(value),
                  std::bit_cast<std::uint32_t>(static_cast<float>(expected)))
            << code;
      }
    }
  }
}

TEST_P(Formats, EveryPairRoundsToTheNearestCodeWithTiesToEven) {
  for (const DType src : kTypes) {
    const auto elements = interesting(src);
    const std::size_t count = elements.size() / bytes_of(src);
    for (const DType dst : kNarrowTypes) {
      const auto result = converted(elements, src, dst);
      for (std::size_t i = 0; i < count; ++i) {
        const double value = element_value(elements, src, i);
        const std::uint32_t code = read_code(dst, result.data() + i * bytes_of(dst));
        if (std::isnan(value)) {
          ASSERT_TRUE(is_nan_code(dst, code)) << i << " to " << static_cast<int>(dst);
        } else {
          ASSERT_EQ(code, nearest_code(dst, value)) << value << " to " << static_cast<int>(dst);
        }
      }
    }
  }
}

TEST_P(Formats, Fp8SaturatesInfinitiesToTheLargestFiniteValue) {
  const auto infinities = bytes_of_floats({kInfinity, -kInfinity});
  const auto e4m3 = converted(infinities, DType::f32, DType::fp8_e4m3);
  EXPECT_EQ(e4m3[0], std::byte{0x7E});
  EXPECT_EQ(e4m3[1], std::byte{0xFE});
  const auto e5m2 = converted(infinities, DType::f32, DType::fp8_e5m2);
  EXPECT_EQ(e5m2[0], std::byte{0x7B});
  EXPECT_EQ(e5m2[1], std::byte{0xFB});
}

TEST_P(Formats, NanIsWrittenAsAQuietNanWithItsSign) {
  const auto nans =
      bytes_of_floats({std::bit_cast<float>(0x7F800001U), std::bit_cast<float>(0xFF800001U)});
  for (const DType type : {DType::fp8_e4m3, DType::fp8_e5m2}) {
    const auto codes = converted(nans, DType::f32, type);
    EXPECT_EQ(codes[0], std::byte{0x7F});
    EXPECT_EQ(codes[1], std::byte{0xFF});
  }
  const auto bf16 = converted(nans, DType::f32, DType::bf16);
  EXPECT_EQ(read_code(DType::bf16, bf16.data()), 0x7FC0U);
  EXPECT_EQ(read_code(DType::bf16, bf16.data() + 2), 0xFFC0U);
  const auto f16 = converted(nans, DType::f32, DType::f16);
  EXPECT_EQ(read_code(DType::f16, f16.data()), 0x7E00U);
  EXPECT_EQ(read_code(DType::f16, f16.data() + 2), 0xFE00U);
}

TEST_P(Formats, AnyCountAtAnyAddressTouchesOnlyItsElements) {
  for (const DType src : kTypes) {
    for (const DType dst : kTypes) {
      const auto values = random_floats(70, 3, 10);
      const auto from = packed(values, src);
      for (std::size_t count = 0; count <= 67; ++count) {
        constexpr std::byte kCanary{0xA5};
        std::vector<std::byte> to((count + 2) * bytes_of(dst), kCanary);
        kernels().convert(from.data() + bytes_of(src), src, to.data() + bytes_of(dst), dst, count);
        std::vector<std::byte> expected((count + 2) * bytes_of(dst), kCanary);
        portable().convert(from.data() + bytes_of(src), src, expected.data() + bytes_of(dst), dst,
                           count);
        ASSERT_EQ(to, expected);
        for (std::size_t i = 0; i < bytes_of(dst); ++i) {
          ASSERT_EQ(to[i], kCanary);
          ASSERT_EQ(to[to.size() - 1 - i], kCanary);
        }
      }
    }
  }
}

TEST_P(Formats, EveryIsaWritesTheSameBytes) {
  for (const DType src : kTypes) {
    const auto elements = interesting(src);
    for (const DType dst : kTypes) {
      std::vector<std::byte> expected(elements.size() / bytes_of(src) * bytes_of(dst));
      portable().convert(elements.data(), src, expected.data(), dst,
                         elements.size() / bytes_of(src));
      EXPECT_EQ(converted(elements, src, dst), expected)
          << static_cast<int>(src) << " to " << static_cast<int>(dst);
    }
  }
}

}  // namespace
}  // namespace kvtier::kernels
