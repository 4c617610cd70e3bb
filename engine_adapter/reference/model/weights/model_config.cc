#include "engine_adapter/reference/model/weights/model_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine_adapter/reference/model/weights/config_fields.h"
#include "engine_adapter/reference/model/weights/layer_sharing.h"
#include "engine_adapter/reference/tokenizer/added_tokens.h"

namespace kvtier::engine {
namespace {

using Kind = kernels::RopeScaling::Kind;

// What a Qwen3 has where its config.json leaves head_dim out.
constexpr std::uint32_t kQwen3HeadDim = 128;

constexpr const char* kArchitectures =
    "supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, "
    "DeepseekV2ForCausalLM and DeepseekV3ForCausalLM, one of them";

std::string read_architecture(const Json& json, JsonFields& fields) {
  const Json* architectures = find(json, "architectures");
  if (architectures != nullptr && architectures->is_array() && architectures->size() == 1) {
    for (const char* known :
         {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
          "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"}) {
      if (architectures->front() == known) return known;
    }
  }
  fields.fail(Errc::invalid, "architectures = " + (architectures ? architectures->dump() : "null") +
                                 " is not supported; " + kArchitectures);
  return {};
}

// layer_types, where it is there, also of a model that has no windows.
void check_layer_types(const Json& json, std::uint32_t layers, JsonFields& fields) {
  const Json* types = find(json, "layer_types");
  if (types == nullptr) return;
  if (!types->is_array() || types->size() != layers) {
    return fields.fail(Errc::malformed, "layer_types is no list of num_hidden_layers texts");
  }
  for (const Json& type : *types) {
    if (type == "sliding_attention" || type == "full_attention") continue;
    fields.fail(Errc::invalid, "layer_types has " + type.dump() +
                                   ", which is not supported; supported are full_attention and "
                                   "sliding_attention");
  }
}

// Which layers attend to a window only: all of a Mistral, those from max_window_layers on of a Qwen
// that uses it, or those that layer_types names.
std::vector<bool> read_windowed_layers(const Json& json, const std::string& architecture,
                                       std::uint32_t layers, JsonFields& fields) {
  std::vector<bool> windowed(layers);
  if (const Json* types = find(json, "layer_types")) {
    for (std::size_t i = 0; i < layers; ++i) windowed[i] = (*types)[i] == "sliding_attention";
    return windowed;
  }
  const bool mistral = architecture == "MistralForCausalLM";
  const std::uint32_t from = mistral ? 0 : fields.count("max_window_layers", 28);
  for (std::uint32_t i = from; i < layers; ++i) windowed[i] = true;
  return windowed;
}

void read_windows(const Json& json, const std::string& architecture, ModelConfig& config,
                  JsonFields& fields) {
  check_layer_types(json, config.layers, fields);
  const bool qwen = architecture.starts_with("Qwen");
  const bool used = fields.flag("use_sliding_window", !qwen);
  const std::uint32_t window = fields.count("sliding_window", 0);
  // A Llama has none whatever is written down.
  if (!used || architecture == "LlamaForCausalLM" || config.latent) return;
  if (qwen && window == 0)
    fields.fail(Errc::malformed, "use_sliding_window without sliding_window");
  // One that holds the longest context is none.
  if (fields.error() || window == 0 || window >= config.positions_max) return;
  const auto windowed = read_windowed_layers(json, architecture, config.layers, fields);
  if (std::none_of(windowed.begin(), windowed.end(), [](bool one) { return one; })) return;
  for (const bool one : windowed) config.windows.push_back(one ? window : 0);
}

void read_llama3(JsonFields& rope, kernels::RopeScaling& scaling) {
  scaling.low_freq_factor = static_cast<float>(rope.number("low_freq_factor"));
  scaling.high_freq_factor = static_cast<float>(rope.number("high_freq_factor"));
  scaling.original_max_positions = rope.count("original_max_position_embeddings");
  if (!rope.error() && (scaling.low_freq_factor <= 0 || scaling.original_max_positions == 0 ||
                        scaling.high_freq_factor <= scaling.low_freq_factor)) {
    rope.fail(Errc::invalid,
              "needs 0 < low_freq_factor < high_freq_factor and "
              "original_max_position_embeddings > 0");
  }
}

// transformers, modeling_rope_utils.py, _compute_yarn_parameters: get_mscale().
double yarn_mscale(double factor, double weight) {
  return factor > 1 ? 0.1 * weight * std::log(factor) + 1 : 1;
}

// What attention_factor is where it is left out. DeepSeek's models have weights of it, one of which
// their scores get twice (modeling_deepseek_v3.py, yarn_apply_mscale()).
double read_mscale(const Json& json, ModelConfig& config, JsonFields& rope) {
  const double factor = rope.number("factor");
  if (!config.latent) {
    for (const char* key : {"mscale", "mscale_all_dim"}) {
      if (find(json, key) == nullptr) continue;
      rope.fail(Errc::invalid,
                std::string(key) + " is not supported; supported is attention_factor");
    }
    return yarn_mscale(factor, 1);
  }
  const double weight = rope.number("mscale", 0);
  const double weight_all = rope.number("mscale_all_dim", 0);
  if (!rope.error() && !(weight >= 0 && weight_all >= 0)) {
    rope.fail(Errc::invalid, "mscale and mscale_all_dim must be 0 or above");
  }
  const double of_scores = weight_all != 0 ? yarn_mscale(factor, weight_all) : 1;
  config.latent->score_factor = static_cast<float>(of_scores * of_scores);
  return weight != 0 && weight_all != 0 ? yarn_mscale(factor, weight) / of_scores
                                        : yarn_mscale(factor, 1);
}

// transformers, modeling_rope_utils.py, _compute_yarn_parameters.
void read_yarn(const Json& json, ModelConfig& config, JsonFields& rope,
               kernels::RopeScaling& scaling) {
  scaling.original_max_positions =
      rope.count("original_max_position_embeddings", config.positions_max);
  scaling.beta_fast = static_cast<float>(rope.number("beta_fast", 32));
  scaling.beta_slow = static_cast<float>(rope.number("beta_slow", 1));
  scaling.truncate = rope.flag("truncate", true);
  const double attention_factor = read_mscale(json, config, rope);
  scaling.attention_factor = static_cast<float>(rope.number("attention_factor", attention_factor));
  if (!rope.error() && !(scaling.original_max_positions > 0 && scaling.beta_slow > 0 &&
                         scaling.beta_fast > scaling.beta_slow && scaling.attention_factor > 0)) {
    rope.fail(Errc::invalid,
              "needs 0 < beta_slow < beta_fast, attention_factor > 0 and "
              "original_max_position_embeddings > 0");
  }
}

Result<kernels::RopeScaling> read_scaling(const Json& json, const std::string& where,
                                          ModelConfig& config) {
  JsonFields rope(json, where);
  kernels::RopeScaling scaling;
  const std::string kind = rope.text("rope_type", rope.text("type", "default"));
  if (kind == "linear") {
    scaling.kind = Kind::linear;
  } else if (kind == "llama3") {
    scaling.kind = Kind::llama3;
    read_llama3(rope, scaling);
  } else if (kind == "yarn") {
    scaling.kind = Kind::yarn;
    read_yarn(json, config, rope, scaling);
  } else if (kind == "dynamic") {
    rope.fail(Errc::invalid,
              "rope type 'dynamic' is not supported: with it K depends on how long a text becomes, "
              "so that no block could be used again; supported are default, linear, llama3 and "
              "yarn");
  } else if (kind != "default") {
    rope.fail(Errc::invalid, "rope type '" + kind +
                                 "' is not supported; supported are default, linear, llama3 and "
                                 "yarn");
  }
  if (config.latent && (scaling.kind == Kind::linear || scaling.kind == Kind::llama3)) {
    rope.fail(Errc::invalid, "rope type '" + kind +
                                 "' is not supported with latent attention; supported are default "
                                 "and yarn");
  }
  if (scaling.kind != Kind::none) {
    scaling.factor = static_cast<float>(rope.number("factor"));
    if (!rope.error() && !(scaling.factor > 0)) rope.fail(Errc::invalid, "factor must be above 0");
  }
  if (rope.number("partial_rotary_factor", 1.0) != 1.0) {
    rope.fail(Errc::invalid, "partial_rotary_factor is not supported unless 1");
  }
  refuse_unknown_rope(json, rope);
  if (rope.error()) return *rope.error();
  return scaling;
}

Result<void> read_rope(const Json& json, const std::string& where, ModelConfig& config) {
  const Json* newer = find(json, "rope_parameters");
  const Json* classic = find(json, "rope_scaling");
  const char* key = newer != nullptr ? "rope_parameters" : "rope_scaling";
  const Json* parameters = newer != nullptr ? newer : classic;
  JsonFields top(json, where);
  if (newer != nullptr && classic != nullptr && *newer != *classic) {
    top.fail(Errc::invalid,
             "rope_parameters and rope_scaling say different things; leave one of them out");
  }
  config.rope_theta = top.number("rope_theta", 10000.0);
  if (top.error()) return *top.error();
  if (parameters != nullptr) {
    const auto scaling = read_scaling(*parameters, where + ": " + key, config);
    if (!scaling) return scaling.error();
    config.rope_scaling = *scaling;
    JsonFields rope(*parameters, where + ": " + key);
    config.rope_theta = rope.number("rope_theta", config.rope_theta);
    if (rope.error()) return *rope.error();
  }
  if (!(config.rope_theta > 0) || !std::isfinite(config.rope_theta)) {
    return make_error(Errc::invalid, where + ": rope_theta must be above 0");
  }
  return {};
}

// After head counts and layers have been read.
void read_latent(const Json& json, const std::string& architecture, ModelConfig& config,
                 JsonFields& fields) {
  const auto require = [&fields](bool holds, const std::string& what) {
    if (!holds) fields.fail(Errc::invalid, what);
  };
  LatentShape latent;
  require(json.contains("q_lora_rank"),
          "q_lora_rank is missing: give null where queries are projected at once");
  require(json.value("q_lora_rank", Json()) != 0, "q_lora_rank must be above 0, or null");
  latent.q_rank = fields.count("q_lora_rank", 0);
  latent.kv_rank = fields.count("kv_lora_rank");
  latent.nope_dim = fields.count("qk_nope_head_dim");
  latent.rope_dim = fields.count("qk_rope_head_dim");
  latent.v_dim = fields.count("v_head_dim");
  latent.interleaved_rope =
      architecture == "DeepseekV2ForCausalLM" || fields.flag("rope_interleave", true);
  const std::uint32_t dense = fields.count("first_k_dense_replace", 0);
  require(dense >= config.layers,
          "first_k_dense_replace = " + std::to_string(dense) + " of " +
              std::to_string(config.layers) +
              " layers: the others are mixtures of experts, which are not supported; supported is "
              "num_hidden_layers or more");
  require(config.kv_heads == config.heads,
          "num_key_value_heads must be num_attention_heads with latent attention");
  require(!config.qkv_bias, "attention_bias is not supported with latent attention");
  constexpr std::uint32_t kDimMax = 1U << 16;
  require(latent.kv_rank > 0 && latent.kv_rank % 2 == 0 && latent.kv_rank <= kDimMax,
          "kv_lora_rank must be even, above 0 and at most 65536");
  require(latent.rope_dim > 0 && latent.rope_dim % 2 == 0 && latent.rope_dim <= kDimMax,
          "qk_rope_head_dim must be even, above 0 and at most 65536");
  require(latent.nope_dim > 0 && latent.nope_dim <= kDimMax && latent.v_dim > 0 &&
              latent.v_dim <= kDimMax && latent.q_rank <= kDimMax,
          "qk_nope_head_dim and v_head_dim must be above 0, and they and q_lora_rank at most "
          "65536");
  config.kv_heads = 1;
  config.head_dim = latent.kv_rank + latent.rope_dim;
  config.latent = latent;
}

// One at or above vocab_size is never chosen, and refused in a prompt.
std::vector<Token> read_ids(const Json& json, const char* key, JsonFields& fields) {
  const Json* value = find(json, key);
  if (value == nullptr) return {};
  std::vector<Token> ids;
  for (const Json& id : value->is_array() ? *value : Json::array({*value})) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= kTokenIdsMax) {
      fields.fail(Errc::invalid, std::string(key) + " = " + value->dump() +
                                     " is not a token id, or a list of them");
      return {};
    }
    ids.push_back(id.get<Token>());
  }
  return ids;
}

