// A GPU's memory for KV.
#pragma once

#include <cstdint>

#include "engine_adapter/reference/model/kv_memory.h"

namespace kvtier::engine::cuda {

class CudaMemory : public KvMemory {
 public:
  explicit CudaMemory(std::uint32_t device) : device_(device) {}

  Result<std::byte*> allocate(std::size_t bytes) override;
  void free(std::byte* at, std::size_t bytes) noexcept override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes, StreamView stream) override;
  void read(std::byte* host, const std::byte* from, std::size_t bytes, StreamView stream) override;
  void write(std::byte* to, const std::byte* host, std::size_t bytes, StreamView stream) override;
  DType exact_type() const noexcept override { return DType::bf16; }

 private:
  std::uint32_t device_;
};

// Makes `device` the current one of this thread. Throws CudaError.
void use_device(std::uint32_t device);

}  // namespace kvtier::engine::cuda
