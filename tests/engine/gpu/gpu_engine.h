// A small model on the first GPU, for tests.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "engine_adapter/reference/model/cuda/cuda_llama.h"
#include "engine_adapter/reference/model/cuda/cuda_memory.h"
#include "tests/engine/support.h"

namespace kvtier::engine::test {

// Tests that say they are skipped where there is no GPU.
inline bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count != 0;
}
class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  }
};

struct GpuEngine {
  GpuEngine(const ModelConfig& config, const LlamaWeights& weights, const RecordLayout& layout,
            const cuda::CudaLlamaOptions& options, std::uint32_t pages = 1024)
      : pool(PagePool::create(layout, pages, memory).value()),
        model(cuda::CudaLlama::make(config, weights, layout, options).value()) {}
  GpuEngine(const TestModel& test_model, StorageFormat format,
            const cuda::CudaLlamaOptions& options, std::uint32_t pages = 1024)
      : GpuEngine(test_model.config, test_model.weights, RecordLayout::of(test_model.ns(format)),
                  options, pages) {}

  cuda::CudaMemory memory{0};
  std::unique_ptr<PagePool> pool;
  std::unique_ptr<cuda::CudaLlama> model;
};

}  // namespace kvtier::engine::test
