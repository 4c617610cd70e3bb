#include "engine_adapter/reference/model/cuda/cuda_support.h"

#include <cuda_runtime_api.h>

#include <string>

namespace kvtier::engine::cuda {

Result<void> check_shape(const ModelConfig& config, const RecordLayout& layout) {
  const auto refuse = [](const std::string& what) {
    return make_error(Errc::invalid, "the CUDA backend does not support " + what);
  };
  for (const std::uint32_t supported : {64U, 96U, 128U, 256U}) {
    if (config.head_dim != supported) continue;
    if (config.heads / config.kv_heads > 16) {
      return refuse("more than 16 query heads for a KV head");
    }
    if (config.hidden_size % 8 != 0 || config.intermediate_size % 8 != 0) {
      return refuse("a hidden or intermediate size that is not a multiple of 8");
    }
    if (layout.format == StorageFormat::f32) {
      return refuse("the storage format f32; bf16 is as wide as its arithmetic");
    }
    if (!has_elements(layout.format)) {
      return refuse(std::string("the storage format ") + name(layout.format) +
                    "; use fp8_e4m3, fp8_e5m2 or bf16, or --device cpu");
    }
    return {};
  }
  return refuse("head_dim " + std::to_string(config.head_dim) + "; supported are 64, 96, 128, 256");
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
