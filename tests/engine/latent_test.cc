// Models with latent attention.
#include <gtest/gtest.h>

#include <utility>

#include "core/base/units.h"
#include "engine_adapter/reference/model/instance.h"
#include "engine_adapter/reference/model/weights/engine_memory.h"
#include "tests/engine/support.h"

namespace kvtier::engine::test {
namespace {

TEST(LatentAttention, KeepsOneLatentAndOneRotaryKeyOfATokenAndNoV) {
  const auto model = load_checkpoint(kLatent[0]);
  ASSERT_NE(model, nullptr);
  const RecordLayout layout = RecordLayout::of(model->ns(StorageFormat::f32));
  EXPECT_EQ(layout.head_dim_v, 0U);
  EXPECT_EQ(layout.payload_bytes, 2U * 16 * (48 + 16) * sizeof(float));
}

TEST(LatentAttention, HasLittleLossInNarrowFormats) {
  const auto model = load_checkpoint(kLatent[0]);
  ASSERT_NE(model, nullptr);
  const Golden golden = read_golden(kLatent[0]);
  constexpr std::pair<StorageFormat, double> kBounds[] = {{StorageFormat::bf16, 0.02},
                                                          {StorageFormat::fp8_e4m3, 0.2},
                                                          {StorageFormat::fp8_e5m2, 0.4},
                                                          {StorageFormat::int8, 0.1},
                                                          {StorageFormat::int4, 0.8}};
  for (const auto& [format, bound] : kBounds) {
    const auto logits = logits_of(*model, format, golden.tokens, 512, golden.rows);
    const double error = relative_error(logits, golden.logits);
    RecordProperty(name(format), std::to_string(error));
    EXPECT_LT(error, bound) << name(format);
    EXPECT_GT(error, 1e-4) << name(format) << ": what is attended to is what was stored";
  }
}

TEST(LatentAttention, HasYarnsFactorOfScoresInTheNamespace) {
  const auto plain = load_checkpoint(kLatent[0]);
  const auto scaled = load_checkpoint(kLatent[1]);
  ASSERT_TRUE(plain && scaled);
  EXPECT_EQ(plain->ns(StorageFormat::f32).positions.find("scores="), std::string::npos);
  EXPECT_NE(scaled->ns(StorageFormat::f32).positions.find(" scores=1.23"), std::string::npos)
      << scaled->ns(StorageFormat::f32).positions;
}

TEST(LatentAttention, TakesNoWindowOfACaller) {
  auto model = load_checkpoint(kLatent[0]);
  ASSERT_NE(model, nullptr);
  const auto taken = model->config.attend_within(4, 64, 0);
  ASSERT_FALSE(taken);
  EXPECT_NE(taken.error().message.find("latent attention"), std::string::npos);
}

TEST(LatentAttention, OfRandomWeightsIsTheSameForASeed) {
  const auto logits = [](std::uint64_t seed) {
    const auto loaded = LoadedModel::random("tiny-mla", seed).value();
    auto instance = Instance::make(*loaded, {.device = {}, .format = StorageFormat::f32}).value();
    return logits_of(*instance.model, *instance.pool, random_tokens(40, 2048, 1), 16, 1);
  };
  const auto once = logits(1);
  EXPECT_EQ(once, logits(1));
  EXPECT_NE(once, logits(2));
}

TEST(LatentAttention, HasAsManyWeightsAsItsCheckpoints) {
  for (const Checkpoint& checkpoint : kLatent) {
    const auto model = load_checkpoint(checkpoint);
    ASSERT_NE(model, nullptr);
    std::uint64_t weights = 0;
    for (const auto& [tensor_name, tensor] : model->tensors.tensors()) {
      std::uint64_t count = 1;
      for (const std::uint64_t extent : tensor.shape) count *= extent;
      weights += count;
    }
    EXPECT_EQ(parameters_of(model->config), weights) << checkpoint.title;
  }
}

// DeepSeek-V3's attention, in docs/engine.md.
TEST(LatentAttention, TakesAFractionOfWhatHeadsWouldTake) {
  Json json = Json::parse(R"({"architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 129280,
      "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
      "num_attention_heads": 128, "first_k_dense_replace": 61, "q_lora_rank": 1536,
      "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
      "max_position_embeddings": 163840, "rms_norm_eps": 1e-6, "rope_theta": 10000})");
  const auto latent = parse_model_config(json, "config.json").value();
  const auto plan = plan_capacity(latent, 32768, {StorageFormat::fp8_e4m3}, {}).value();
  EXPECT_EQ(plan.attention, "MLA");
  EXPECT_EQ(plan.formats[0].token_bytes, 61 * 576U);
  // More GPUs do not cut what has one head.
  const auto memory =
      plan_engine_memory(latent, plan.formats[0], 32768, {.gpus = 8, .gpu_bytes = 141_GiB}, {});
  EXPECT_EQ(memory.token_bytes, 61 * 576U);
  EXPECT_EQ(memory.mha_token_bytes, 61 * 128 * (128 + 64 + 128U));
  json["architectures"] = {"LlamaForCausalLM"};
  for (const char* key : {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                          "v_head_dim", "first_k_dense_replace"}) {
    json.erase(key);
  }
  json["head_dim"] = 128U;
  json["num_key_value_heads"] = 8U;
  const auto grouped = parse_model_config(json, "config.json").value();
  EXPECT_EQ(
      plan_capacity(grouped, 32768, {StorageFormat::fp8_e4m3}, {}).value().formats[0].token_bytes,
      61 * 8 * 256U);
}

}  // namespace
}  // namespace kvtier::engine::test
