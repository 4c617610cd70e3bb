// sample against the engine's Sampler, and against its rule in FP64 for draws at a boundary.
#include <algorithm>
#include <numeric>
#include <random>

#include "engine_adapter/reference/model/sampler.h"
#include "tests/gpu/gpu_test.h"

namespace kvtier::kernels::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Sampler::choose with the draw and the bound on probability given.
std::uint32_t choose(std::span<const float> logits, const SampleRow& row, double uniform,
                     double top_p) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return logits[a] > logits[b]; });
  if (row.top_k != 0 && row.top_k < order.size()) order.resize(row.top_k);
  std::vector<double> weights;
  for (const std::uint32_t id : order) {
    weights.push_back(
        std::exp((static_cast<double>(logits[id]) - logits[order[0]]) / row.temperature));
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  std::size_t count = 0;
  while (count < order.size() && (count == 0 || kept < top_p * total)) kept += weights[count++];
  double left = uniform * kept;
  for (std::size_t i = 0; i < count; ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[count - 1];
}

// Whether `token` is what a draw, or a bound, within rounding of these gives.
bool within_rounding(std::span<const float> logits, const SampleRow& row, std::uint32_t token) {
  constexpr double kRounding = 1e-8;
  for (const double draw : {row.uniform - kRounding, row.uniform, row.uniform + kRounding}) {
    for (const double bound : {row.top_p - kRounding, double{row.top_p}, row.top_p + kRounding}) {
      if (choose(logits, row, std::clamp(draw, 0.0, 1 - 0x1p-53), bound) == token) return true;
    }
  }
  return false;
}

class GpuSample : public GpuTest {
 protected:
  std::vector<std::uint32_t> sampled(const std::vector<float>& logits,
                                     const std::vector<SampleRow>& rows) {
    const std::size_t vocabulary = logits.size() / rows.size();
    const DeviceArray<float> device_logits(logits);
    const DeviceArray<SampleRow> device_rows(rows);
    Output<std::uint32_t> tokens(rows.size());
    Output<std::byte> workspace(sample_workspace_bytes(rows.size(), vocabulary));
    run_as_graph([&] {
      sample(device_logits.get(), device_rows.get(), tokens.get(), rows.size(), vocabulary,
             workspace.get(), stream());
    });
    workspace.values();
    return tokens.values();
  }

  // Each row of `logits` drawn with each of many options. Returns the share that is exactly the
  // Sampler's choice.
  double compare_draws(const std::vector<float>& logits, std::size_t rows_count, unsigned seed) {
    const std::size_t vocabulary = logits.size() / rows_count;
    std::mt19937_64 random(seed);
    std::size_t same = 0, all = 0;
    for (int round = 0; round < 12; ++round) {
      std::vector<SampleRow> rows;
      std::vector<std::uint32_t> by_engine;
      for (std::size_t i = 0; i < rows_count; ++i) {
        constexpr float kTemperatures[] = {1, 0.7F, 0.1F, 3};
        constexpr std::uint32_t kTopKs[] = {0, 1, 2, 50, 1000, 1'000'000};
        constexpr float kTopPs[] = {1, 0.9375F, 0.5F, 0.01F};
        engine::SamplerOptions options{.temperature = kTemperatures[random() % 4],
                                       .top_k = kTopKs[random() % 6],
                                       .top_p = kTopPs[random() % 4],
                                       .seed = random()};
        const std::span<const float> row(logits.data() + i * vocabulary, vocabulary);
        by_engine.push_back(engine::Sampler(options).choose(row));
        rows.push_back({.temperature = static_cast<float>(options.temperature),
                        .top_k = options.top_k,
                        .top_p = static_cast<float>(options.top_p),
                        .uniform = engine::SplitMix64(options.seed).next_unit()});
        EXPECT_EQ(by_engine.back(), choose(row, rows[i], rows[i].uniform, rows[i].top_p));
      }
      const auto tokens = sampled(logits, rows);
      for (std::size_t i = 0; i < rows_count; ++i, ++all) {
        if (tokens[i] == by_engine[i]) {
          ++same;
          continue;
        }
        const std::span<const float> row(logits.data() + i * vocabulary, vocabulary);
        EXPECT_TRUE(within_rounding(row, rows[i], tokens[i]))
            << "token " << tokens[i] << ", not " << by_engine[i] << "; temperature "
            << rows[i].temperature << ", top_k " << rows[i].top_k << ", top_p " << rows[i].top_p
            << ", draw " << rows[i].uniform;
      }
    }
    return static_cast<double>(same) / static_cast<double>(all);
  }
};

TEST_F(GpuSample, GreedyTakesTheLowestIdOfTheLargest) {
  const std::vector<SampleRow> rows(8);
  const std::vector<float> logits{
      1,          3,          2,    3,     // the first of two
      kNan,       -5,         kNan, -4,    // NaN never wins
      kNan,       kNan,       kNan, kNan,  // unless there is nothing else
      -kInfinity, -kInfinity, kNan, -kInfinity, 0,      kInfinity, kInfinity, 1,
      -0.0F,      0.0F,       -1,   -0.0F,  // -0 equals 0
      -3,         -2,         -2,   -9,         1e-45F, 0,         1e-45F,    -1e-45F};
  const std::vector<std::uint32_t> expected{1, 3, 0, 0, 1, 0, 1, 0};
  EXPECT_EQ(sampled(logits, rows), expected);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    EXPECT_EQ(expected[row], engine::argmax({logits.data() + row * 4, 4}));
  }
}

