#include <gtest/gtest.h>

#include "tests/engine/support.h"

namespace kvtier::engine::test {
namespace {

ModelConfig accepted(const Json& json) {
  const auto config = parse_model_config(as_read(json), "config.json");
  EXPECT_TRUE(config) << config.error().message;
  return config ? *config : ModelConfig{};
}

std::string refusal_of(const Json& json) {
  const auto config = parse_model_config(as_read(json), "config.json");
  return config ? "accepted" : config.error().message;
}

std::string refusal(const std::string& key, const Json& value) {
  Json json = small_config();
  json[key] = value;
  return refusal_of(json);
}

const Json kLlama3 = {{"rope_type", "llama3"},
                      {"factor", 8.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 8192}};

TEST(Json, RefusesWhatIsNestedTooDeeplyToBeWrittenInAMessage) {
  const auto nested = [](std::size_t depth) {
    return parse_json(std::string(depth, '[') + std::string(depth, ']'), "file");
  };
  EXPECT_TRUE(nested(200));
  const auto refused = nested(1'000'000);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "file: nested too deeply");
}

TEST(ModelConfig, ReadsBothSpellingsOfRopeAlike) {
  Json classic = small_config();
  classic["rope_theta"] = 500000.0;
  classic["rope_scaling"] = kLlama3;
  Json older = classic;
  older["rope_scaling"].erase("rope_type");
  older["rope_scaling"]["type"] = "llama3";
  Json newer = small_config();
  newer.erase("rope_theta");
  newer["rope_parameters"] = kLlama3;
  newer["rope_parameters"]["rope_theta"] = 500000.0;
  for (const Json& json : {classic, older, newer}) {
    EXPECT_EQ(accepted(json).describe_positions(), "rope theta=500000 scaling=llama3:8:1:4:8192");
  }
}

TEST(ModelConfig, DescribesEveryScaling) {
  Json json = small_config();
  EXPECT_EQ(accepted(json).describe_positions(), "rope theta=10000 scaling=none");
  json["rope_scaling"] = nullptr;
  EXPECT_EQ(accepted(json).describe_positions(), "rope theta=10000 scaling=none");
  json["rope_scaling"] = {{"rope_type", "default"}};
  EXPECT_EQ(accepted(json).describe_positions(), "rope theta=10000 scaling=none");
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 2.5}};
  EXPECT_EQ(accepted(json).describe_positions(), "rope theta=10000 scaling=linear:2.5");
}

TEST(ModelConfig, DerivesWhatIsLeftOut) {
  Json json = small_config();
  json.erase("num_key_value_heads");
  const ModelConfig derived = accepted(json);
  EXPECT_EQ(derived.head_dim, 8U);
  EXPECT_EQ(derived.kv_heads, 4U);
  EXPECT_TRUE(derived.eos.empty());
  json["head_dim"] = 24;
  json["eos_token_id"] = {3, 5};
  json["bos_token_id"] = 0;
  const ModelConfig given = accepted(json);
  EXPECT_EQ(given.head_dim, 24U);
  EXPECT_EQ(given.eos, (std::vector<Token>{3, 5}));
  EXPECT_EQ(given.bos, (std::vector<Token>{0}));
}

Json latent_config() {
  Json json = small_config();
  json["architectures"] = {"DeepseekV2ForCausalLM"};
  json["num_key_value_heads"] = json["num_attention_heads"];
  json["first_k_dense_replace"] = json["num_hidden_layers"];
  json["n_routed_experts"] = 64;
  json["q_lora_rank"] = nullptr;
  json["attention_bias"] = false;
  json["kv_lora_rank"] = 32;
  json["qk_nope_head_dim"] = 12;
  json["qk_rope_head_dim"] = 4;
  json["v_head_dim"] = 8;
  return json;
}

TEST(ModelConfig, TakesLatentAttentionWhereAllLayersAreDense) {
  const ModelConfig config = accepted(latent_config());
  ASSERT_TRUE(config.latent);
  EXPECT_EQ(config.kv_heads, 1U);
  EXPECT_EQ(config.head_dim, 36U);
  EXPECT_EQ(config.head_dim_v(), 0U);
  EXPECT_FLOAT_EQ(config.attention_scale(), 0.25F);
}

