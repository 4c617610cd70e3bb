#include <cstring>

#include "kernels/table.h"

namespace kvtier::kernels {

namespace portable {
extern const KernelTable kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
#endif

namespace {

// Every processor with AVX2 and FMA has F16C.
bool runs_avx2() noexcept {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

bool runs_avx512() noexcept {
#if defined(__x86_64__)
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

}  // namespace

const KernelTable* cpu_kernels_named(const char* name) noexcept {
#if defined(__x86_64__)
  if (std::strcmp(name, "avx512") == 0) return runs_avx512() ? &avx512::kTable : nullptr;
  if (std::strcmp(name, "avx2") == 0) return runs_avx2() ? &avx2::kTable : nullptr;
#endif
  return std::strcmp(name, "portable") == 0 ? &portable::kTable : nullptr;
}

const KernelTable& cpu_kernels() noexcept {
  static const KernelTable& best = *[] {
    if (runs_avx512()) return cpu_kernels_named("avx512");
    if (runs_avx2()) return cpu_kernels_named("avx2");
    return cpu_kernels_named("portable");
  }();
  return best;
}

}  // namespace kvtier::kernels
