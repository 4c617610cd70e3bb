// A model ready to compute on a device, with KV in one storage format.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine_adapter/reference/model/kv_memory.h"
#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/model/page_pool.h"
#include "engine_adapter/reference/model/weights/loaded_model.h"

namespace kvtier::engine {

struct Device {
  std::optional<std::uint32_t> cuda;  // the GPU's number; none: the CPU
};
// "cpu", "cuda" (GPU 0) or "cuda:N". Errors: invalid, naming the choices.
Result<Device> parse_device(const std::string& text);

struct InstanceOptions {
  Device device;
  StorageFormat format = StorageFormat::fp8_e4m3;
  std::uint32_t pool_tokens = 0;   // 0: settled()
  std::uint32_t chunk_tokens = 0;  // rows of a step; 0: 512 on the CPU, 8192 on a GPU
  // Answers do not depend on what else is in their steps (Model::batch_invariant). On the CPU they
  // never do.
  bool batch_invariant = false;
  // In place of pool_tokens: the part of the device's memory, from 0 to 1, of which pages take what
  // weights, activations and whatever else is there have left. 0: as pool_tokens says.
  double memory_utilization = 0;
  std::uint64_t host_bytes = 0;  // the memory that it is a part of on the CPU
};

// `options` with the sizes that are taken where it has 0: of steps, what is said there; of the pool
// a context of the model, or what two contexts without an end keep.
InstanceOptions settled(const ModelConfig& config, const InstanceOptions& options) noexcept;

// Pages of `record_bytes` that fit where `taken_bytes` of `total_bytes` have gone. Errors: invalid,
// naming --memory-utilization.
Result<std::uint32_t> pages_within(double memory_utilization, std::uint64_t total_bytes,
                                   std::uint64_t taken_bytes, std::uint64_t record_bytes);

struct Instance {
  Namespace ns;
  std::unique_ptr<KvMemory> memory;  // none: host_memory()
  std::unique_ptr<LlamaWeights> drawn;
  std::unique_ptr<PagePool> pool;
  std::unique_ptr<Model> model;

  // `loaded` outlives it. Errors: invalid (not a model of this device; no page fits), unavailable
  // (no such device, or not in this build), no_space.
  static Result<Instance> make(const LoadedModel& loaded, const InstanceOptions& options);
};

}  // namespace kvtier::engine
