#include <cmath>
#include <limits>

#include "tests/kernels/isa.h"

namespace kvtier::kernels {
namespace {

class Elementwise : public EveryIsa {};
KVTIER_FOR_EVERY_ISA(Elementwise);

TEST_P(Elementwise, RmsNormMatchesItsFormula) {
  for (const std::size_t dim : {1, 7, 16, 64, 100, 1023}) {
    constexpr std::size_t kRows = 5;
    const auto in = random_floats(kRows * dim, 1, 3);
    const auto weight = random_floats(dim, 2);
    std::vector<float> out(in.size());
    kernels().rms_norm(in.data(), weight.data(), out.data(), kRows, dim, 1e-5F);
    for (std::size_t row = 0; row < kRows; ++row) {
      double squares = 0;
      for (std::size_t i = 0; i < dim; ++i) squares += std::pow(in[row * dim + i], 2);
      const double norm = std::sqrt(squares / static_cast<double>(dim) + 1e-5);
      for (std::size_t i = 0; i < dim; ++i) {
        const double expected = in[row * dim + i] * weight[i] / norm;
        ASSERT_NEAR(out[row * dim + i], expected, 1e-6 + std::abs(expected) * 2e-6);
      }
    }
  }
}

TEST_P(Elementwise, LogSumExpMatchesItsFormulaAndPassesOverNan) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const std::size_t count : {1, 3, 16, 17, 1000, 128'256}) {
    constexpr std::size_t kRows = 3;
    auto logits = random_floats(kRows * count, 9, 6);
    for (std::size_t i = 1; i < logits.size(); i += 5) logits[i] = i % 2 == 0 ? kNan : -kInfinity;
    std::vector<double> out(kRows);
    kernels().log_sum_exp(logits.data(), out.data(), kRows, count);
    for (std::size_t row = 0; row < kRows; ++row) {
      double total = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const double logit = logits[row * count + i];
        if (!std::isnan(logit)) total += std::exp(logit);
      }
      if (total == 0) {
        EXPECT_EQ(out[row], -kInfinity);
      } else {
        EXPECT_NEAR(out[row], std::log(total), 1e-6) << count;
      }
    }
  }
  const std::vector<float> logits{1, kInfinity, kNan};
  double out = 0;
  kernels().log_sum_exp(logits.data(), &out, 1, logits.size());
  EXPECT_EQ(out, kInfinity);
}

TEST_P(Elementwise, RmsNormInPlaceAndOneRowAtATimeGivesTheSameBits) {
  constexpr std::size_t kRows = 301;
  constexpr std::size_t kDim = 1029;
  const auto in = random_floats(kRows * kDim, 3);
  const auto weight = random_floats(kDim, 4);
  std::vector<float> together(in.size());
  set_cpu_threads(2);
  kernels().rms_norm(in.data(), weight.data(), together.data(), kRows, kDim, 1e-6F);
  std::vector<float> single = in;
  set_cpu_threads(1);
  for (std::size_t row = 0; row < kRows; ++row) {
    float* x = single.data() + row * kDim;
    kernels().rms_norm(x, weight.data(), x, 1, kDim, 1e-6F);
  }
  EXPECT_TRUE(same_bits(together, single));
}

TEST_P(Elementwise, SwigluMatchesItsFormulaFromDeepNegativeToLargeGates) {
  std::vector<float> gate;
  for (float g = -100; g <= 100; g += 0.037F) gate.push_back(g);
  gate.push_back(0.0F);
  gate.push_back(1e30F);
  const auto up = random_floats(gate.size(), 5);
  std::vector<float> out(gate.size());
  kernels().swiglu(gate.data(), up.data(), out.data(), gate.size());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double g = gate[i];
    const double expected = g / (1 + std::exp(-g)) * up[i];
    ASSERT_NEAR(out[i], expected, std::abs(expected) * 2e-6 + 1e-35) << g;
  }
}

TEST_P(Elementwise, SwigluKeepsNanAndMayWriteOverItsGate) {
  auto gate = random_floats(100003, 6);
  gate[5] = std::nanf("");
  const auto up = random_floats(gate.size(), 7);
  std::vector<float> apart(gate.size());
  kernels().swiglu(gate.data(), up.data(), apart.data(), gate.size());
  kernels().swiglu(gate.data(), up.data(), gate.data(), gate.size());
  EXPECT_TRUE(std::isnan(apart[5]));
  EXPECT_TRUE(same_bits(apart, gate));
}

TEST_P(Elementwise, EmbedCopiesTheRowsOfTheIdsAsFloats) {
  constexpr std::size_t kDim = 37;
  const auto values = random_floats(11 * kDim, 8);
  const std::vector<std::uint32_t> ids = {10, 0, 3, 3};
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    const auto table = packed(values, type);
    const auto expected = unpacked(table, type);
    std::vector<float> out(ids.size() * kDim);
    kernels().embed(ids.data(), table.data(), type, out.data(), ids.size(), kDim);
    for (std::size_t row = 0; row < ids.size(); ++row) {
      for (std::size_t i = 0; i < kDim; ++i) {
        ASSERT_EQ(out[row * kDim + i], expected[ids[row] * kDim + i]);
      }
    }
  }
}

TEST_P(Elementwise, AddAddsEveryElementAndNothingBeyond) {
  for (std::size_t count = 0; count < 40; ++count) {
    const auto y = random_floats(count + 1, 9);
    auto x = random_floats(count + 1, 10);
    const auto before = x;
    kernels().add(x.data(), y.data(), count);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(x[i], before[i] + y[i]);
    ASSERT_EQ(x[count], before[count]);
  }
}

}  // namespace
}  // namespace kvtier::kernels
