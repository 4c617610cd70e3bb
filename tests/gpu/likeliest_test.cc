// likeliest and token_logprobs against the CPU's log_sum_exp and the engine's likeliest_tokens.
#include <numeric>

#include "engine_adapter/reference/model/sampler.h"
#include "tests/gpu/gpu_test.h"

namespace kvtier::kernels::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class GpuLikeliest : public GpuTest {
 protected:
  void compare(const std::vector<float>& logits, std::size_t rows, std::uint32_t k) {
    const std::size_t vocabulary = logits.size() / rows;
    const DeviceArray<float> device_logits(logits);
    std::vector<std::uint32_t> asked_rows, asked_tokens;
    for (std::uint32_t row = 0; row < rows; ++row) {
      for (const std::size_t token : {std::size_t{0}, vocabulary / 2, vocabulary - 1}) {
        asked_rows.push_back(row);
        asked_tokens.push_back(static_cast<std::uint32_t>(token));
      }
    }
    const DeviceArray<std::uint32_t> device_rows(asked_rows), device_tokens(asked_tokens);
    Output<LikeliestToken> out(std::max<std::size_t>(rows * k, 1));
    Output<double> log_sums(rows);
    Output<float> logprobs(asked_rows.size());
    Output<std::byte> workspace(likeliest_workspace_bytes(rows, vocabulary, k));
    run_as_graph([&] {
      likeliest(device_logits.get(), out.get(), log_sums.get(), rows, vocabulary, k,
                workspace.get(), stream());
      token_logprobs(device_logits.get(), log_sums.get(), device_rows.get(), device_tokens.get(),
                     logprobs.get(), asked_rows.size(), vocabulary, stream());
    });
    workspace.values();
    const auto found = out.values();
    const auto sums = log_sums.values();
    const auto told = logprobs.values();
    std::vector<double> expected_sums(rows);
    portable_log_sum_exp(logits, expected_sums, vocabulary);
    for (std::size_t row = 0; row < rows; ++row) {
      if (std::isfinite(expected_sums[row])) {
        EXPECT_NEAR(sums[row], expected_sums[row], 2e-6);
      } else {
        EXPECT_EQ(sums[row], expected_sums[row]);
      }
      const std::span<const float> of_row(logits.data() + row * vocabulary, vocabulary);
      const auto expected = engine::likeliest_tokens(of_row, k, sums[row]);
      for (std::size_t i = 0; i < k; ++i) {
        const LikeliestToken& token = found[row * k + i];
        ASSERT_EQ(token.token, i < expected.size() ? expected[i].token : kNoToken)
            << "row " << row << " place " << i;
        if (i < expected.size() && std::isfinite(sums[row])) {
          EXPECT_EQ(token.logprob, expected[i].logprob);
        }
      }
    }
    for (std::size_t i = 0; i < told.size(); ++i) {
      const float logit = logits[asked_rows[i] * vocabulary + asked_tokens[i]];
      const double sum = sums[asked_rows[i]];
      if (std::isfinite(logit) && std::isfinite(sum)) {
        EXPECT_EQ(told[i], static_cast<float>(logit - sum));
      }
    }
  }

 private:
  static void portable_log_sum_exp(const std::vector<float>& logits, std::vector<double>& sums,
                                   std::size_t vocabulary) {
    cpu_kernels_named("portable")->log_sum_exp(logits.data(), sums.data(), sums.size(), vocabulary);
  }
};

TEST_F(GpuLikeliest, AreTheEnginesOverLargeVocabularies) {
  for (const std::size_t vocabulary : {1U, 5U, 4096U, 4097U, 32'003U, 128'256U, 262'208U}) {
    for (const std::uint32_t k : {0U, 1U, 20U, 128U}) {
      compare(random_floats(3 * vocabulary, static_cast<unsigned>(vocabulary + k), 4), 3, k);
    }
  }
}

TEST_F(GpuLikeliest, EqualOnesComeByTheirIds) {
  std::vector<float> logits(2 * 20'000, 1.0F);
  for (std::size_t i = 20'000; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7);
  compare(logits, 2, 128);
}

TEST_F(GpuLikeliest, NanIsPassedOverAndInfinitiesAreWhatTheyAre) {
  auto logits = random_floats(5 * 9000, 5, 3);
  for (std::size_t i = 0; i < 9000; i += 3) logits[i] = kNan;
  for (std::size_t i = 1; i < 9000; i += 3) logits[i] = -kInfinity;
  std::fill_n(logits.begin() + 9000, 9000, kNan);
  std::fill_n(logits.begin() + 18'000, 9000, -kInfinity);
  logits[27'005] = kInfinity;
  std::fill_n(logits.begin() + 36'000, 8997, kNan);  // three are left
  compare(logits, 5, 20);
}

TEST_F(GpuLikeliest, SeveralTokensAreDrawnFromOneRow) {
  const std::size_t vocabulary = 32'003;
  const auto logits = random_floats(2 * vocabulary, 28, 3);
  std::vector<SampleRow> rows;
  std::vector<std::uint32_t> index, expected;
  for (std::uint32_t i = 0; i < 12; ++i) {
    index.push_back(i % 3 == 0 ? 0 : 1);
    engine::SamplerOptions options{.temperature = i % 4 == 0 ? 0 : 0.7, .top_k = 40, .seed = i};
    const std::span<const float> row(logits.data() + index.back() * vocabulary, vocabulary);
    expected.push_back(engine::Sampler(options).choose(row));
    rows.push_back({.temperature = static_cast<float>(options.temperature),
                    .top_k = options.top_k,
                    .uniform = engine::SplitMix64(options.seed).next_unit()});
  }
  const DeviceArray<float> device_logits(logits);
  const DeviceArray<SampleRow> device_rows(rows);
  const DeviceArray<std::uint32_t> device_index(index);
  Output<std::uint32_t> tokens(rows.size());
  Output<std::byte> workspace(sample_workspace_bytes(rows.size(), vocabulary));
  run_as_graph([&] {
    sample(device_logits.get(), device_rows.get(), tokens.get(), rows.size(), vocabulary,
           workspace.get(), stream(), device_index.get());
  });
  EXPECT_EQ(tokens.values(), expected);
}

}  // namespace
}  // namespace kvtier::kernels::cuda
