// What sm_90a alone has: products of a warp group whose operands stay in shared memory, registers
// that change hands.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/ptx.cuh"

namespace kvtier::kernels::cuda::device {

// --- Products of a warp group --------------------------------------------------------------------

// Describes an operand in shared memory with 128-byte rows, swizzled as the tensor map's
// SWIZZLE_128B does. Eight rows are 1024 bytes; `group_stride` is the distance between groups of 64
// elements where the rows run along the dimension that is not summed over.
__device__ inline std::uint64_t describe(std::uint32_t address, int group_stride) {
  return (std::uint64_t{1} << 62) | (std::uint64_t{1024 >> 4} << 32) |
         (static_cast<std::uint64_t>(group_stride >> 4) << 16) | (address >> 4 & 0x3FFF);
}

__device__ inline void fence_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kGroups>
__device__ inline void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
// Keeps the compiler from moving uses of an accumulator across a wait.
template <int kTiles>
__device__ inline void pin(float (&d)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kTiles * 4; ++i) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}

#define KVTIER_TILE(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define KVTIER_TILES_8(d, i)                                                              \
  KVTIER_TILE(d, i), KVTIER_TILE(d, i + 1), KVTIER_TILE(d, i + 2), KVTIER_TILE(d, i + 3), \
      KVTIER_TILE(d, i + 4), KVTIER_TILE(d, i + 5), KVTIER_TILE(d, i + 6), KVTIER_TILE(d, i + 7)

// d[64][128] = (accumulate ? d : 0) + a[64][16] * b[16][128]; both operands have their summed
// dimension along the rows of shared memory.
__device__ inline void multiply_shared(float (&d)[16][4], std::uint64_t a, std::uint64_t b,
                                       bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, 0, 0;\n"
      "}\n"
      : KVTIER_TILES_8(d, 0), KVTIER_TILES_8(d, 8)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// The same with a in registers as multiply_add() has it. `along`: "1" where b's rows in shared
// memory run along its columns, "0" where they run along the dimension that is summed over.
#define KVTIER_PRODUCT_128(type, along)                                                   \
  asm volatile(                                                                           \
      "{\n"                                                                               \
      ".reg .pred p;\n"                                                                   \
      "setp.ne.b32 p, %69, 0;\n"                                                          \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                        \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
      "{%64, %65, %66, %67}, %68, p, 1, 1, " along                                        \
      ";\n"                                                                               \
      "}\n"                                                                               \
      : KVTIER_TILES_8(d, 0), KVTIER_TILES_8(d, 8)                                        \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)))
#define KVTIER_PRODUCT_64(type, along)                                                    \
  asm volatile(                                                                           \
      "{\n"                                                                               \
      ".reg .pred p;\n"                                                                   \
      "setp.ne.b32 p, %37, 0;\n"                                                          \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                         \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
      "{%32, %33, %34, %35}, %36, p, 1, 1, " along                                        \
      ";\n"                                                                               \
      "}\n"                                                                               \
      : KVTIER_TILES_8(d, 0)                                                              \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)))

// d = (accumulate ? d : 0) + a * b, 64 rows, of BF16 or FP16.
template <bool kFp16, bool kAlong>
__device__ inline void multiply_registers(float (&d)[16][4], const std::uint32_t (&a)[4],
                                          std::uint64_t b, bool accumulate) {
  static_assert(kAlong);
  if constexpr (kFp16) {
    KVTIER_PRODUCT_128("f16", "1");
  } else {
    KVTIER_PRODUCT_128("bf16", "1");
  }
}
template <bool kFp16, bool kAlong>
__device__ inline void multiply_registers(float (&d)[8][4], const std::uint32_t (&a)[4],
                                          std::uint64_t b, bool accumulate) {
  if constexpr (kFp16 && kAlong) {
    KVTIER_PRODUCT_64("f16", "1");
  } else if constexpr (kFp16) {
    KVTIER_PRODUCT_64("f16", "0");
  } else if constexpr (kAlong) {
    KVTIER_PRODUCT_64("bf16", "1");
  } else {
    KVTIER_PRODUCT_64("bf16", "0");
  }
}

#undef KVTIER_PRODUCT_64
#undef KVTIER_PRODUCT_128
#undef KVTIER_TILES_8
#undef KVTIER_TILE

// What this thread has written to shared memory is seen by products that read it there.
__device__ inline void show_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- Threads -------------------------------------------------------------------------------------

template <int kRegisters>
__device__ inline void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
__device__ inline void sync_named(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void arrive_named(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace kvtier::kernels::cuda::device
