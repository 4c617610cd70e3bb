#include "engine_adapter/reference/model/llama.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/record/record.h"
#include "engine_adapter/reference/scheduler/generator.h"
#include "tests/engine/support.h"

namespace kvtier::engine::test {
namespace {

class GoldenLogits : public testing::TestWithParam<Checkpoint> {};

TEST_P(GoldenLogits, AreThoseOfTheReference) {
  const auto model = load_checkpoint(GetParam());
  ASSERT_NE(model, nullptr);
  const Golden golden = read_golden(GetParam());
  ASSERT_FALSE(golden.tokens.empty());
  const auto logits = logits_of(*model, StorageFormat::f32, golden.tokens, 512, golden.rows);
  ASSERT_EQ(logits.size(), golden.logits.size());
  const double error = relative_error(logits, golden.logits);
  RecordProperty("relative_error", std::to_string(error));
  EXPECT_LT(error, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Bundled, GoldenLogits, testing::ValuesIn(kBundled),
                         [](const auto& test) { return std::string(test.param.title); });
INSTANTIATE_TEST_SUITE_P(Windowed, GoldenLogits, testing::ValuesIn(kWindowed),
                         [](const auto& test) { return std::string(test.param.title); });
INSTANTIATE_TEST_SUITE_P(Latent, GoldenLogits, testing::ValuesIn(kLatent),
                         [](const auto& test) { return std::string(test.param.title); });
INSTANTIATE_TEST_SUITE_P(Families, GoldenLogits, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param.title); });

class GoldenAnswers : public testing::TestWithParam<Checkpoint> {};

TEST_P(GoldenAnswers, AreTheLikeliestTokensOfTheReference) {
  const auto model = load_checkpoint(GetParam());
  ASSERT_NE(model, nullptr);
  const Golden golden = read_golden(GetParam());
  ASSERT_EQ(golden.greedy.size(), 256U);
  TestEngine engine(*model, StorageFormat::f32, 64);
  Generator generator(engine.llama, *engine.pool, id_of(engine.ns), nullptr);
  const auto answer = generator.generate({.prompt = golden.tokens, .tokens_max = 256});
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->tokens, golden.greedy);
}

INSTANTIATE_TEST_SUITE_P(Windowed, GoldenAnswers, testing::ValuesIn(kWindowed),
                         [](const auto& test) { return std::string(test.param.title); });
INSTANTIATE_TEST_SUITE_P(Latent, GoldenAnswers, testing::ValuesIn(kLatent),
                         [](const auto& test) { return std::string(test.param.title); });
INSTANTIATE_TEST_SUITE_P(Families, GoldenAnswers, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param.title); });

constexpr Checkpoint kCheckpoints[] = {
    {"llama3_rope", "tests/data/checkpoints/llama3-rope/config.json",
     "tests/data/checkpoints/llama3-rope/model.safetensors",
     "tests/data/checkpoints/llama3-rope/golden.safetensors"},
    {"llama3_rope_newer_spelling", "tests/data/checkpoints/llama3-rope/config-v5.json",
     "tests/data/checkpoints/llama3-rope/model.safetensors",
     "tests/data/checkpoints/llama3-rope/golden.safetensors"},
    {"multi_head", "tests/data/checkpoints/mha/config.json",
     "tests/data/checkpoints/mha/model.safetensors",
     "tests/data/checkpoints/mha/golden.safetensors"},
    {"yarn", "tests/data/checkpoints/yarn/config.json",
     "tests/data/checkpoints/yarn/model.safetensors",
     "tests/data/checkpoints/yarn/golden.safetensors"},
    {"multi_query", "tests/data/checkpoints/mqa/config.json",
     "tests/data/checkpoints/mqa/model.safetensors",
     "tests/data/checkpoints/mqa/golden.safetensors"},
};
INSTANTIATE_TEST_SUITE_P(Engine, GoldenLogits, testing::ValuesIn(kCheckpoints),
                         [](const auto& test) { return std::string(test.param.title); });

