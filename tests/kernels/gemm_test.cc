#include <cmath>

#include "tests/kernels/isa.h"

namespace kvtier::kernels {
namespace {

class Gemm : public EveryIsa {};
KVTIER_FOR_EVERY_ISA(Gemm);

struct Shape {
  std::size_t rows, n, k;
};

constexpr Shape kShapes[] = {{1, 1, 1},    {1, 5, 3},     {3, 4, 16},    {7, 9, 17},  {6, 64, 256},
                             {13, 67, 96}, {97, 130, 40}, {100, 65, 33}, {2, 3, 1000}};
constexpr DType kWeightTypes[] = {DType::f32, DType::f16, DType::bf16};

TEST_P(Gemm, MatchesADoublePrecisionProduct) {
  for (const auto& [rows, n, k] : kShapes) {
    const auto x = random_floats(rows * k, 1);
    const auto bias = random_floats(n, 2);
    for (const DType type : kWeightTypes) {
      const auto packed_w = packed(random_floats(n * k, 3), type);
      const auto w = unpacked(packed_w, type);
      std::vector<float> out(rows * n);
      kernels().gemm(x.data(), packed_w.data(), type, bias.data(), out.data(), rows, n, k);
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t c = 0; c < n; ++c) {
          double expected = bias[c];
          double magnitude = std::abs(bias[c]);
          for (std::size_t i = 0; i < k; ++i) {
            const double product = static_cast<double>(x[r * k + i]) * w[c * k + i];
            expected += product;
            magnitude += std::abs(product);
          }
          ASSERT_NEAR(out[r * n + c], expected, magnitude * 1e-6) << rows << " " << n << " " << k;
        }
      }
    }
  }
}

TEST_P(Gemm, ARowHasTheSameBitsAloneOrAmongOthersOnAnyNumberOfThreads) {
  for (const auto& [rows, n, k] : {Shape{131, 259, 96}, Shape{205, 70, 101}, Shape{512, 64, 64}}) {
    const auto x = random_floats(rows * k, 4);
    for (const DType type : kWeightTypes) {
      const auto w = packed(random_floats(n * k, 5), type);
      std::vector<float> alone(rows * n);
      set_cpu_threads(1);
      for (std::size_t r = 0; r < rows; ++r) {
        kernels().gemm(x.data() + r * k, w.data(), type, nullptr, alone.data() + r * n, 1, n, k);
      }
      for (const unsigned threads : {1U, 2U}) {
        set_cpu_threads(threads);
        std::vector<float> together(rows * n);
        kernels().gemm(x.data(), w.data(), type, nullptr, together.data(), rows, n, k);
        ASSERT_TRUE(same_bits(alone, together)) << threads << " threads";
      }
      for (const std::size_t first : {1, 5, 98}) {
        std::vector<float> rest(alone.begin() + first * n, alone.end());
        std::vector<float> out(rest.size());
        kernels().gemm(x.data() + first * k, w.data(), type, nullptr, out.data(), rows - first, n,
                       k);
        ASSERT_TRUE(same_bits(rest, out)) << "from row " << first;
      }
    }
  }
}

TEST_P(Gemm, WritesNothingBesideItsOutput) {
  constexpr std::size_t kRows = 7;
  constexpr std::size_t kN = 13;
  constexpr std::size_t kK = 19;
  const auto x = random_floats(kRows * kK, 6);
  const auto w = packed(random_floats(kN * kK, 7), DType::bf16);
  std::vector<float> out(kRows * kN + 2, 12345.0F);
  kernels().gemm(x.data(), w.data(), DType::bf16, nullptr, out.data() + 1, kRows, kN, kK);
  EXPECT_EQ(out.front(), 12345.0F);
  EXPECT_EQ(out.back(), 12345.0F);
}

TEST_P(Gemm, AgreesWithThePortableOne) {
  constexpr std::size_t kRows = 9;
  constexpr std::size_t kN = 33;
  constexpr std::size_t kK = 500;
  const auto x = random_floats(kRows * kK, 8);
  const auto w = random_floats(kN * kK, 9);
  std::vector<float> out(kRows * kN);
  std::vector<float> expected(kRows * kN);
  kernels().gemm(x.data(), w.data(), DType::f32, nullptr, out.data(), kRows, kN, kK);
  portable().gemm(x.data(), w.data(), DType::f32, nullptr, expected.data(), kRows, kN, kK);
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 2e-4);
}

}  // namespace
}  // namespace kvtier::kernels
