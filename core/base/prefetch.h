// Asking the processor for memory before it is read.
#pragma once

namespace kvtier {

inline void prefetch_memory(const void* at) noexcept {
  __builtin_prefetch(at);
  // GCC takes a function that does nothing but prefetch for one without any effect, and drops the
  // calls of it.
  asm volatile("");
}

}  // namespace kvtier
