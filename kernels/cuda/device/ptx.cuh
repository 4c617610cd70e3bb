// The instructions that CUDA C++ has no name for: asynchronous copies into shared memory, matrix
// fragments, tensor-core products. All of sm_80.
#pragma once

#include <cstdint>

namespace kvtier::kernels::cuda::device {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies kBytes (4, 8 or 16), aligned to as much, to shared memory.
template <int kBytes>
__device__ inline void copy_async(std::uint32_t to, const void* from) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes)
                 : "memory");
  }
}

// 16 bytes, or zeros where `wanted` is false; `from` is not read then.
__device__ inline void copy_async_or_zero(std::uint32_t to, const void* from, bool wanted) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(wanted ? 16 : 0)
               : "memory");
}

__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all but the last kGroups groups of this thread have landed.
template <int kGroups>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Four 8x8 matrices of 16-bit elements; lanes 8i .. 8i+7 give the rows of matrix i.
__device__ inline void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ inline void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// d[16][8] += a[16][16] * b[16][8], BF16 into FP32. With g = lane / 4 and t = lane % 4: a is rows
// g, g+8, g, g+8 at columns 2t, 2t, 2t+8, 2t+8 (and the next); b is column g at rows 2t, 2t+8 (and
// the next); d is row g at columns 2t, 2t+1, then row g+8.
__device__ inline void multiply_add(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                    std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                    std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same of FP16.
__device__ inline void multiply_add_fp16(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                         std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                         std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Of an 8x8 matrix of 16-bit elements, a lane holding columns 2t and 2t + 1 of row g: the same of
// its transpose.
__device__ inline std::uint32_t transpose(std::uint32_t x) {
  std::uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// 2^x; 0 for minus infinity.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats as BF16, round to nearest even; `low` in the low half.
__device__ inline std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ inline std::uint32_t pack_fp16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// The largest of the four lanes that share a row of `d`; their sum.
__device__ inline float max_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFF, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFF, x, 2));
}
__device__ inline float sum_of_row(float x) {
  x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFF, x, 1));
  return __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFF, x, 2));
}

// The same of the eight lanes that share a column.
__device__ inline float max_of_column(float x) {
#pragma unroll
  for (int i = 4; i <= 16; i *= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFF, x, i));
  return x;
}
__device__ inline float sum_of_column(float x) {
#pragma unroll
  for (int i = 4; i <= 16; i *= 2) x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFF, x, i));
  return x;
}

// Lets the next kernel of the stream begin where it was launched as a dependent one; waits for the
// kernel before to have ended and its writes to be seen.
__device__ inline void release_dependent_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace kvtier::kernels::cuda::device