TEST(ModelConfig, RefusesByNameWhatLatentAttentionDoesNotCover) {
  const auto names = [](const char* key, const Json& value, const std::string& what) {
    Json json = latent_config();
    json[key] = value;
    const auto parsed = parse_model_config(as_read(json), "config.json");
    ASSERT_FALSE(parsed) << key;
    EXPECT_NE(parsed.error().message.find(what), std::string::npos) << parsed.error().message;
  };
  names("first_k_dense_replace", 1, "mixtures of experts");
  names("attention_bias", true, "attention_bias");
  names("kv_lora_rank", 33, "kv_lora_rank");
  names("qk_rope_head_dim", 3, "qk_rope_head_dim");
  names("num_key_value_heads", 1, "num_key_value_heads");
  names("q_lora_rank", 0, "q_lora_rank");
  names("rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}, "supported are default and yarn");
  names("rope_scaling", {{"rope_type", "yarn"}, {"factor", 2}, {"mscale", -1}}, "mscale");
}

TEST(ModelConfig, RefusesByNameWhatIsNotSupported) {
  const auto names = [](const std::string& message, const std::string& what) {
    EXPECT_NE(message.find("config.json"), std::string::npos) << message;
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  names(refusal("architectures", {"MixtralForCausalLM"}), "MistralForCausalLM");
  names(refusal("architectures", nullptr), "LlamaForCausalLM");
  names(refusal("architectures", {"DeepseekV3ForCausalLM"}), "q_lora_rank is missing");
  names(refusal("hidden_act", "gelu"), "supported is silu");
  names(refusal("quantization_config", {{"bits", 4}}), "quantization_config");
  names(refusal("architectures", {"Qwen3MoeForCausalLM"}), "Qwen3ForCausalLM");
  names(refusal("num_experts", 64), "mixtures of experts");
  names(refusal("rope_scaling", {{"rope_type", "longrope"}, {"factor", 2}}), "'longrope'");
  names(refusal("rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}), "'dynamic'");
  names(refusal("rope_scaling", {{"rope_type", "yarn"}, {"factor", 2}, {"mscale", 1}}), "mscale");
  names(refusal("rope_scaling", {{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", 1}}),
        "beta_fast");
  names(refusal("rope_scaling", {{"rope_type", "linear"}}), "factor is missing");
  names(refusal("rope_scaling", {{"rope_type", "linear"}, {"factor", 0}}), "factor");
  names(refusal("rope_parameters", {{"rope_type", "llama3"}, {"factor", 8}}), "low_freq_factor");
  names(refusal("rope_parameters", {{"partial_rotary_factor", 0.5}}), "partial_rotary_factor");
}

TEST(ModelConfig, RefusesFieldsOfOtherArithmeticUnlessTheyAreNeutral) {
  const std::vector<std::pair<const char*, Json>> foreign{
      {"attn_logit_softcapping", 50.0},
      {"final_logit_softcapping", 30.0},
      {"partial_rotary_factor", 0.5},
      {"residual_multiplier", 0.22},
      {"query_pre_attn_scalar", 256},
      {"rope_local_base_freq", 10000.0},
      {"use_bidirectional_attention", true},
      {"no_rope_layers", {1, 1, 0}},
      {"hidden_activation", "gelu_pytorch_tanh"},
      {"vision_config", Json::object()},
  };
  for (const auto& [key, value] : foreign) {
    const std::string message = refusal(key, value);
    EXPECT_NE(message.find(key), std::string::npos) << message;
    EXPECT_EQ(refusal(key, nullptr), "accepted");
  }
  EXPECT_EQ(refusal("attn_logit_softcapping", 0.0), "accepted");
  EXPECT_EQ(refusal("use_bidirectional_attention", false), "accepted");
  EXPECT_EQ(refusal("partial_rotary_factor", 1.0), "accepted");
  EXPECT_EQ(refusal("no_rope_layers", Json::array()), "accepted");
  EXPECT_EQ(refusal("hidden_activation", "silu"), "accepted");
}

TEST(ModelConfig, RefusesWhatItDoesNotKnowAboutPositions) {
  for (const Json& rope : std::vector<Json>{
           {{"rope_type", "default"}, {"mrope_section", {16, 24, 24}}},
           {{"full_attention", {{"rope_theta", 1e6}}},
            {"sliding_attention", {{"rope_theta", 1e4}}}},
       }) {
    EXPECT_NE(refusal("rope_parameters", rope).find("positions"), std::string::npos) << rope;
    EXPECT_NE(refusal("rope_scaling", rope).find("positions"), std::string::npos) << rope;
  }
  Json both = small_config();
  both["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  both["rope_scaling"] = both["rope_parameters"];
  EXPECT_EQ(refusal_of(both), "accepted");
  both["rope_scaling"]["rope_theta"] = 20000.0;
  EXPECT_NE(refusal_of(both).find("different things"), std::string::npos);
  Json mixed = small_config();
  mixed["layer_types"] = {"full_attention", "linear_attention", "full_attention"};
  EXPECT_NE(refusal_of(mixed).find("linear_attention"), std::string::npos);
}

TEST(ModelConfig, NamesTheWindowsThatKvDependsOn) {
  Json json = small_config();
  json["architectures"] = {"MistralForCausalLM"};
  json["num_hidden_layers"] = 3;
  json["max_position_embeddings"] = 4096;
  const std::string all = "rope theta=10000 scaling=none";
  json["sliding_window"] = 100;
  EXPECT_EQ(accepted(json).describe_positions(), all + " window=100");
  EXPECT_EQ(accepted(json).window(2), 100U);
  json["sliding_window"] = 4096;
  EXPECT_EQ(accepted(json).describe_positions(), all);
  json["sliding_window"] = nullptr;
  EXPECT_EQ(accepted(json).describe_positions(), all);
  json["sliding_window"] = 100;
  json["layer_types"] = {"full_attention", "sliding_attention", "sliding_attention"};
  EXPECT_EQ(accepted(json).describe_positions(), all + " windows=0x1,100x2");

  json["architectures"] = {"Qwen2ForCausalLM"};
  json.erase("layer_types");
  EXPECT_EQ(accepted(json).describe_positions(), all);
  json["use_sliding_window"] = true;
  json["max_window_layers"] = 2;
  EXPECT_EQ(accepted(json).describe_positions(), all + " windows=0x2,100x1");
  json["max_window_layers"] = 3;
  EXPECT_EQ(accepted(json).describe_positions(), all);
  json["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_NE(refusal_of(json).find("layer_types"), std::string::npos);
  json["layer_types"] = {"full_attention", "chunked_attention", "full_attention"};
  EXPECT_NE(refusal_of(json).find("chunked_attention"), std::string::npos);
  json.erase("layer_types");
  json.erase("sliding_window");
  EXPECT_NE(refusal_of(json).find("sliding_window"), std::string::npos);
}

TEST(ModelConfig, SaysWhoseKAndVALayerAttendsTo) {
  using Sources = std::vector<std::uint32_t>;
  Json json = small_config();
  json["num_hidden_layers"] = 6;
  EXPECT_TRUE(accepted(json).kv_source.empty());
  json["num_kv_shared_layers"] = 2;
  EXPECT_EQ(accepted(json).kv_source, (Sources{0, 1, 2, 3, 3, 3}));
  json["layer_types"] = {"sliding_attention", "full_attention",    "sliding_attention",
                         "full_attention",    "sliding_attention", "full_attention"};
  EXPECT_EQ(accepted(json).kv_source, (Sources{0, 1, 2, 3, 2, 3}));
  EXPECT_TRUE(accepted(json).looks_back());
  json["layer_types"] = {"full_attention", "full_attention",    "full_attention",
                         "full_attention", "sliding_attention", "full_attention"};
  EXPECT_NE(refusal_of(json).find("layer 4 is to share K and V"), std::string::npos);
  json.erase("layer_types");
  json["num_kv_shared_layers"] = 6;
  EXPECT_NE(refusal_of(json).find("num_kv_shared_layers is 6 of 6"), std::string::npos);
  json["num_kv_shared_layers"] = 0;
  json["use_cla"] = true;
  EXPECT_NE(refusal_of(json).find("cla_share_factor"), std::string::npos);
  json["cla_share_factor"] = 0;
  EXPECT_NE(refusal_of(json).find("cla_share_factor must be 1"), std::string::npos);
  json["cla_share_factor"] = 1;
  EXPECT_TRUE(accepted(json).kv_source.empty());
  json["cla_share_factor"] = 4;
  EXPECT_EQ(accepted(json).kv_source, (Sources{0, 0, 0, 0, 4, 4}));
  EXPECT_TRUE(accepted(json).unknown_fields.empty());
  json["num_kv_shared_layers"] = 1;
  EXPECT_NE(refusal_of(json).find("both"), std::string::npos);
}

TEST(ModelConfig, HasNoWindowWhereTheContextIsLimitedToIt) {
  Json json = small_config();
  json["architectures"] = {"MistralForCausalLM"};
  json["max_position_embeddings"] = 4096;
  json["sliding_window"] = 100;
  ModelConfig config = accepted(json);
  config.limit_positions(101);
  EXPECT_EQ(config.window(0), 100U);
  config.limit_positions(100);
  EXPECT_TRUE(config.windows.empty());
  EXPECT_EQ(config.positions_max, 100U);
  config.limit_positions(200);
  EXPECT_EQ(config.positions_max, 100U);
}

TEST(ModelConfig, TakesTheEndTokensOfTheGenerationConfiguration) {
  const TemporaryDirectory folder;
  ModelConfig config = accepted(small_config());
  config.eos = {2};
  ASSERT_TRUE(add_generation_config(folder / "generation_config.json", config));
  EXPECT_EQ(config.eos, (std::vector<Token>{2}));
  write_file(folder / "generation_config.json", R"({"eos_token_id": [2, 5]})");
  ASSERT_TRUE(add_generation_config(folder / "generation_config.json", config));
  EXPECT_EQ(config.eos, (std::vector<Token>{2, 5}));
  write_file(folder / "generation_config.json", R"({"eos_token_id": -1})");
  const auto refused = add_generation_config(folder / "generation_config.json", config);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("generation_config.json"), std::string::npos);
}

TEST(ModelConfig, KnowsWhereEachFamilyHasBiasesAndNorms) {
  Json json = small_config();
  json["attention_bias"] = true;
  EXPECT_TRUE(accepted(json).qkv_bias);
  EXPECT_TRUE(accepted(json).output_bias);
  EXPECT_FALSE(accepted(json).qk_norm);

  json["architectures"] = {"Qwen2ForCausalLM"};
  json.erase("attention_bias");
  json["use_sliding_window"] = false;
  json["sliding_window"] = 32768;
  json["layer_types"] = {"full_attention", "full_attention", "full_attention"};
  const ModelConfig qwen2 = accepted(json);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias);
  EXPECT_FALSE(qwen2.qk_norm);
  EXPECT_EQ(qwen2.head_dim, 8U);

  json["architectures"] = {"Qwen3ForCausalLM"};
  const ModelConfig qwen3 = accepted(json);
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128U);
}

TEST(ModelConfig, RefusesNumbersThatCannotBe) {
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size",
                          "num_attention_heads", "max_position_embeddings"}) {
    for (const Json& value : {Json(0), Json(-1), Json(1.5), Json("8"), Json(1ULL << 40)}) {
      EXPECT_NE(refusal(key, value), "accepted") << key << " = " << value;
    }
    EXPECT_NE(refusal(key, nullptr), "accepted") << key;
  }
  EXPECT_NE(refusal("num_key_value_heads", 3), "accepted");
  EXPECT_NE(refusal("head_dim", 7), "accepted");
  EXPECT_NE(refusal("rms_norm_eps", -1), "accepted");
  EXPECT_NE(refusal("rope_theta", 0), "accepted");
  EXPECT_EQ(refusal("eos_token_id", 61), "accepted");  // it is never chosen
  EXPECT_NE(refusal("eos_token_id", -1), "accepted");
  EXPECT_NE(refusal("eos_token_id", "</s>"), "accepted");
  EXPECT_NE(refusal("attention_bias", 1), "accepted");
}

}  // namespace
}  // namespace kvtier::engine::test
