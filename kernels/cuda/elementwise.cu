// Embedding and activation: 16 bytes a thread and access.
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace kvtier::kernels::cuda {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kVector = 8;  // BF16 elements in 16 bytes

using Bf16Vector = Decoded<DType::bf16, kVector>;

__device__ __forceinline__ const std::byte* bytes(const Bf16* at) {
  return reinterpret_cast<const std::byte*>(at);
}

__global__ void __launch_bounds__(kThreads)
    embed_kernel(const std::uint32_t* ids, const Bf16* table, float* out, std::uint32_t dim) {
  const std::uint32_t at = (blockIdx.y * kThreads + threadIdx.x) * kVector;
  if (at >= dim) return;
  const Bf16* from = table + std::uint64_t{ids[blockIdx.x]} * dim + at;
  const Bf16Vector value(load_chunk<16>(bytes(from)));
  auto* to = reinterpret_cast<float4*>(out + std::uint64_t{blockIdx.x} * dim + at);
  to[0] = make_float4(value.x[0], value.x[1], value.x[2], value.x[3]);
  to[1] = make_float4(value.x[4], value.x[5], value.x[6], value.x[7]);
}

// exp(-gate) overflows to infinity for very negative gates, which gives the right -0.
__device__ __forceinline__ float gated(float gate, float up) {
  return gate / (1.0F + expf(-gate)) * up;
}

__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(const Bf16* gate_up, Bf16* out, std::uint32_t inner) {
  const std::uint32_t at = (blockIdx.y * kThreads + threadIdx.x) * kVector;
  device::release_dependent_kernel();
  device::wait_for_previous_kernel();
  if (at >= inner) return;
  const Bf16* row = gate_up + std::uint64_t{blockIdx.x} * 2 * inner;
  const Bf16Vector gate(load_chunk<16>(bytes(row + at)));
  const Bf16Vector up(load_chunk<16>(bytes(row + inner + at)));
  Chunk<16> result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float pair[2] = {gated(gate.x[2 * i], up.x[2 * i]),
                           gated(gate.x[2 * i + 1], up.x[2 * i + 1])};
    result.words[i] = encode_word<DType::bf16, true>(pair, 1.0F);
  }
  store_chunk<16>(reinterpret_cast<std::byte*>(out + std::uint64_t{blockIdx.x} * inner + at),
                  result);
}

dim3 grid_for(std::size_t rows, std::size_t dim) {
  KVTIER_CHECK(dim % kVector == 0);
  return dim3(static_cast<std::uint32_t>(rows), divided_up(dim, kThreads * kVector));
}

}  // namespace

void embed(const std::uint32_t* ids, const Bf16* table, float* out, std::size_t rows,
           std::size_t dim, StreamView stream) {
  if (rows == 0) return;
  embed_kernel<<<grid_for(rows, dim), kThreads, 0, stream.get()>>>(ids, table, out,
                                                                   static_cast<std::uint32_t>(dim));
  check_launch("embed");
}

void swiglu(const Bf16* gate_up, Bf16* out, std::size_t rows, std::size_t inner,
            StreamView stream) {
  if (rows == 0) return;
  device::launch_dependent(swiglu_kernel, {.grid = grid_for(rows, inner), .threads = kThreads},
                           stream, gate_up, out, static_cast<std::uint32_t>(inner));
}

}  // namespace kvtier::kernels::cuda
