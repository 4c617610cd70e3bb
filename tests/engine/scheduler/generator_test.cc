#include "engine_adapter/reference/scheduler/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/engine/scheduler/fake_cache.h"
#include "tests/engine/support.h"

namespace kvtier::engine::test {
namespace {

class GeneratorTest : public OverSmallModel<testing::TestWithParam<StorageFormat>> {
 protected:
  void SetUp() override { ASSERT_NE(model_, nullptr); }

  static GenerateRequest request(std::size_t prompt_tokens, std::uint32_t tokens_max = 40) {
    return {.prompt = random_tokens(prompt_tokens, model_->config.vocab_size, 3),
            .tokens_max = tokens_max,
            .sampling = {.temperature = 0.9, .seed = 11},
            .cache_deadline = std::chrono::milliseconds(1000)};
  }

  // Each run is another engine: only the cache lasts.
  static Result<GenerateResult> run(const GenerateRequest& request, Cache* cache,
                                    StorageFormat format, std::uint32_t chunk = 32,
                                    std::uint32_t pages = 64) {
    TestEngine engine(*model_, format, chunk, pages);
    Generator generator(engine.llama, *engine.pool, id_of(engine.ns), cache);
    auto result = generator.generate(request);
    EXPECT_EQ(engine.pool->pages_free(), pages);
    return result;
  }

  static std::vector<Token> tokens_without_cache(const GenerateRequest& request,
                                                 StorageFormat format) {
    return run(request, nullptr, format).value().tokens;
  }

