// A model's weights on a GPU: BF16 matrices, those that are multiplied with the same rows laid one
// after another; FP32 norms.
#pragma once

#include <vector>

#include "engine_adapter/reference/model/weights/llama_weights.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/memory.h"

namespace kvtier::engine::cuda {

using kernels::cuda::Bf16;
using kernels::cuda::DeviceArray;

struct CudaLinear {
  DeviceArray<Bf16> weight;  // [rows][columns]
  DeviceArray<Bf16> bias;    // [rows], or none
};

// Of latent attention, as LatentWeights has it.
struct CudaLatentLayer {
  CudaLinear q_a;               // [q_rank][hidden], or none
  DeviceArray<float> q_a_norm;  // [q_rank]
  CudaLinear q;                 // [heads][nope_dim + rope_dim][q_rank or hidden]
  CudaLinear kv_a;              // [kv_rank + rope_dim][hidden]
  DeviceArray<float> kv_a_norm;
  DeviceArray<Bf16> kv_b;  // [heads][nope_dim + v_dim][kv_rank]
  DeviceArray<Bf16> keys;  // [heads][kv_rank][nope_dim]: of kv_b what makes keys, transposed
};

struct CudaLayer {
  DeviceArray<float> input_norm;
  CudaLinear
      qkv;  // heads of Q, and of K and V where the layer has its own; none with latent attention
  CudaLatentLayer latent;
  DeviceArray<float> q_norm, k_norm;  // [head_dim], or none
  CudaLinear o;
  DeviceArray<float> post_attention_norm;
  CudaLinear gate_up;
  CudaLinear down;
};

struct CudaWeights {
  DeviceArray<Bf16> embedding;
  std::vector<CudaLayer> layers;
  DeviceArray<float> norm;
  DeviceArray<Bf16> own_head;  // none where it is the embedding

  const Bf16* head() const noexcept {
    return own_head.size() != 0 ? own_head.get() : embedding.get();
  }

  // Brings `weights` to the current device, rounding what is wider than BF16; draws those that are
  // only described. Throws CudaError, cudaErrorMemoryAllocation where they do not fit.
  static CudaWeights make(const LlamaWeights& weights, const ModelConfig& config);
};

}  // namespace kvtier::engine::cuda
