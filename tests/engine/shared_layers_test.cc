// Models whose layers attend to K and V of an earlier one.
#include <cstring>

#include "engine_adapter/reference/model/weights/engine_memory.h"
#include "tests/engine/scheduler/scheduled.h"

namespace kvtier::engine::test {
namespace {

using Sources = std::vector<std::uint32_t>;

// A layer with the one before, with the first of all, and with one behind which another has its
// own.
const Sources kSources[] = {{0, 0, 2}, {0, 0, 0}, {0, 1, 0}, {0, 1, 1}};

std::unique_ptr<TestModel> shared_model(const Sources& sources) {
  auto model = TestModel::make_small();
  model->config.kv_source = sources;
  return model;
}

TEST(SharedLayers, KeepWhatIsMadeAndNothingElse) {
  for (const Sources& sources : kSources) {
    const auto model = shared_model(sources);
    const RecordLayout layout = RecordLayout::of(model->ns(StorageFormat::bf16));
    const std::uint32_t kept = model->config.kept_layers();
    EXPECT_EQ(layout.layers, kept);
    EXPECT_EQ(layout.payload_bytes, kept * 16U * 2 * model->config.kv_heads *
                                        model->config.head_dim * sizeof(std::uint16_t));
  }
  EXPECT_EQ(shared_model({0, 1, 0})->config.kept_layers(), 2U);
  EXPECT_EQ(shared_model({0, 1, 1})->config.kept_layer(2), 1U);
  EXPECT_TRUE(shared_model({0, 1, 0})->config.looks_back());
  EXPECT_FALSE(shared_model({0, 0, 2})->config.looks_back());
  EXPECT_FALSE(TestModel::make_small()->config.looks_back());
}

TEST(SharedLayers, GiveTheSameBitsWhateverTheChunksAndOthersThanWithoutSharing) {
  const auto plain = TestModel::make_small();
  const auto tokens = random_tokens(131, plain->config.vocab_size, 5);
  for (const Sources& sources : kSources) {
    const auto model = shared_model(sources);
    for (const StorageFormat format : kAllFormats) {
      const auto all_at_once = logits_of(*model, format, tokens, 512, 131);
      EXPECT_NE(all_at_once, logits_of(*plain, format, tokens, 512, 131));
      for (const std::uint32_t chunk : {1U, 7U, 17U, 64U}) {
        const auto in_chunks = logits_of(*model, format, tokens, chunk, 131);
        EXPECT_EQ(
            std::memcmp(in_chunks.data(), all_at_once.data(), all_at_once.size() * sizeof(float)),
            0)
            << name(format) << ", chunks of " << chunk;
      }
    }
  }
}

TEST(SharedLayers, AHitEqualsAMiss) {
  for (const Sources& sources : kSources) {
    const auto model = shared_model(sources);
    FakeCache cache(model->ns(kScheduledFormat));
    Request request;
    request.prompt = random_tokens(100, model->config.vocab_size, 8);
    request.tokens_max = 30;
    request.ignore_end = true;
    for (const bool cached : {false, true}) {
      Scheduled scheduled(*model, &cache, 64);
      const auto collected = scheduled.add(request);
      scheduled.run();
      EXPECT_EQ(collected->tokens(), Scheduled::alone(*model, request));
      EXPECT_EQ(collected->result->usage.cached() != 0, cached);
    }
  }
}

TEST(SharedLayers, HaveFewerWeights) {
  ModelConfig config = TestModel::make_small()->config;
  const std::uint64_t whole = parameters_of(config);
  const std::uint64_t kv = std::uint64_t{config.kv_heads} * config.head_dim;
  config.kv_source = {0, 0, 2};
  EXPECT_EQ(whole - parameters_of(config), 2 * (kv * config.hidden_size + kv)) << "and biases";
}

}  // namespace
}  // namespace kvtier::engine::test