  // Without header and padding, which say nothing of the values.
  static std::map<Key, std::vector<std::byte>> payloads(const FakeCache& cache) {
    std::map<Key, std::vector<std::byte>> found;
    for (const auto& [key, record] : cache.records) {
      const auto payload =
          std::span(record).subspan(cache.layout().header_bytes, cache.layout().payload_bytes);
      found[key].assign(payload.begin(), payload.end());
    }
    return found;
  }
};

INSTANTIATE_TEST_SUITE_P(Engine, GeneratorTest, testing::ValuesIn(kAllFormats),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST_P(GeneratorTest, FindsWhatTheRequestBeforeLeftInThePagesWhereTheyAreKept) {
  const auto expected = tokens_without_cache(request(100), GetParam());
  for (const bool keep_pages : {false, true}) {
    TestEngine engine(*model_, GetParam(), 32, 64);
    Generator generator(engine.llama, *engine.pool, id_of(engine.ns), nullptr,
                        LoadPolicy::automatic, {}, keep_pages);
    EXPECT_EQ(generator.generate(request(100)).value().reused_own, 0U);
    const auto again = generator.generate(request(100)).value();
    EXPECT_EQ(again.tokens, expected);
    EXPECT_EQ(again.reused_own, keep_pages ? 96U : 0U);
    EXPECT_EQ(again.reused_tokens, again.reused_own);
  }
}

TEST_P(GeneratorTest, GivesTheSameTokensForASeedWhateverTheChunks) {
  const auto expected = tokens_without_cache(request(100), GetParam());
  EXPECT_EQ(expected.size(), 40U);
  for (const std::uint32_t chunk : {1U, 17U, 512U}) {
    EXPECT_EQ(run(request(100), nullptr, GetParam(), chunk).value().tokens, expected);
  }
  GenerateRequest other = request(100);
  other.sampling.seed = 12;
  EXPECT_NE(run(other, nullptr, GetParam()).value().tokens, expected);
}

TEST_P(GeneratorTest, GivesTheSameTokensOnAHitAsOnAMiss) {
  FakeCache cache(model_->ns(GetParam()));
  const auto miss = run(request(100), &cache, GetParam()).value();
  EXPECT_EQ(miss.reused_tokens, 0U);
  const auto hit = run(request(100), &cache, GetParam()).value();
  EXPECT_EQ(hit.reused_tokens, 96U);
  EXPECT_EQ(hit.reused_by_tier[index_of(Tier::host)], 96U);
  EXPECT_EQ(hit.tokens, miss.tokens);
  EXPECT_EQ(hit.tokens, tokens_without_cache(request(100), GetParam()));
}

TEST_P(GeneratorTest, AlwaysComputesTheLastTokenAtEveryBoundary) {
  for (const std::size_t length : {1U, 15U, 16U, 17U, 31U, 32U, 33U, 48U}) {
    FakeCache cache(model_->ns(GetParam()));
    const auto miss = run(request(length), &cache, GetParam()).value();
    const auto hit = run(request(length), &cache, GetParam()).value();
    EXPECT_EQ(hit.reused_tokens, (length - 1) / 16 * 16) << length;
    EXPECT_EQ(hit.tokens, miss.tokens) << length;
    EXPECT_EQ(hit.tokens, tokens_without_cache(request(length), GetParam())) << length;
  }
}

// Records without V.
class GeneratorOverLatents : public GeneratorTest {
 public:
  static void SetUpTestSuite() { model_ = load_checkpoint(kLatent[1]); }
};
INSTANTIATE_TEST_SUITE_P(Engine, GeneratorOverLatents, testing::ValuesIn(kAllFormats),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST_P(GeneratorOverLatents, GivesTheSameTokensOnAHitAsOnAMiss) {
  FakeCache cache(model_->ns(GetParam()));
  const auto miss = run(request(100), &cache, GetParam()).value();
  EXPECT_EQ(miss.reused_tokens, 0U);
  const auto hit = run(request(100), &cache, GetParam(), 17).value();
  EXPECT_EQ(hit.reused_tokens, 96U);
  EXPECT_EQ(hit.tokens, miss.tokens);
  EXPECT_EQ(hit.tokens, tokens_without_cache(request(100), GetParam()));
}

using GeneratorWithOneFormat = GeneratorTest;
INSTANTIATE_TEST_SUITE_P(Engine, GeneratorWithOneFormat, testing::Values(StorageFormat::fp8_e4m3),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST_P(GeneratorWithOneFormat, OffersEachBlockOfPromptAndAnswerOnce) {
  FakeCache cache(model_->ns(GetParam()));
  const auto first = run(request(40), &cache, GetParam()).value();
  // 40 + 39 tokens were fed: four whole blocks.
  EXPECT_EQ(cache.records.size(), 4U);
  EXPECT_EQ(cache.write_backs_open, 0U);

  // The whole conversation as the next prompt finds its answer's blocks.
  GenerateRequest next = request(40);
  next.prompt.insert(next.prompt.end(), first.tokens.begin(), first.tokens.end());
  EXPECT_EQ(run(next, &cache, GetParam()).value().reused_tokens, 64U);
  for (const auto& [key, times] : cache.writes) EXPECT_EQ(times, 1);
  ASSERT_FALSE(cache.answers.empty());
  for (const std::uint32_t tokens : cache.answers) EXPECT_EQ(tokens, 40U);
}

TEST_P(GeneratorWithOneFormat, WaitsForEachLayerOfTheFirstChunkInOrder) {
  FakeCache cache(model_->ns(GetParam()));
  ASSERT_TRUE(run(request(100), &cache, GetParam()));
  EXPECT_TRUE(cache.layers_waited.empty());
  cache.load_delay = 3;
  ASSERT_TRUE(run(request(100), &cache, GetParam()));
  EXPECT_EQ(cache.layers_waited, (std::vector<std::uint32_t>{0, 1, 2}));
}

TEST_P(GeneratorWithOneFormat, AsksForALeaseOncePerRequestEvenOnAMiss) {
  FakeCache cache(model_->ns(GetParam()));
  ASSERT_TRUE(run(request(100), &cache, GetParam()));
  ASSERT_TRUE(run(request(100), &cache, GetParam()));
  EXPECT_EQ(cache.leases, (std::vector<std::uint32_t>{0, 6}));
}

TEST_P(GeneratorWithOneFormat, ComputesAgainFromTheFirstBlockThatDidNotHold) {
  const auto expected = tokens_without_cache(request(100), GetParam());
  for (const std::uint32_t held : {0U, 1U, 3U, 5U}) {
    FakeCache cache(model_->ns(GetParam()));
    ASSERT_TRUE(run(request(100), &cache, GetParam()));
    const auto sound = payloads(cache);
    cache.held = held;
    const auto result = run(request(100), &cache, GetParam()).value();
    EXPECT_EQ(result.tokens, expected) << held;
    EXPECT_EQ(result.reused_tokens, held * 16);
    EXPECT_EQ(result.reused_by_tier[index_of(Tier::host)], held * 16);
    EXPECT_TRUE(payloads(cache) == sound) << "garbage was written back";
  }
}

TEST_P(GeneratorWithOneFormat, GoesOnByComputingWhateverTheCacheFails) {
  const auto expected = tokens_without_cache(request(100), GetParam());
  FakeCache cache(model_->ns(GetParam()));
  ASSERT_TRUE(run(request(100), &cache, GetParam()));
  const auto reused_with = [&](auto fault) {
    FakeCache faulty = cache;
    fault(faulty);
    const auto result = run(request(100), &faulty, GetParam()).value();
    EXPECT_EQ(result.tokens, expected);
    return result.reused_tokens;
  };
  EXPECT_EQ(reused_with([](FakeCache& c) { c.lease_error = Errc::deadline; }), 0U);
  EXPECT_EQ(reused_with([](FakeCache& c) { c.lease_error = Errc::unavailable; }), 0U);
  EXPECT_EQ(reused_with([](FakeCache& c) { c.load_error = Errc::stale; }), 0U);
  EXPECT_EQ(reused_with([](FakeCache& c) { c.ready_max = 0; }), 0U);
  EXPECT_EQ(reused_with([](FakeCache& c) { c.ready_max = 2; }), 32U);
  EXPECT_EQ(reused_with([](FakeCache& c) { c.loaded_max = 0; }), 0U);
  EXPECT_EQ(reused_with([](FakeCache& c) { c.loaded_max = 4; }), 64U);
  EXPECT_EQ(reused_with([](FakeCache& c) { c.matches_too_much = true; }), 96U);
}

// A CPU model that says it reads the device tier, as a GPU's does.
class InPlaceLlama : public Llama {
 public:
  using Llama::Llama;
  bool reads_device_tier() const noexcept override { return true; }
};

TEST_P(GeneratorWithOneFormat, AttendsInPlaceAndComputesAgainWhatItReadThereOnceTheLeaseIsLost) {
  const auto expected = tokens_without_cache(request(100), GetParam());
  FakeCache cache(model_->ns(GetParam()));
  ASSERT_TRUE(run(request(100), &cache, GetParam()));
  const auto sound = payloads(cache);
  const auto answer_in_place = [&](std::uint32_t checks) {
    cache.checks_until_lost = checks;
    cache.load_delay = checks % 2 * 3;
    const Namespace ns = model_->ns(GetParam());
    const RecordLayout layout = RecordLayout::of(ns);
    const auto pool = PagePool::create(layout, 64).value();
    InPlaceLlama llama(model_->config, model_->weights, kernels::cpu_kernels(), layout, 32);
    Generator generator(llama, *pool, id_of(ns), &cache);
    auto result = generator.generate(request(100)).value();
    EXPECT_EQ(pool->pages_free(), 64U);
    return result;
  };
  const auto kept = answer_in_place(~0U);
  EXPECT_EQ(kept.tokens, expected);
  EXPECT_EQ(kept.reused_tokens, 96U);
  for (const std::uint32_t checks : {1U, 2U, 17U, 40U}) {
    const auto lost = answer_in_place(checks);
    EXPECT_EQ(lost.tokens, expected) << checks;
    EXPECT_EQ(lost.reused_tokens, 16U) << "the first block in place is the second";
  }
  EXPECT_TRUE(payloads(cache) == sound) << "something else was written back";
}

TEST_P(GeneratorWithOneFormat, StopsAtTheEndTokenAndLeavesItOut) {
  const auto expected = tokens_without_cache(request(20), GetParam());
  const Token end = expected[7];
  model_->config.eos = {end};
  const auto result = run(request(20), nullptr, GetParam()).value();
  model_->config.eos = {};
  const auto until = std::find(expected.begin(), expected.end(), end);
  EXPECT_EQ(result.finish, FinishReason::end_token);
  EXPECT_EQ(result.tokens, std::vector<Token>(expected.begin(), until));
}

TEST_P(GeneratorWithOneFormat, StopsWhereTheContextIsFull) {
  const std::uint32_t positions = model_->config.positions_max;
  const auto result = run(request(positions - 2), nullptr, GetParam(), 512).value();
  EXPECT_EQ(result.finish, FinishReason::context_full);
  EXPECT_EQ(result.tokens.size(), 2U);
  const auto full = run(request(positions), nullptr, GetParam(), 512);
  ASSERT_FALSE(full) << "there is no room for a token";
  EXPECT_NE(full.error().message.find("max_position_embeddings"), std::string::npos);
}

TEST_P(GeneratorWithOneFormat, RefusesWhatItCannotAnswer) {
  const auto refused = [](const GenerateRequest& request, std::uint32_t pages = 64) {
    return run(request, nullptr, StorageFormat::f32, 32, pages).error().message;
  };
  EXPECT_NE(refused(request(0)).find("empty"), std::string::npos);
  EXPECT_NE(refused(request(1025)).find("1024"), std::string::npos);
  EXPECT_NE(refused(request(10, 0)).find("max tokens"), std::string::npos);
  EXPECT_NE(refused(request(100), 8).find("--pool-tokens"), std::string::npos);
  GenerateRequest strange = request(10);
  strange.prompt[3] = model_->config.vocab_size;
  EXPECT_NE(refused(strange).find("vocab_size"), std::string::npos);
}

}  // namespace
}  // namespace kvtier::engine::test
