#include "engine_adapter/reference/model/cuda/cuda_support.h"

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "kernels/cuda/latent/latent.h"

namespace kvtier::engine::cuda {

namespace {

Error refusal(const std::string& what) {
  return make_error(Errc::invalid, "the CUDA backend does not support " + what);
}

Result<void> check_heads(const ModelConfig& config) {
  for (const std::uint32_t supported : {64U, 96U, 128U, 256U}) {
    if (config.head_dim != supported) continue;
    if (config.heads / config.kv_heads > 16) {
      return refusal("more than 16 query heads for a KV head");
    }
    return {};
  }
  return refusal("head_dim " + std::to_string(config.head_dim) +
                 "; supported are 64, 96, 128, 256");
}

Result<void> check_latent(const LatentShape& shape) {
  if (shape.kv_rank % 16 != 0 || shape.kv_rank > kernels::cuda::kLatentValuesMax) {
    return refusal("kv_lora_rank " + std::to_string(shape.kv_rank) +
                   "; supported are multiples of 16 up to " +
                   std::to_string(kernels::cuda::kLatentValuesMax));
  }
  const std::pair<const char*, std::uint32_t> sizes[] = {{"q_lora_rank", shape.q_rank},
                                                         {"qk_nope_head_dim", shape.nope_dim},
                                                         {"qk_rope_head_dim", shape.rope_dim},
                                                         {"v_head_dim", shape.v_dim}};
  for (const auto& [field, size] : sizes) {
    if (size % 8 == 0) continue;
    return refusal(std::string(field) + " " + std::to_string(size) +
                   "; supported are multiples of 8");
  }
  return {};
}

}  // namespace

Result<void> check_shape(const ModelConfig& config, const RecordLayout& layout) {
  const auto attention = config.latent ? check_latent(*config.latent) : check_heads(config);
  if (!attention) return attention;
  if (config.hidden_size % 8 != 0 || config.intermediate_size % 8 != 0) {
    return refusal("a hidden or intermediate size that is not a multiple of 8");
  }
  if (layout.format == StorageFormat::f32) {
    return refusal("the storage format f32; bf16 is as wide as its arithmetic");
  }
  if (!has_elements(layout.format)) {
    return refusal(std::string("the storage format ") + name(layout.format) +
                   "; use fp8_e4m3, fp8_e5m2 or bf16, or --device cpu");
  }
  return {};
}

Result<void> check_device(std::uint32_t device) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    (void)cudaGetLastError();
    return make_error(Errc::unavailable, std::string("no GPU can be used: ") +
                                             cudaGetErrorString(code) + "; use --device cpu");
  }
  if (device >= static_cast<std::uint32_t>(count)) {
    return make_error(Errc::unavailable, "there is no GPU " + std::to_string(device) + ": " +
                                             std::to_string(count) + " were found");
  }
  return {};
}

}  // namespace kvtier::engine::cuda