void check_shape(ModelConfig& config, JsonFields& fields) {
  if (fields.error()) return;
  const auto require = [&fields](bool holds, const std::string& what) {
    if (!holds) fields.fail(Errc::invalid, what);
  };
  require(config.vocab_size > 0 && config.hidden_size > 0 && config.intermediate_size > 0 &&
              config.layers > 0 && config.positions_max > 0,
          "vocab_size, hidden_size, intermediate_size, num_hidden_layers and "
          "max_position_embeddings must be above 0");
  require(config.kv_heads > 0 && config.heads > 0 && config.heads % config.kv_heads == 0,
          "num_attention_heads must be a multiple of num_key_value_heads");
  require(config.head_dim > 0 && config.head_dim % 2 == 0, "head_dim must be even and above 0");
  require(config.rms_norm_eps >= 0 && std::isfinite(config.rms_norm_eps),
          "rms_norm_eps must be 0 or above");
}

std::string shortest(double number) {
  char text[400];  // a double has at most 309 digits before the point
  return {text, std::to_chars(text, text + sizeof text, number, std::chars_format::fixed).ptr};
}

std::string describe(const kernels::RopeScaling& scaling) {
  switch (scaling.kind) {
    case Kind::none:
      return "none";
    case Kind::linear:
      return "linear:" + shortest(scaling.factor);
    case Kind::llama3:
      return "llama3:" + shortest(scaling.factor) + ":" + shortest(scaling.low_freq_factor) + ":" +
             shortest(scaling.high_freq_factor) + ":" +
             std::to_string(scaling.original_max_positions);
    case Kind::yarn:
      return "yarn:" + shortest(scaling.factor) + ":" + shortest(scaling.beta_fast) + ":" +
             shortest(scaling.beta_slow) + ":" + std::to_string(scaling.original_max_positions) +
             ":" + shortest(scaling.attention_factor) + (scaling.truncate ? "" : ":smooth");
  }
  return "?";
}

}  // namespace

