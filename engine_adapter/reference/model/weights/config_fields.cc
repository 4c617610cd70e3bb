#include "engine_adapter/reference/model/weights/config_fields.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace kvtier::engine {
namespace {

// Fields of models that compute otherwise, with the value under which they compute as these do.
enum class Neutral : std::uint8_t { none, off, one, empty, silu };
struct Foreign {
  const char* key;
  Neutral neutral;
};
constexpr Foreign kForeign[] = {
    {"add_cross_attention", Neutral::off},
    {"alibi", Neutral::off},
    {"attention_chunk_size", Neutral::none},
    {"attention_multiplier", Neutral::none},
    {"attention_sinks", Neutral::off},
    {"attn_logit_softcapping", Neutral::off},
    {"attn_temperature_tuning", Neutral::off},
    {"audio_config", Neutral::none},
    {"compression_config", Neutral::none},
    {"cross_attention_layers", Neutral::empty},
    {"dim_model_base", Neutral::none},
    {"embedding_multiplier", Neutral::one},
    {"final_logit_softcapping", Neutral::off},
    {"hidden_act", Neutral::silu},
    {"hidden_activation", Neutral::silu},
    {"is_encoder_decoder", Neutral::off},
    {"kv_lora_rank", Neutral::none},
    {"logit_scale", Neutral::one},
    {"logits_scaling", Neutral::one},
    {"no_rope_layer_interval", Neutral::none},
    {"no_rope_layers", Neutral::empty},
    {"num_nextn_predict_layers", Neutral::off},
    {"parallel_attn", Neutral::off},
    {"partial_rotary_factor", Neutral::one},
    {"q_lora_rank", Neutral::none},
    {"qk_layernorm", Neutral::off},
    {"quantization", Neutral::none},
    {"quantization_config", Neutral::none},
    {"query_pre_attn_scalar", Neutral::none},
    {"residual_multiplier", Neutral::one},
    {"rope_interleaved", Neutral::off},
    {"rope_local_base_freq", Neutral::none},
    {"rotary_pct", Neutral::one},
    {"scale_depth", Neutral::none},
    {"scale_emb", Neutral::one},
    {"text_config", Neutral::none},
    {"use_alibi", Neutral::off},
    {"use_bidirectional_attention", Neutral::off},
    {"use_parallel_residual", Neutral::off},
    {"use_qk_norm", Neutral::off},
    {"vision_config", Neutral::none},
};

// What model_config.cc reads, and what is about training, saving or generating.
constexpr std::string_view kKnown[] = {
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "attention_bias",
    "attention_dropout",
    "bos_token_id",
    "dtype",
    "embd_pdrop",
    "cla_share_factor",
    "eos_token_id",
    "head_dim",
    "hidden_size",
    "id2label",
    "initializer_range",
    "intermediate_size",
    "label2id",
    "layer_types",
    "max_position_embeddings",
    "max_window_layers",
    "mlp_bias",
    "model_type",
    "num_attention_heads",
    "num_experts",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_kv_shared_layers",
    "num_local_experts",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",
    "resid_pdrop",
    "return_dict",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "torch_dtype",
    "transformers_version",
    "unk_token_id",
    "use_cache",
    "use_cla",
    "use_sliding_window",
    "vocab_size",
};

// Of models with latent attention: their shape, and what is about experts, which a model whose
// layers are all dense has none of.
constexpr std::string_view kLatent[] = {
    "aux_loss_alpha",
    "ep_size",
    "first_k_dense_replace",
    "kv_lora_rank",
    "moe_intermediate_size",
    "moe_layer_freq",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "norm_topk_prob",
    "num_experts_per_tok",
    "num_nextn_predict_layers",
    "q_lora_rank",
    "qk_head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "rope_interleave",
    "routed_scaling_factor",
    "scoring_func",
    "seq_aux",
    "topk_group",
    "topk_method",
    "v_head_dim",
};

bool is_latent(std::string_view key) noexcept {
  return std::ranges::find(kLatent, key) != std::end(kLatent);
}

constexpr std::string_view kRope[] = {
    "attention_factor", "beta_fast", "beta_slow",
    "factor",           "finetuned", "high_freq_factor",
    "low_freq_factor",  "mscale",    "mscale_all_dim",
    "rope_theta",       "rope_type", "original_max_position_embeddings",
    "truncate",         "type",      "partial_rotary_factor",
};

bool is_neutral(const Json& value, Neutral neutral) {
  switch (neutral) {
    case Neutral::none:
      return false;
    case Neutral::off:
      return value == false || (value.is_number() && value == 0);
    case Neutral::one:
      return value.is_number() && value == 1;
    case Neutral::empty:
      return value.is_array() && value.empty();
    case Neutral::silu:
      return value == "silu";
  }
  return false;
}

const char* mend_of(Neutral neutral) {
  switch (neutral) {
    case Neutral::none:
      return "supported are models without it";
    case Neutral::off:
      return "supported is false, or 0";
    case Neutral::one:
      return "supported is 1";
    case Neutral::empty:
      return "supported is []";
    case Neutral::silu:
      return "supported is silu";
  }
  return "";
}

}  // namespace

void refuse_unsupported(const Json& json, bool latent, JsonFields& fields) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (latent && is_latent(key)) continue;  // first_k_dense_replace decides
    if (const Json* value = find(json, key)) {
      fields.fail(Errc::invalid, std::string(key) + " = " + value->dump() +
                                     ": mixtures of experts are not supported");
    }
  }
  for (const Foreign& foreign : kForeign) {
    const Json* value = find(json, foreign.key);
    if (value == nullptr || is_neutral(*value, foreign.neutral)) continue;
    if (latent && is_latent(foreign.key)) continue;
    fields.fail(Errc::invalid, std::string(foreign.key) + " = " + value->dump() +
                                   " is not supported; " + mend_of(foreign.neutral));
  }
}

void refuse_unknown_rope(const Json& json, JsonFields& fields) {
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) {
    if (value.is_null() || std::ranges::find(kRope, key) != std::end(kRope)) continue;
    fields.fail(Errc::invalid, Json(key).dump() + " = " + value.dump() +
                                   " is not supported: it would change the positions");
  }
}

std::vector<std::string> unknown_config_fields(const Json& json, bool latent) {
  std::vector<std::string> unknown;
  if (!json.is_object()) return unknown;
  for (const auto& [key, value] : json.items()) {
    const bool foreign =
        std::ranges::any_of(kForeign, [&key = key](const Foreign& one) { return key == one.key; });
    if (value.is_null() || foreign || (latent && is_latent(key)) ||
        std::ranges::find(kKnown, key) != std::end(kKnown))
      continue;
    unknown.push_back(key);
  }
  return unknown;
}

}  // namespace kvtier::engine
