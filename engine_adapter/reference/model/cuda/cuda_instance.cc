#include "engine_adapter/reference/model/cuda/cuda_instance.h"

#include <algorithm>

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
  auto pool = PagePool::create(
      layout, options.pool_tokens / kBlockTokens + (options.pool_tokens % kBlockTokens != 0),
      *instance.memory);
  if (!pool) return pool.error();
  instance.pool = std::move(*pool);
  return instance;
}

}  // namespace kvtier::engine
