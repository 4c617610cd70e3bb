// The weights of a Llama-like model as they lie in its safetensors files: matrices in their own
// type and place, vectors widened to FP32.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "engine_adapter/reference/files/safetensors.h"
#include "engine_adapter/reference/model/weights/model_config.h"
#include "kernels/table.h"

namespace kvtier::engine {

struct Matrix {
  const void* data = nullptr;  // [rows][columns]
  DType type = DType::f32;
  std::uint64_t seed = 0;  // where data is null: what it is to be drawn from (random_weights.h)
};

struct Linear {
  Matrix weight;
  std::vector<float> bias;  // empty for none

  const float* bias_or_null() const noexcept { return bias.empty() ? nullptr : bias.data(); }
};

// Of latent attention. `q` of the layer is q_proj, or q_b_proj where there is q_a.
struct LatentWeights {
  Linear q_a;                    // [q_rank][hidden]
  std::vector<float> q_a_norm;   // [q_rank]
  Linear kv_a;                   // [kv_rank + rope_dim][hidden]
  std::vector<float> kv_a_norm;  // [kv_rank]
  Linear kv_b;                   // [heads][nope_dim + v_dim][kv_rank]
};

struct LlamaLayer {
  std::vector<float> input_norm;
  Linear q, k, v, o;  // k and v: none with latent attention, or where they are another layer's
  LatentWeights latent;
  std::vector<float> q_norm, k_norm;  // [head_dim], empty for none; k_norm as k
  std::vector<float> post_attention_norm;
  Linear gate, up, down;
};

struct LlamaWeights {
  Matrix embedding;
  std::vector<LlamaLayer> layers;
  std::vector<float> norm;
  Matrix head;  // the embedding, where they are tied
  // Matrices whose place in the file is not aligned for their type.
  std::deque<std::vector<std::byte>> moved;

  // `tensors` outlives the weights. Errors: malformed, not_found, invalid, naming the tensor: one
  // that is missing, has another shape or type, that this model has no use for, or that is not the
  // copy which config.json says it is.
  static Result<LlamaWeights> bind(const SafeTensors& tensors, const ModelConfig& config,
                                   const kernels::KernelTable& kernels);
};

}  // namespace kvtier::engine