TEST(Windowed, GivesTheSameBitsWhateverTheChunks) {
  const auto model = load_checkpoint(kWindowed[0]);
  ASSERT_NE(model, nullptr);
  const auto tokens = random_tokens(131, model->config.vocab_size, 5);
  for (const StorageFormat format : {StorageFormat::fp8_e4m3, StorageFormat::f32}) {
    const auto all_at_once = logits_of(*model, format, tokens, 512, 131);
    for (const std::uint32_t chunk : {1U, 7U, 17U}) {
      const auto in_chunks = logits_of(*model, format, tokens, chunk, 131);
      EXPECT_EQ(
          std::memcmp(in_chunks.data(), all_at_once.data(), all_at_once.size() * sizeof(float)), 0)
          << "chunks of " << chunk;
    }
  }
}

TEST(SinksAndWindow, GiveTheSameBitsWhateverTheChunksAndWithPagesGivenBack) {
  const auto model = TestModel::make_small();
  ASSERT_TRUE(model->config.attend_within(20, 32, 0));
  const auto tokens = random_tokens(300, model->config.vocab_size, 5);
  for (const StorageFormat format : {StorageFormat::fp8_e4m3, StorageFormat::f32}) {
    const auto all_at_once = logits_of(*model, format, tokens, 512, 300);
    for (const std::uint32_t chunk : {1U, 7U, 17U, 64U}) {
      const std::uint32_t pages = model->config.tokens_kept(chunk) / kBlockTokens + 1;
      ASSERT_LT(pages, 300 / kBlockTokens);
      TestEngine engine(*model, format, chunk, pages);
      Sequence sequence(*engine.pool, NamespaceId{}, 300);
      std::vector<float> logits(chunk * model->config.vocab_size);
      for (std::size_t from = 0; from < tokens.size();) {
        const std::size_t rows = std::min<std::size_t>(chunk, tokens.size() - from);
        const StepInput input{&sequence, std::span(tokens).subspan(from, rows),
                              static_cast<std::uint32_t>(rows)};
        ASSERT_TRUE(engine.llama.step({&input, 1}, logits)) << "its pages are enough";
        ASSERT_EQ(std::memcmp(logits.data(), all_at_once.data() + from * model->config.vocab_size,
                              rows * model->config.vocab_size * sizeof(float)),
                  0)
            << "chunks of " << chunk << " at " << from;
        from += rows;
        sequence.forget(model->config.unseen_blocks(sequence.length()));
      }
      EXPECT_TRUE(sequence.page(1)) << "tokens 16 to 19 are sinks";
      EXPECT_FALSE(sequence.page(2));
    }
  }
}

TEST(SinksAndWindow, AreWhatTheyAreTogetherWithinAContextThatTheModelTakes) {
  const auto model = TestModel::make_small();
  const auto plain = TestModel::make_small();
  ASSERT_TRUE(model->config.attend_within(8, 48, 0));
  const auto tokens = random_tokens(57, model->config.vocab_size, 5);
  const auto whole = logits_of(*plain, StorageFormat::f32, tokens, 64, 57);
  const auto within = logits_of(*model, StorageFormat::f32, tokens, 64, 57);
  const std::size_t before = std::size_t{56} * model->config.vocab_size;
  EXPECT_LT(relative_error(std::span(within).first(before), std::span(whole).first(before)), 1e-6)
      << "the first 56 tokens see all before them";
  EXPECT_GT(relative_error(std::span(within).subspan(before), std::span(whole).subspan(before)),
            1e-4);
}

