// Assertions that stay on in release: what they guard is a programming error, and going on would
// risk wrong KV.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace kvtier {

[[noreturn]] inline void check_failed(const char* what, const char* file, int line) noexcept {
  std::fprintf(stderr, "kvtier: %s:%d: check failed: %s\n", file, line, what);
  std::abort();
}

}  // namespace kvtier

#define KVTIER_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::kvtier::check_failed(#condition, __FILE__, __LINE__))
