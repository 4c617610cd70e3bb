// Named points in the code, so that a test can stop, order or kill a process exactly there.
// Compiled in always: a point is one load and a branch that is never taken while no hook is set.
#pragma once

#include <atomic>

namespace kvtier {

// Called with the point's name on whichever thread passes it.
using PointHook = void (*)(const char* name) noexcept;
inline std::atomic<PointHook> point_hook = nullptr;

inline void pass_point(const char* name) noexcept {
  if (const PointHook hook = point_hook.load(std::memory_order_acquire)) [[unlikely]] {
    hook(name);
  }
}

}  // namespace kvtier

#define KVTIER_POINT(name) ::kvtier::pass_point(name)