TEST(SinksAndWindow, AreInTheNamespaceAndHaveBounds) {
  const auto of = [](std::uint32_t sinks, std::uint32_t window) {
    const auto model = TestModel::make_small();
    EXPECT_TRUE(model->config.attend_within(sinks, window, 0));
    return id_of(model->ns(StorageFormat::f32));
  };
  EXPECT_NE(of(4, 64), of(4, 80));
  EXPECT_NE(of(4, 64), of(5, 64));
  EXPECT_NE(of(0, 64), of(4, 64));
  EXPECT_NE(of(0, 64), id_of(TestModel::make_small()->ns(StorageFormat::f32)));
  auto config = TestModel::make_small()->config;
  EXPECT_FALSE(config.attend_within(4, 15, 0)) << "less than a block";
  EXPECT_FALSE(config.attend_within(1, config.positions_max, 0)) << "more than was trained";
  const auto windowed = load_checkpoint(kWindowed[0]);
  EXPECT_FALSE(windowed->config.attend_within(4, 16, 0)) << "windows of its own";
  ASSERT_TRUE(config.attend_within(4, 64, 5000));
  EXPECT_EQ(config.positions_max, 5000U);
}

// Each format with K and V, and with latents alone.
class EveryFormat : public testing::TestWithParam<std::tuple<bool, StorageFormat>> {
 public:
  static void SetUpTestSuite() {
    plain_ = TestModel::make_small();
    latent_ = load_checkpoint(kLatent[1]);
  }
  static void TearDownTestSuite() {
    plain_.reset();
    latent_.reset();
  }

 protected:
  void SetUp() override { ASSERT_TRUE(plain_ && latent_); }
  static StorageFormat format() { return std::get<1>(GetParam()); }
  static const TestModel& model() { return std::get<0>(GetParam()) ? *latent_ : *plain_; }

 private:
  static inline std::unique_ptr<TestModel> plain_, latent_;
};

INSTANTIATE_TEST_SUITE_P(Engine, EveryFormat,
                         testing::Combine(testing::Bool(), testing::ValuesIn(kAllFormats)),
                         [](const auto& test) {
                           return (std::get<0>(test.param) ? "latent_" : "") +
                                  std::string(name(std::get<1>(test.param)));
                         });

TEST_P(EveryFormat, GivesTheSameBitsWhateverTheChunks) {
  const auto tokens = random_tokens(131, model().config.vocab_size, 5);
  const auto all_at_once = logits_of(model(), format(), tokens, 512, 131);
  for (const std::uint32_t chunk : {1U, 7U, 16U, 17U, 64U}) {
    const auto in_chunks = logits_of(model(), format(), tokens, chunk, 131);
    EXPECT_EQ(std::memcmp(in_chunks.data(), all_at_once.data(), all_at_once.size() * sizeof(float)),
              0)
        << "chunks of " << chunk;
  }
}

