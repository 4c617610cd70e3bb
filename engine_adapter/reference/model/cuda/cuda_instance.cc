#include "engine_adapter/reference/model/cuda/cuda_instance.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "engine_adapter/reference/model/cuda/cuda_llama.h"
#include "engine_adapter/reference/model/cuda/cuda_memory.h"

namespace kvtier::engine {
Result<Instance> make_cuda_instance(const LoadedModel& loaded, const InstanceOptions& options) {
  Instance instance;
  auto ns = loaded.ns(options.format, Arithmetic::bf16);
  if (!ns) return ns.error();
  instance.ns = std::move(*ns);
  const RecordLayout layout = RecordLayout::of(instance.ns);
  auto model = cuda::CudaLlama::make(
      loaded.config, loaded.weights, layout,
      {.device = *options.device.cuda,
       .rows_max = std::min(options.chunk_tokens, loaded.config.positions_max),
       .batch_invariant = options.batch_invariant});
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
