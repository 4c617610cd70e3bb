#include "engine_adapter/reference/model/instance.h"

#include <algorithm>
#include <charconv>

#include "engine_adapter/reference/model/llama.h"
#include "engine_adapter/reference/model/weights/capacity.h"
#include "engine_adapter/reference/model/weights/random_weights.h"
#ifdef KVTIER_HAVE_CUDA
#include "engine_adapter/reference/model/cuda/cuda_instance.h"
#endif

namespace kvtier::engine {
namespace {

constexpr std::uint32_t kCpuChunkTokens = 512;

#ifndef KVTIER_HAVE_CUDA
Result<Instance> make_cuda_instance(const LoadedModel&, const InstanceOptions&) {
  return make_error(Errc::unavailable,
                    "this build has no CUDA backend; configure it with -DKVTIER_CUDA=ON, or use "
                    "--device cpu");
}
#endif

Result<Instance> make_cpu_instance(const LoadedModel& loaded, const InstanceOptions& options) {
  Instance instance;
  auto ns = loaded.ns(options.format);
  if (!ns) return ns.error();
  instance.ns = std::move(*ns);
  const RecordLayout layout = RecordLayout::of(instance.ns);
  auto pool = PagePool::create(
      layout, options.pool_tokens / kBlockTokens + (options.pool_tokens % kBlockTokens != 0));
  if (!pool) return pool.error();
  instance.pool = std::move(*pool);
  if (loaded.random_seed) {
    instance.drawn =
        std::make_unique<LlamaWeights>(make_random_weights(loaded.config, *loaded.random_seed));
  }
  const std::uint32_t rows =
      std::min(options.chunk_tokens != 0 ? options.chunk_tokens : kCpuChunkTokens,
               loaded.config.positions_max);
  instance.model =
      std::make_unique<Llama>(loaded.config, instance.drawn ? *instance.drawn : loaded.weights,
                              kernels::cpu_kernels(), layout, rows);
  return instance;
}

}  // namespace

Result<Device> parse_device(const std::string& text) {
  if (text == "cpu") return Device{};
  if (text == "cuda") return Device{.cuda = 0};
  std::uint32_t number = 0;
  const std::string prefix = "cuda:";
  if (text.starts_with(prefix)) {
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data() + prefix.size(), end, number);
    if (read.ec == std::errc{} && read.ptr == end) return Device{.cuda = number};
  }
  return make_error(Errc::invalid, "'" + text + "' is no device: give cpu, cuda or cuda:N");
}

Result<Instance> Instance::make(const LoadedModel& loaded, const InstanceOptions& options) {
  if (auto kept = check_engine_format(options.format); !kept) return kept.error();
  InstanceOptions settled = options;
  // Without an end: what two such contexts keep.
  if (settled.pool_tokens == 0) {
    const std::uint32_t rows = settled.chunk_tokens != 0 ? settled.chunk_tokens : kCpuChunkTokens;
    settled.pool_tokens =
        loaded.config.endless ? 2 * loaded.config.tokens_kept(rows) : loaded.config.positions_max;
  }
  if (settled.device.cuda && loaded.config.endless) {
    return make_error(Errc::invalid,
                      "--window: the CUDA kernels attend to whole contexts; use --device cpu");
  }
  if (settled.device.cuda && !loaded.config.windows.empty()) {
    const auto& windows = loaded.config.windows;
    return make_error(Errc::invalid,
                      "the model attends to a window of tokens (sliding_window in its "
                      "config.json), which the CUDA kernels do not; use --device cpu, or "
                      "--context-max " +
                          std::to_string(*std::max_element(windows.begin(), windows.end())) +
                          ": contexts within the window");
  }
  return settled.device.cuda ? make_cuda_instance(loaded, settled)
                             : make_cpu_instance(loaded, settled);
}

}  // namespace kvtier::engine