void ModelConfig::limit_positions(std::uint32_t tokens) {
  positions_max = std::min(positions_max, tokens);
  const bool limits = std::any_of(windows.begin(), windows.end(), [this](std::uint32_t window) {
    return window != 0 && window < positions_max;
  });
  if (!limits) windows.clear();
}

Result<void> ModelConfig::attend_within(std::uint32_t sinks_, std::uint32_t window,
                                        std::uint32_t context_max) {
  if (latent) {
    return make_error(Errc::invalid,
                      "--window: not with latent attention (kv_lora_rank in the config.json)");
  }
  if (!windows.empty()) {
    return make_error(Errc::invalid, "--window: the model has windows of its own (sliding_window)");
  }
  if (window < kBlockTokens) {
    return make_error(Errc::invalid,
                      "--window must be " + std::to_string(kBlockTokens) + " (a block) or above");
  }
  if (std::uint64_t{sinks_} + window > positions_max) {
    return make_error(Errc::invalid,
                      "--sinks and --window are " + std::to_string(std::uint64_t{sinks_} + window) +
                          " tokens together, more than the " + std::to_string(positions_max) +
                          " that the model was trained for (max_position_embeddings)");
  }
  sinks = sinks_;
  endless = true;
  positions_max = context_max == 0 ? kEndlessTokens : context_max;
  windows.assign(layers, window);
  return {};
}