TEST_P(EveryFormat, GivesTheSameBitsForSequencesComputedTogether) {
  const std::size_t vocab = model().config.vocab_size;
  const auto one = random_tokens(40, model().config.vocab_size, 6);
  const auto two = random_tokens(23, model().config.vocab_size, 7);
  TestEngine engine(model(), format(), 64);
  Sequence first(*engine.pool, id_of(engine.ns), 64);
  Sequence second(*engine.pool, id_of(engine.ns), 64);
  std::vector<float> logits(2 * vocab);
  const StepInput inputs[] = {{&first, std::span(one), 1}, {&second, std::span(two), 1}};
  ASSERT_TRUE(engine.llama.step(inputs, logits));
  const auto alone_one = logits_of(model(), format(), one, 64, 1);
  const auto alone_two = logits_of(model(), format(), two, 64, 1);
  EXPECT_EQ(std::memcmp(logits.data(), alone_one.data(), vocab * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(logits.data() + vocab, alone_two.data(), vocab * sizeof(float)), 0);
}

TEST_P(EveryFormat, LeavesRecordsThatProveTheirTokens) {
  const auto tokens = random_tokens(50, model().config.vocab_size, 8);
  TestEngine engine(model(), format(), 7);
  const NamespaceId ns = id_of(engine.ns);
  Sequence sequence(*engine.pool, ns, 64);
  while (sequence.length() < tokens.size()) {
    const auto rest = std::span(tokens).subspan(sequence.length());
    const StepInput input{&sequence, rest.first(std::min<std::size_t>(7, rest.size())), 0};
    ASSERT_TRUE(engine.llama.step({&input, 1}, {}));
  }
  const RecordLayout& layout = engine.pool->layout();
  const auto keys = chain_keys(ns, 16, tokens);
  ASSERT_EQ(sequence.blocks_complete(), keys.size());
  for (std::uint32_t block = 0; block < keys.size(); ++block) {
    const BlockIdentity identity{ns, keys[block], block == 0 ? Key{} : keys[block - 1], block};
    const auto verified =
        verify_header({sequence.records()[block], layout.record_bytes}, layout, identity,
                      std::span(tokens).subspan(std::size_t{block} * 16, 16));
    EXPECT_TRUE(verified) << verified.error().message;
  }
}

TEST_P(EveryFormat, GoesOnFromATruncatedSequenceAsIfNothingHadBeenThere) {
  const auto tokens = random_tokens(70, model().config.vocab_size, 9);
  const std::size_t vocab = model().config.vocab_size;
  TestEngine engine(model(), format(), 128);
  Sequence sequence(*engine.pool, id_of(engine.ns), 128);
  std::vector<float> logits(vocab);
  const StepInput all{&sequence, std::span(tokens), 1};
  ASSERT_TRUE(engine.llama.step({&all, 1}, logits));
  sequence.truncate(2);
  EXPECT_EQ(engine.pool->pages_free(), 62U);
  std::vector<float> again(vocab);
  const StepInput rest{&sequence, std::span(tokens).subspan(32), 1};
  ASSERT_TRUE(engine.llama.step({&rest, 1}, again));
  EXPECT_EQ(std::memcmp(logits.data(), again.data(), vocab * sizeof(float)), 0);
}

TEST(Llama, HasLittleLossInNarrowFormats) {
  const auto model = TestModel::make_small();
  ASSERT_NE(model, nullptr);
  const auto tokens = random_tokens(131, model->config.vocab_size, 5);
  const auto exact = logits_of(*model, StorageFormat::f32, tokens, 512, 64);
  const auto error = [&](StorageFormat format) {
    return relative_error(logits_of(*model, format, tokens, 512, 64), exact);
  };
  EXPECT_GT(error(StorageFormat::bf16), 0);
  EXPECT_LT(error(StorageFormat::bf16), 0.01);
  EXPECT_LT(error(StorageFormat::fp8_e4m3), 0.2);
  EXPECT_LT(error(StorageFormat::fp8_e5m2), 0.4);
  EXPECT_LT(error(StorageFormat::int8), 0.1);
  EXPECT_LT(error(StorageFormat::int4), 0.8);
}

TEST(Llama, SaysWhenThePagePoolIsExhausted) {
  const auto model = TestModel::make_small();
  ASSERT_NE(model, nullptr);
  TestEngine engine(*model, StorageFormat::f32, 64, 2);
  const auto tokens = random_tokens(48, model->config.vocab_size, 1);
  Sequence sequence(*engine.pool, id_of(engine.ns), 64);
  const StepInput fits{&sequence, std::span(tokens).first(32), 0};
  ASSERT_TRUE(engine.llama.step({&fits, 1}, {}));
  const StepInput input{&sequence, std::span(tokens).subspan(32), 0};
  const auto done = engine.llama.step({&input, 1}, {});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Errc::no_space);
  EXPECT_EQ(sequence.length(), 32U);
}

TEST(PagePool, KeepsAPageUntilItsLastUserIsGone) {
  const auto pool =
      PagePool::create(RecordLayout::of(TestModel::make_small()->ns(StorageFormat::f32)), 1)
          .value();
  const PageId page = pool->acquire().value();
  pool->add_reference(page);
  pool->release(page);
  EXPECT_EQ(pool->acquire().error().code, Errc::no_space);
  pool->release(page);
  EXPECT_EQ(pool->acquire().value(), page);
  pool->release(page);
}

}  // namespace
}  // namespace kvtier::engine::test
