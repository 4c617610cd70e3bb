// The memory that a backend computes in, where an engine's KV lives: its records and its exact
// pages. One thread at a time.
#pragma once

#include <cstddef>

#include "kvtier/client.h"
#include "kvtier/dtype.h"
#include "kvtier/result.h"

namespace kvtier::engine {

class KvMemory {
 public:
  virtual ~KvMemory() = default;

  // Memory that reads as zero, aligned to 256 bytes at least. Errors: no_space.
  virtual Result<std::byte*> allocate(std::size_t bytes) = 0;
  // What allocate(bytes) returned. Waits for the backend's work that may still use it.
  virtual void free(std::byte* at, std::size_t bytes) noexcept = 0;

  // Copies between what allocate() returned, after and before the work on `stream`.
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes, StreamView stream) = 0;
  // Likewise between it and host memory, which may change or go once these return.
  virtual void read(std::byte* host, const std::byte* from, std::size_t bytes,
                    StreamView stream) = 0;
  virtual void write(std::byte* to, const std::byte* host, std::size_t bytes,
                     StreamView stream) = 0;

  // What the backend keeps K and V in before they are stored: f32 or bf16.
  virtual DType exact_type() const noexcept = 0;
};

// The CPU backend's. Touched only as it is used.
KvMemory& host_memory() noexcept;

}  // namespace kvtier::engine
