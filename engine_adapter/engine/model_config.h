// config.json of a LlamaForCausalLM, a Qwen2ForCausalLM (Qwen2 and 2.5) or a Qwen3ForCausalLM, in
// the classic spelling (rope_theta, rope_scaling) and in that of transformers 5 (rope_parameters).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine_adapter/engine/json.h"
#include "kernels/table.h"
#include "kvtier/key.h"

namespace kvtier::engine {

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
  std::vector<Token> bos;
  std::vector<Token> eos;

  // The position scheme, exactly: "rope theta=500000 scaling=llama3:8:1:4:8192".
  std::string describe_positions() const;
};

// Errors: malformed, naming the field; invalid, naming what is not supported and what is.
Result<ModelConfig> parse_model_config(const Json& json, const std::string& where);
Result<ModelConfig> load_model_config(const std::filesystem::path& file);

}  // namespace kvtier::engine
