#include <gtest/gtest.h>

#include "tests/e2e/daemon_process.h"
#include "tests/e2e/gpu/gpu_engine_under_test.h"

namespace kvtier::e2e {
namespace {

constexpr int kPrompts = 500;
constexpr std::uint32_t kAnswerTokens = 16;

using Answers = std::vector<std::vector<Token>>;

std::vector<Token> prompt_of(int number) {
  return text_tokens(static_cast<std::size_t>(number) * 7,
                     64 + static_cast<std::size_t>(number) * 37 % 440);
}

struct Pass {
  Answers answers;
  std::array<std::uint64_t, kTiers> reused{};  // tokens
};

Pass answer_all(GpuEngineUnderTest& engine) {
  Pass pass;
  for (int i = 0; i < kPrompts; ++i) {
    const auto result = engine.answer(prompt_of(i), kAnswerTokens);
    pass.answers.push_back(result.tokens);
    for (std::size_t t = 0; t < kTiers; ++t) pass.reused[t] += result.reused_by_tier[t];
  }
  return pass;
}

// Prompts with another answer than the computed one; says how near the two tokens were.
int count_different(GpuEngineUnderTest& reference, const Answers& answers, const Answers& computed,
                    const char* source) {
  int different = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (answers[i] == computed[i]) continue;
    ++different;
    const auto [one, other] =
        std::mismatch(answers[i].begin(), answers[i].end(), computed[i].begin(), computed[i].end());
    if (one == answers[i].end() || other == computed[i].end()) continue;  // one ended earlier
    auto tokens = prompt_of(static_cast<int>(i));
    tokens.insert(tokens.end(), answers[i].begin(), one);
    std::printf("prompt %zu from %s: token %td differs, logit gap %.5f\n", i, source,
                one - answers[i].begin(), reference.logit_gap(tokens, *one, *other));
  }
  std::printf("from %s: %d of %zu answers differ from the computed ones\n", source, different,
              answers.size());
  return different;
}

class GpuHitEqualsMiss : public engine::test::OnGpu {};

TEST_F(GpuHitEqualsMiss, from_every_tier) {
  const auto model = engine::test::load_checkpoint(engine::test::kBundled[0]);
  ASSERT_NE(model, nullptr);
  DaemonProcess daemon({.device_capacity = "1GiB",
                        .device_backend = "cuda",
                        .host_capacity = "1GiB",
                        .extent_size = "64MiB",
                        .disk_capacity = "2GiB",
                        .segment_size = "64MiB"});
  daemon.start();
  GpuEngineUnderTest reference(*model, "");
  GpuEngineUnderTest engine(*model, daemon.socket());
  const Answers computed = answer_all(reference).answers;
  EXPECT_EQ(answer_all(engine).answers, computed) << "writing back changed an answer";
  engine.flush();

  const struct {
    Tier tier;
    TierSet dropped;
  } sources[] = {{Tier::device, {}},
                 {Tier::host, TierSet{}.with(Tier::device)},
                 {Tier::disk, TierSet{}.with(Tier::device).with(Tier::host)}};
  for (const auto& source : sources) {
    Answers before;
    for (int round = 0; round < 2; ++round) {
      if (!source.dropped.empty()) daemon.drop(source.dropped);
      const Pass pass = answer_all(engine);
      std::printf("reused tokens: device %llu, host %llu, disk %llu\n",
                  static_cast<unsigned long long>(pass.reused[0]),
                  static_cast<unsigned long long>(pass.reused[1]),
                  static_cast<unsigned long long>(pass.reused[2]));
      std::uint64_t all = 0;
      for (const std::uint64_t reused : pass.reused) all += reused;
      EXPECT_GT(pass.reused[index_of(source.tier)], all * 9 / 10) << name(source.tier);
      EXPECT_GT(all, std::uint64_t{kPrompts} * 200);
      EXPECT_LE(count_different(reference, pass.answers, computed, name(source.tier)),
                kPrompts / 200);
      if (round == 1) {
        EXPECT_EQ(pass.answers, before) << "two restores differ";
      }
      before = pass.answers;
      engine.flush();
    }
  }
}

}  // namespace
}  // namespace kvtier::e2e
