// The products of latent attention around the attention itself (DeepSeek-V2, arXiv:2405.04434,
// 2.1), absorbed: a head's queries are multiplied into the space of the latents, and its result is
// taken out of it, so that attention meets what is kept of a token and nothing else. A row's result
// is bit-identical however rows are grouped.
#pragma once

#include <cstdint>
#include <vector>

#include "engine_adapter/reference/model/weights/llama_weights.h"

namespace kvtier::engine {

class LatentAttention {
 public:
  // All outlive this. `config.latent` is there, and `weights` lie in host memory. Takes heads *
  // kv_rank * nope_dim floats a layer. At most `rows_max` rows at a time.
  LatentAttention(const ModelConfig& config, const LlamaWeights& weights,
                  const kernels::KernelTable& kernels, std::uint32_t rows_max);

  // Of normed[rows][hidden] to q[rows][heads][kv_rank + rope_dim] and k[rows][kv_rank + rope_dim]:
  // the normalised latent, then the rotated key.
  void project(std::uint32_t layer, const float* normed, std::uint32_t rows,
               const std::uint32_t* positions, float* q, float* k);

  // Of mixed[rows][heads][kv_rank], sums of latents, to out[rows][heads][v_dim].
  void take_values(std::uint32_t layer, const float* mixed, std::uint32_t rows, float* out);

 private:
  void project_queries(std::uint32_t layer, const float* normed, std::uint32_t rows);
  void copy_rope_part(const float* from, float* to) const;
  const std::byte* kv_b_row(const LlamaLayer& layer, std::size_t row) const noexcept;

  const ModelConfig& config_;
  const LatentShape& shape_;
  const LlamaWeights& weights_;
  const kernels::KernelTable& kernels_;
  std::vector<float> inverse_frequencies_;
  float q_rope_factor_;  // YaRN's of queries and of keys, which are kept without it
  // A layer: [heads][kv_rank][nope_dim], the part of kv_b that makes keys, transposed.
  std::vector<std::vector<float>> key_weights_;

  std::vector<float> q_latent_;  // [rows_max][q_rank]
  std::vector<float> q_;         // [rows_max][heads][nope_dim + rope_dim]
  std::vector<float> q_rope_;    // [rows_max][heads][rope_dim]
  std::vector<float> kv_;        // [rows_max][kv_rank + rope_dim]
  std::vector<float> latents_;   // [rows_max][kv_rank], before the norm and after it
  std::vector<float> k_rope_;    // [rows_max][rope_dim]
  std::vector<float> in_, out_;  // of one head, [rows_max][its channels]
};

}  // namespace kvtier::engine