TEST_F(GpuSample, GreedyOverLargeVocabularies) {
  for (const std::size_t vocabulary : {1U, 2U, 1000U, 4096U, 32'003U, 128'256U, 262'208U}) {
    const std::size_t count = 3;
    auto logits = random_floats(count * vocabulary, static_cast<unsigned>(vocabulary));
    const auto tokens = sampled(logits, std::vector<SampleRow>(count));
    for (std::size_t row = 0; row < count; ++row) {
      EXPECT_EQ(tokens[row], engine::argmax({logits.data() + row * vocabulary, vocabulary}));
    }
  }
}

TEST_F(GpuSample, DrawsAreTheEnginesOverNormalLogits) {
  for (const std::size_t vocabulary : {5U, 1000U, 32'003U, 128'256U}) {
    EXPECT_GT(compare_draws(random_floats(8 * vocabulary, 21, 3), 8, 22), 0.97) << vocabulary;
  }
}

TEST_F(GpuSample, DrawsAreTheEnginesOverFlatAndTiedLogits) {
  // Few different values, so that the order of ids decides; and all equal.
  std::mt19937 random(23);
  std::vector<float> logits(4 * 20'000);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = i < 20'000 ? 1.0F : static_cast<float>(random() % 7) * 0.5F - 1;
  }
  EXPECT_GT(compare_draws(logits, 4, 24), 0.95);
}

TEST_F(GpuSample, DrawsPassOverNanAndInfinitelyUnlikelyTokens) {
  auto logits = random_floats(4 * 3000, 25, 2);
  std::mt19937 random(26);
  for (float& logit : logits) {
    if (random() % 4 == 0) logit = kNan;
    if (random() % 4 == 0) logit = -kInfinity;
  }
  EXPECT_GT(compare_draws(logits, 4, 27), 0.95);
}

TEST_F(GpuSample, AnInfiniteLogitIsTaken) {
  const std::vector<SampleRow> rows{{.temperature = 1, .uniform = 0.9},
                                    {.temperature = 1, .uniform = 0.9}};
  EXPECT_EQ(sampled({0, 1, kInfinity, 2, kNan, kNan, kNan, kNan}, rows),
            (std::vector<std::uint32_t>{2, 0}));
}

TEST_F(GpuSample, GreedyAndDrawnRowsMix) {
  const std::size_t vocabulary = 32'003;
  const auto logits = random_floats(2 * vocabulary, 28, 3);
  const std::vector<SampleRow> rows{
      {.temperature = 0, .uniform = 0.5},
      {.temperature = 1, .top_k = 40, .top_p = 0.9F, .uniform = 0.75}};
  const auto tokens = sampled(logits, rows);
  EXPECT_EQ(tokens[0], engine::argmax({logits.data(), vocabulary}));
  EXPECT_TRUE(within_rounding({logits.data() + vocabulary, vocabulary}, rows[1], tokens[1]));
}

}  // namespace
}  // namespace kvtier::kernels::cuda
