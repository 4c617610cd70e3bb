#include "engine_adapter/reference/model/cuda/cuda_instance.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "engine_adapter/reference/model/cuda/cuda_llama.h"
#include "engine_adapter/reference/model/cuda/cuda_memory.h"

namespace kvtier::engine {
namespace {

// Beyond these, a step's products are as fast as they get, and its activations take more memory.
constexpr std::uint32_t kCudaChunkTokens = 8192;

}  // namespace

Result<Instance> make_cuda_instance(const LoadedModel& loaded, const InstanceOptions& options) {
  Instance instance;
  auto ns = loaded.ns(options.format, Arithmetic::bf16);
  if (!ns) return ns.error();
  instance.ns = std::move(*ns);
  const RecordLayout layout = RecordLayout::of(instance.ns);
  const std::uint32_t rows = options.chunk_tokens != 0 ? options.chunk_tokens : kCudaChunkTokens;
  auto model = cuda::CudaLlama::make(
      loaded.config, loaded.weights, layout,
      {.device = *options.device.cuda, .rows_max = std::min(rows, loaded.config.positions_max)});
  if (!model) return model.error();
  instance.model = std::move(*model);
  instance.memory = std::make_unique<cuda::CudaMemory>(*options.device.cuda);
  std::uint32_t pages =
      options.pool_tokens / kBlockTokens + (options.pool_tokens % kBlockTokens != 0);
  if (options.memory_utilization != 0) {
    std::size_t free = 0, total = 0;
    if (const cudaError_t code = cudaMemGetInfo(&free, &total); code != cudaSuccess) {
      return make_error(Errc::unavailable, std::string("the GPU does not tell its memory: ") +
                                               cudaGetErrorString(code));
    }
    const auto fit =
        pages_within(options.memory_utilization, total, total - free, layout.record_bytes);
    if (!fit) return fit.error();
    pages = *fit;
  }
  auto pool = PagePool::create(layout, pages, *instance.memory);
  if (!pool) return pool.error();
  instance.pool = std::move(*pool);
  return instance;
}

}  // namespace kvtier::engine