std::uint32_t ModelConfig::widest_window() const noexcept {
  if (windows.empty() || std::ranges::count(windows, 0U) != 0) return 0;
  return *std::ranges::max_element(windows);
}

BlockRange ModelConfig::unseen_blocks(std::uint32_t tokens) const noexcept {
  const std::uint32_t window = widest_window();
  if (window == 0 || tokens < window) return {};
  const std::uint32_t first = (sinks + kBlockTokens - 1) / kBlockTokens;
  const std::uint32_t end = (tokens + 1 - window) / kBlockTokens;
  return {first, std::max(first, end)};
}

std::uint32_t ModelConfig::tokens_kept(std::uint32_t rows) const noexcept {
  const std::uint32_t window = widest_window();
  if (window == 0) return positions_max;
  const std::uint64_t kept = std::uint64_t{sinks} + window + rows + 4ULL * kBlockTokens;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(kept, positions_max));
}

float ModelConfig::attention_scale() const noexcept {
  if (latent) {
    return latent->score_factor /
           std::sqrt(static_cast<float>(latent->nope_dim + latent->rope_dim));
  }
  const float factor = rope_scaling.attention_factor;
  return factor * factor / std::sqrt(static_cast<float>(head_dim));
}

std::string ModelConfig::describe_positions() const {
  std::string text = "rope theta=" + shortest(rope_theta) + " scaling=" + describe(rope_scaling);
  if (latent && latent->score_factor != 1) text += " scores=" + shortest(latent->score_factor);
  if (windows.empty()) return text;
  if (std::count(windows.begin(), windows.end(), windows[0]) ==
      static_cast<std::ptrdiff_t>(windows.size())) {
    return text + " window=" + std::to_string(windows[0]) +
           (sinks == 0 ? "" : " sinks=" + std::to_string(sinks));
  }
  text += " windows=";
  for (std::size_t i = 0; i < windows.size();) {
    const auto end = std::find_if(windows.begin() + static_cast<std::ptrdiff_t>(i), windows.end(),
                                  [&](std::uint32_t other) { return other != windows[i]; });
    const auto next = static_cast<std::size_t>(end - windows.begin());
    text += (i == 0 ? "" : ",") + std::to_string(windows[i]) + "x" + std::to_string(next - i);
    i = next;
  }
  return text;
}

