// config.json of a LlamaForCausalLM, a MistralForCausalLM, a Qwen2ForCausalLM (Qwen2 and 2.5), a
// Qwen3ForCausalLM, or a DeepseekV2ForCausalLM or DeepseekV3ForCausalLM without experts, in the
// classic spelling (rope_theta, rope_scaling) and in that of transformers 5 (rope_parameters).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine_adapter/reference/files/json.h"
#include "kernels/table.h"
#include "kvtier/key.h"
#include "kvtier/pages.h"
#include "kvtier/result.h"

namespace kvtier::engine {

// Tokens of a block of the engine's cache.
inline constexpr std::uint32_t kBlockTokens = 16;
// Of a context without an end, where nothing else is said. Rotations by positions up to here are
// right to some hundredths of a radian in FP32.
inline constexpr std::uint32_t kEndlessTokens = 1U << 20;

// Of the norms of latents, whatever rms_norm_eps says: transformers, modeling_deepseek_v2.py and
// modeling_deepseek_v3.py.
inline constexpr float kLatentEpsilon = 1e-6F;

// Latent attention (DeepSeek-V2, arXiv:2405.04434, 2.1): a token's K and V in all heads come of one
// latent of kv_rank channels, beside one rotary key of rope_dim channels that all heads share.
struct LatentShape {
  std::uint32_t q_rank = 0;  // 0: queries are projected at once
  std::uint32_t kv_rank = 0;
  std::uint32_t nope_dim = 0;    // channels of a head of Q and K without positions
  std::uint32_t rope_dim = 0;    // and with them; even
  std::uint32_t v_dim = 0;       // channels of a head of V
  bool interleaved_rope = true;  // pairs (2i, 2i + 1), not (i, i + rope_dim / 2)
  float score_factor = 1;        // of YaRN, of all of a score
};

struct ModelConfig {
  std::uint32_t vocab_size = 0;
  std::uint32_t hidden_size = 0;
  std::uint32_t intermediate_size = 0;
  std::uint32_t layers = 0;
  std::uint32_t heads = 0;  // a multiple of kv_heads
  // With latent attention what is kept of a token: one head of kv_rank + rope_dim channels, no V.
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;  // even
  std::optional<LatentShape> latent;
  std::uint32_t positions_max = 0;
  float rms_norm_eps = 0;
  double rope_theta = 0;
  kernels::RopeScaling rope_scaling;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  // of the attention's output projection
  bool mlp_bias = false;
  bool qk_norm = false;  // an RMS norm over each head of Q and K, before RoPE
  // Of each layer: how many tokens a token attends to, itself included; 0 for all. Empty: all in
  // every layer.
  std::vector<std::uint32_t> windows;
  // Tokens at the beginning that every token attends to beside its window, which all layers then
  // have. To them it is at position sinks + window - 1 at most, as if only what it attends to were
  // there (Xiao et al., Efficient Streaming Language Models with Attention Sinks, 2024).
  std::uint32_t sinks = 0;
  bool endless = false;  // attend_within() was called: contexts go beyond what was trained
  // Of each layer, the one whose K and V it attends to: itself, or one before it that has its own.
  // Empty: every layer has its own. Records have layers for those alone.
  std::vector<std::uint32_t> kv_source;
  std::vector<Token> bos;
  std::vector<Token> eos;
  // Of config.json, by name: known neither as part of the arithmetic nor as none of it.
  std::vector<std::string> unknown_fields;

  std::uint32_t window(std::uint32_t layer) const noexcept {
    return windows.empty() ? 0 : windows[layer];
  }
  bool has_own_kv(std::uint32_t layer) const noexcept {
    return kv_source.empty() || kv_source[layer] == layer;
  }
  // Layers with K and V of their own: those of a record.
  std::uint32_t kept_layers() const noexcept;
  // Where among those lies what the layer attends to.
  std::uint32_t kept_layer(std::uint32_t layer) const noexcept;
  // Whether a layer attends to K and V that are not the last ones made before it.
  bool looks_back() const noexcept;
  // Takes contexts of at most `tokens`. Windows that hold them are none.
  void limit_positions(std::uint32_t tokens);
  // Has every token attend to the first `sinks_` tokens and the last `window`, itself included, so
  // that contexts may have `context_max` tokens; 0: kEndlessTokens. Errors: invalid (more than the
  // model was trained for, windows of its own, a window below a block).
  Result<void> attend_within(std::uint32_t sinks_, std::uint32_t window, std::uint32_t context_max);
  // The last tokens beyond which no layer looks, sinks aside; 0: one looks at all.
  std::uint32_t widest_window() const noexcept;
  // Of a sequence of `tokens`, the complete blocks that no later token attends to in any layer.
  BlockRange unseen_blocks(std::uint32_t tokens) const noexcept;
  // Tokens whose pages a sequence has at most where `rows` are computed at once; those of blocks
  // that are begun are counted whole.
  std::uint32_t tokens_kept(std::uint32_t rows) const noexcept;
  // Channels of a head of V as it is kept; 0: V is taken out of K.
  std::uint32_t head_dim_v() const noexcept { return latent ? 0 : head_dim; }
  // Channels of a head's result, of which the output projection takes `heads`.
  std::uint32_t result_dim() const noexcept { return latent ? latent->v_dim : head_dim; }
  // What scores are multiplied with: 1 / sqrt(head_dim), and YaRN's factors of Q and K; with latent
  // attention score_factor / sqrt(nope_dim + rope_dim), YaRN's being the rotary part's alone.
  float attention_scale() const noexcept;
  // What K and V depend on beside weights and tokens, exactly: "rope theta=500000
  // scaling=llama3:8:1:4:8192", "scores=1.6" (score_factor), and "window=4096",
  // "window=1024 sinks=4" or "windows=0x2,4096x30" where there are any.
  std::string describe_positions() const;
};

// Errors: malformed, naming the field; invalid, naming what is not supported and what is.
Result<ModelConfig> parse_model_config(const Json& json, const std::string& where);
Result<ModelConfig> load_model_config(const std::filesystem::path& file);
// The end tokens that generation_config.json names beside config.json's; nothing where there is no
// such file. Errors: malformed, invalid.
Result<void> add_generation_config(const std::filesystem::path& file, ModelConfig& config);

}  // namespace kvtier::engine
