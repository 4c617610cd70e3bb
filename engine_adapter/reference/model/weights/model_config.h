// config.json of a LlamaForCausalLM, a MistralForCausalLM, a Qwen2ForCausalLM (Qwen2 and 2.5) or a
// Qwen3ForCausalLM, in the classic spelling (rope_theta, rope_scaling) and in that of transformers
// 5 (rope_parameters).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine_adapter/reference/files/json.h"
#include "kernels/table.h"
#include "kvtier/key.h"

namespace kvtier::engine {

// Tokens of a block of the engine's cache.
inline constexpr std::uint32_t kBlockTokens = 16;

struct ModelConfig {
  std::uint32_t vocab_size = 0;
  std::uint32_t hidden_size = 0;
  std::uint32_t intermediate_size = 0;
  std::uint32_t layers = 0;
  std::uint32_t heads = 0;  // a multiple of kv_heads
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;  // even
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
  std::vector<Token> bos;
  std::vector<Token> eos;
  // Of config.json, by name: known neither as part of the arithmetic nor as none of it.
  std::vector<std::string> unknown_fields;

  std::uint32_t window(std::uint32_t layer) const noexcept {
    return windows.empty() ? 0 : windows[layer];
  }
  // Takes contexts of at most `tokens`. Windows that hold them are none.
  void limit_positions(std::uint32_t tokens);
  // What scores are multiplied with: 1 / sqrt(head_dim), and YaRN's factors of Q and K.
  float attention_scale() const noexcept;
  // What K and V depend on beside weights and tokens, exactly: "rope theta=500000
  // scaling=llama3:8:1:4:8192", and "window=4096" or "windows=0x2,4096x30" where there are any.
  std::string describe_positions() const;
};

// Errors: malformed, naming the field; invalid, naming what is not supported and what is.
Result<ModelConfig> parse_model_config(const Json& json, const std::string& where);
Result<ModelConfig> load_model_config(const std::filesystem::path& file);
// The end tokens that generation_config.json names beside config.json's; nothing where there is no
// such file. Errors: malformed, invalid.
Result<void> add_generation_config(const std::filesystem::path& file, ModelConfig& config);

}  // namespace kvtier::engine