Result<ModelConfig> parse_model_config(const Json& json, const std::string& where) {
  JsonFields fields(json, where);
  if (fields.error()) return *fields.error();
  const std::string architecture = read_architecture(json, fields);
  const bool latent = architecture.starts_with("Deepseek");
  refuse_unsupported(json, latent, fields);

  ModelConfig config;
  config.unknown_fields = unknown_config_fields(json, latent);
  config.vocab_size = fields.count("vocab_size");
  config.hidden_size = fields.count("hidden_size");
  config.intermediate_size = fields.count("intermediate_size");
  config.layers = fields.count("num_hidden_layers");
  config.heads = fields.count("num_attention_heads");
  config.kv_heads = fields.count("num_key_value_heads", config.heads);
  const std::uint32_t derived = config.heads > 0 && config.hidden_size % config.heads == 0
                                    ? config.hidden_size / config.heads
                                    : 0;
  config.qk_norm = architecture == "Qwen3ForCausalLM";
  config.head_dim = fields.count("head_dim", config.qk_norm ? kQwen3HeadDim : derived);
  config.positions_max = fields.count("max_position_embeddings");
  config.rms_norm_eps = static_cast<float>(fields.number("rms_norm_eps", 1e-6));
  config.tied_embeddings = fields.flag("tie_word_embeddings", false);
  const bool attention_bias = fields.flag("attention_bias", false);
  config.qkv_bias = architecture == "Qwen2ForCausalLM" || attention_bias;
  config.output_bias = architecture != "Qwen2ForCausalLM" && attention_bias;
  config.mlp_bias = architecture != "DeepseekV3ForCausalLM" && fields.flag("mlp_bias", false);
  if (latent && !fields.error()) read_latent(json, architecture, config, fields);
  check_shape(config, fields);
  if (!fields.error()) read_windows(json, architecture, config, fields);
  if (!fields.error()) read_sharing(json, config, fields);
  config.bos = read_ids(json, "bos_token_id", fields);
  config.eos = read_ids(json, "eos_token_id", fields);
  if (fields.error()) return *fields.error();
  if (const auto rope = read_rope(json, where, config); !rope) return rope.error();
  return config;
}

Result<ModelConfig> load_model_config(const std::filesystem::path& file) {
  const auto json = read_json(file);
  if (!json) return json.error();
  return parse_model_config(*json, file.string());
}

Result<void> add_generation_config(const std::filesystem::path& file, ModelConfig& config) {
  std::error_code code;
  if (!std::filesystem::exists(file, code)) return {};
  const auto json = read_json(file);
  if (!json) return json.error();
  JsonFields fields(*json, file.string());
  const auto eos = read_ids(*json, "eos_token_id", fields);
  if (fields.error()) return *fields.error();
  for (const Token token : eos) {
    if (std::find(config.eos.begin(), config.eos.end(), token) == config.eos.end()) {
      config.eos.push_back(token);
    }
  }
  return {};
}

}  // namespace kvtier::engine
