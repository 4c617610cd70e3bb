#include "engine_adapter/reference/model/instance.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "engine_adapter/reference/model/llama.h"
#include "engine_adapter/reference/model/weights/capacity.h"
#include "engine_adapter/reference/model/weights/random_weights.h"
#ifdef KVTIER_HAVE_CUDA
#include "engine_adapter/reference/model/cuda/cuda_instance.h"
#endif

namespace kvtier::engine {
namespace {

constexpr std::uint32_t kCpuChunkTokens = 512;
// Beyond these, a step's products are as fast as they get, and its activations take more memory.
constexpr std::uint32_t kCudaChunkTokens = 8192;

#ifndef KVTIER_HAVE_CUDA
Result<Instance> make_cuda_instance(const LoadedModel&, const InstanceOptions&) {
  return make_error(Errc::unavailable,
                    "this build has no CUDA backend; configure it with -DKVTIER_CUDA=ON, or use "
                    "--device cpu");
}
#endif

std::uint32_t blocks_for(std::uint32_t tokens) noexcept {
  return tokens / kBlockTokens + (tokens % kBlockTokens != 0);
}

// Of this process: weights are in its own memory.
std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

Result<Instance> make_cpu_instance(const LoadedModel& loaded, const InstanceOptions& options) {
  Instance instance;
  auto ns = loaded.ns(options.format);
  if (!ns) return ns.error();
  instance.ns = std::move(*ns);
  const RecordLayout layout = RecordLayout::of(instance.ns);
  if (loaded.random_seed) {
    instance.drawn =
        std::make_unique<LlamaWeights>(make_random_weights(loaded.config, *loaded.random_seed));
  }
  const std::uint32_t rows = std::min(options.chunk_tokens, loaded.config.positions_max);
  instance.model =
      std::make_unique<Llama>(loaded.config, instance.drawn ? *instance.drawn : loaded.weights,
                              kernels::cpu_kernels(), layout, rows);
  const auto pages = options.memory_utilization == 0
                         ? Result<std::uint32_t>(blocks_for(options.pool_tokens))
                         : pages_within(options.memory_utilization, options.host_bytes,
                                        resident_bytes(), layout.record_bytes);
  if (!pages) return pages.error();
  auto pool = PagePool::create(layout, *pages);
  if (!pool) return pool.error();
  instance.pool = std::move(*pool);
  return instance;
}

}  // namespace

InstanceOptions settled(const ModelConfig& config, const InstanceOptions& options) noexcept {
  InstanceOptions all = options;
  if (all.chunk_tokens == 0) {
    all.chunk_tokens = all.device.cuda ? kCudaChunkTokens : kCpuChunkTokens;
  }
  if (all.pool_tokens == 0) {
    all.pool_tokens =
        config.endless ? 2 * config.tokens_kept(all.chunk_tokens) : config.positions_max;
  }
  return all;
}

Result<std::uint32_t> pages_within(double memory_utilization, std::uint64_t total_bytes,
                                   std::uint64_t taken_bytes, std::uint64_t record_bytes) {
  const auto usable =
      static_cast<std::uint64_t>(static_cast<double>(total_bytes) * memory_utilization);
  const std::uint64_t left = usable - std::min(usable, taken_bytes);
  if (left < record_bytes) {
    constexpr std::uint64_t kMiB = 1U << 20;
    return make_error(Errc::invalid,
                      "--memory-utilization: " + std::to_string(usable / kMiB) + " MiB of " +
                          std::to_string(total_bytes / kMiB) + " may be taken, " +
                          std::to_string(taken_bytes / kMiB) +
                          " MiB are already, and no page fits; raise it, or take a smaller model");
  }
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(left / record_bytes, ~std::uint32_t{0} / kBlockTokens));
}

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
  const InstanceOptions made = settled(loaded.config, options);
  return made.device.cuda ? make_cuda_instance(loaded, made) : make_cpu_instance(loaded, made);
}

}  // namespace kvtier::engine
