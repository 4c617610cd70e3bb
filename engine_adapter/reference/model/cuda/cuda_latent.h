// Latent attention on a GPU (adr/0063, adr/0069), as LatentAttention has it on the CPU: what is
// kept of a token, and the queries that meet it, both matrices of the latents absorbed.
#pragma once

#include <cstdint>

#include "engine_adapter/reference/model/cuda/cuda_products.h"
#include "kernels/cuda/latent/latent.h"

namespace kvtier::engine::cuda {

class CudaLatent {
 public:
  // `config`, whose `latent` is there, outlives it. Steps have at most `rows_max` rows. Throws
  // CudaError.
  CudaLatent(const ModelConfig& config, const RecordLayout& layout, std::size_t rows_max);

  // Of normed[rows][hidden] to q[rows][heads][kv_rank + rope_dim]; the latents and rotated keys
  // into exact pages.
  void project(const CudaPlan& plan, std::uint32_t layer, const CudaLatentLayer& weights,
               const Bf16* normed, Bf16* q, CudaProducts& products, StreamView stream);
  // What attend() needs of its workspace for this step.
  std::size_t workspace_bytes(const CudaPlan& plan) const;
  // Of q to attended[rows][heads][kv_rank], sums of latents, and from there to the heads' values:
  // [rows][heads][v_dim], good until the next call.
  const Bf16* attend(const CudaPlan& plan, std::uint32_t layer, const CudaLatentLayer& weights,
                     const Bf16* q, Bf16* attended, void* workspace, CudaProducts& products,
                     StreamView stream);

 private:
  std::uint32_t context_max(const CudaPlan& plan) const;

  const ModelConfig& config_;
  const LatentShape& shape_;
  const RecordLayout layout_;
  const float q_factor_;  // YaRN's of queries and of keys, which are kept without it
  DeviceArray<float> inverse_frequencies_;
  DeviceArray<Bf16> q_latent_, q_normed_;  // [rows_max][q_rank]
  DeviceArray<Bf16> projected_;            // [rows_max][heads][nope_dim + rope_dim]
  DeviceArray<Bf16> kv_;                   // [rows_max][kv_rank + rope_dim]
  DeviceArray<Bf16> values_;               // [rows_max][heads][v_dim]
};

}  // namespace kvtier::engine::cuda
