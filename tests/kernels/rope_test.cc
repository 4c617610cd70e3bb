#include <cmath>

#include "tests/kernels/isa.h"

namespace kvtier::kernels {
namespace {

class Rope : public EveryIsa {};
KVTIER_FOR_EVERY_ISA(Rope);

TEST_P(Rope, RotatesEachPairByPositionTimesFrequency) {
  const std::vector<std::uint32_t> positions = {0, 1, 77, 4095};
  constexpr std::size_t kHeads = 3;
  for (const std::uint32_t dim : {2U, 8U, 24U, 64U, 96U, 128U}) {
    const auto frequencies = rope_inverse_frequencies(dim, 10000, {});
    const auto before = random_floats(positions.size() * kHeads * dim, dim);
    auto x = before;
    kernels().rope(x.data(), positions.size(), kHeads, dim, positions.data(), frequencies.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t in_head = i % dim;
      const std::size_t pair = in_head % (dim / 2);
      const std::size_t start = i - in_head;
      const float angle = static_cast<float>(positions[i / (kHeads * dim)]) * frequencies[pair];
      const double a = before[start + pair];
      const double b = before[start + pair + dim / 2];
      const double c = std::cos(static_cast<double>(angle));
      const double s = std::sin(static_cast<double>(angle));
      const double expected = in_head < dim / 2 ? a * c - b * s : b * c + a * s;
      ASSERT_NEAR(x[i], expected, 2e-6);
    }
  }
}

TEST_P(Rope, ARowHasTheSameBitsAloneOrAmongOthers) {
  constexpr std::size_t kRows = 200;
  constexpr std::size_t kRowFloats = 8 * 64;
  const auto frequencies = rope_inverse_frequencies(64, 500000, {});
  std::vector<std::uint32_t> positions(kRows);
  for (std::uint32_t row = 0; row < kRows; ++row) positions[row] = row * 31;
  auto together = random_floats(kRows * kRowFloats, 1);
  auto alone = together;
  kernels().rope(together.data(), kRows, 8, 64, positions.data(), frequencies.data());
  for (std::size_t row = 0; row < kRows; ++row) {
    kernels().rope(alone.data() + row * kRowFloats, 1, 8, 64, &positions[row], frequencies.data());
  }
  EXPECT_TRUE(same_bits(together, alone));
}

TEST(RopeFrequencies, PlainOnesArePowersOfTheta) {
  const auto frequencies = rope_inverse_frequencies(8, 10000, {});
  ASSERT_EQ(frequencies.size(), 4U);
  const double expected[] = {1, 0.1, 0.01, 0.001};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(frequencies[i], expected[i], expected[i] * 1e-7);
}

TEST(RopeFrequencies, LinearScalingDividesAllByTheFactor) {
  const auto plain = rope_inverse_frequencies(64, 10000, {});
  const auto scaled =
      rope_inverse_frequencies(64, 10000, {.kind = RopeScaling::Kind::linear, .factor = 4});
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_FLOAT_EQ(scaled[i], plain[i] / 4);
}

// Llama 3.1: a wavelength is kept up to 2048 positions (8192 / 4), divided by 8 from 8192 on, and
// between them interpolated by how many turns it makes in 8192 positions.
TEST(RopeFrequencies, Llama3ScalingKeepsShortWavelengthsAndStretchesLongOnes) {
  constexpr double kPi = 3.14159265358979323846;
  const auto frequencies = rope_inverse_frequencies(128, 500000,
                                                    {.kind = RopeScaling::Kind::llama3,
                                                     .factor = 8,
                                                     .low_freq_factor = 1,
                                                     .high_freq_factor = 4,
                                                     .original_max_positions = 8192});
  int kept = 0;
  int blended = 0;
  int stretched = 0;
  for (int i = 0; i < 64; ++i) {
    const double plain = std::exp(-std::log(500000.0) * i / 64);
    const double turns = 8192 * plain / (2 * kPi);
    const double share_kept = turns > 4 ? 1 : turns < 1 ? 0 : (turns - 1) / 3;
    kept += turns > 4 ? 1 : 0;
    stretched += turns < 1 ? 1 : 0;
    blended += turns >= 1 && turns <= 4 ? 1 : 0;
    const double expected = plain * (share_kept + (1 - share_kept) / 8);
    ASSERT_NEAR(frequencies[i], expected, expected * 1e-6) << i;
  }
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(blended, 6);
  EXPECT_EQ(stretched, 29);
}

}  // namespace
}  // namespace kvtier::kernels
