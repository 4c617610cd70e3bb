#include <gtest/gtest.h>

#include <csignal>
#include <numeric>

#include "tests/e2e/daemon_process.h"
#include "tests/e2e/engine_under_test.h"

namespace kvtier::e2e {
namespace {

constexpr int kPromptsPerFormat = 500;

std::uint64_t sum(const std::array<std::uint64_t, kTiers>& values) {
  return std::accumulate(values.begin(), values.end(), std::uint64_t{0});
}

// A tier too small for the prompts, things dropped and daemons restarted at random: what may differ
// is how much is reused, never an answer.
void compare_with_computed(const engine::test::TestModel& model, StorageFormat format) {
  const auto record = RecordLayout::of(model.ns(format)).record_bytes;
  DaemonOptions options;
  options.device_capacity = std::to_string(record * 12 / 1024) + "KiB";
  options.host_capacity = std::to_string(record * 40 / 1024) + "KiB";
  options.extent_size = std::to_string(std::max<std::uint64_t>(64, record * 8 / 1024)) + "KiB";
  options.segment_size = std::to_string(std::max<std::uint64_t>(64, record * 8 / 1024)) + "KiB";
  options.disk_capacity = "36MiB";
  DaemonProcess daemon(options);
  daemon.start();

  ReferenceEngine reference(model, format);
  const auto seed = static_cast<std::uint64_t>(format);
  SharedPrompts prompts(model.config.vocab_size, 24, seed);
  std::vector<std::unique_ptr<EngineUnderTest>> engines;
  for (int i = 0; i < 2; ++i) {
    engines.push_back(std::make_unique<EngineUnderTest>(model, format, daemon.socket()));
    engines.back()->wait_connected();
  }

  DaemonStatus seen;  // over all daemons
  const auto note = [&] {
    const auto status = daemon.status();
    for (std::size_t t = 0; t < kTiers; ++t) {
      seen.hits[t] += status.hits[t];
      seen.evictions[t] += status.evictions[t];
      EXPECT_LE(status.taken_bytes[t], status.cap_bytes[t]);
    }
  };
  std::uint64_t reused = 0;
  int different = 0;
  for (int i = 0; i < kPromptsPerFormat; ++i) {
    const auto chance = prompts.draw(0, 99);
    auto& engine = engines[prompts.draw(0, 1)];
    if (chance < 4) daemon.drop(TierSet{}.with(Tier::device).with(Tier::host));
    if (chance == 4) daemon.drop({});
    if (chance == 5 || chance == 6) {
      note();
      chance == 5 ? daemon.stop_and_start() : daemon.kill_and_start();
      for (auto& each : engines) each->wait_connected();
    }
    if (chance == 7) {
      engine = std::make_unique<EngineUnderTest>(model, format, daemon.socket());
      engine->wait_connected();
    }
    const auto request = prompts.next();
    const auto result = engine->answer(request);
    reused += result.reused_tokens;
    EXPECT_LT(result.reused_tokens, request.prompt.size());
    if (result.tokens != reference.answer(request)) {
      ++different;
      ADD_FAILURE() << "prompt " << i << " of " << request.prompt.size() << " tokens, "
                    << result.reused_tokens << " reused: another answer";
    }
    if (chance >= 80) (void)engine->client().flush(Clock::now() + std::chrono::seconds(10));
  }
  note();
  EXPECT_EQ(different, 0);
  EXPECT_GT(reused, 0U);
  for (const Tier tier : kAllTiers) {
    EXPECT_GT(seen.hits[index_of(tier)], 0U) << "no hit in the " << name(tier) << " tier";
  }
  EXPECT_GT(sum(seen.evictions), 0U);
  testing::Test::RecordProperty("reused_tokens", std::to_string(reused));
}

class Fidelity : public testing::TestWithParam<StorageFormat> {};

TEST_P(Fidelity, every_answer_equals_the_one_computed_without_a_cache) {
  compare_with_computed(*engine::test::TestModel::make_small(), GetParam());
}

TEST(EndlessFidelity, every_answer_within_sinks_and_a_window_equals_the_one_computed) {
  const auto model = engine::test::TestModel::make_small();
  ASSERT_TRUE(model->config.attend_within(4, 48, 0));
  compare_with_computed(*model, kFormat);
}

// Records without V: latents and rotary keys.
class LatentFidelity : public testing::TestWithParam<StorageFormat> {};

TEST_P(LatentFidelity, every_answer_equals_the_one_computed_without_a_cache) {
  const auto model = engine::test::load_checkpoint(engine::test::kLatent[1]);
  ASSERT_NE(model, nullptr);
  compare_with_computed(*model, GetParam());
}

const auto kFormats = testing::ValuesIn(engine::test::kAllFormats);
const auto kNameOfFormat = [](const auto& format) { return std::string(name(format.param)); };
INSTANTIATE_TEST_SUITE_P(Formats, Fidelity, kFormats, kNameOfFormat);
INSTANTIATE_TEST_SUITE_P(Formats, LatentFidelity, kFormats, kNameOfFormat);

}  // namespace
}  // namespace kvtier::e2e
