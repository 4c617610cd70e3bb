// Norms and rotations of latent attention, a thread block to a row.
#include "core/base/check.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/latent/latent.h"

namespace kvtier::kernels::cuda {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kRopeMax = 256;

// Every thread gets the sum, in an order that depends on the number of threads alone.
__device__ float sum_of_threads(float x) {
  __shared__ float of_warps[kThreads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xFFFFFFFF, x, distance);
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (const float of_warp : of_warps) sum += of_warp;
  return sum;
}

// `in` and `out` may not be the same.
__device__ void norm_row(const Bf16* in, const float* weight, Bf16* out, std::uint32_t dim,
                         float epsilon) {
  float squares = 0;
  for (std::uint32_t i = threadIdx.x; i < dim; i += kThreads) {
    const float x = __bfloat162float(in[i]);
    squares = fmaf(x, x, squares);
  }
  const float inverse = 1.0F / sqrtf(sum_of_threads(squares) / static_cast<float>(dim) + epsilon);
  for (std::uint32_t i = threadIdx.x; i < dim; i += kThreads) {
    out[i] = __float2bfloat16_rn(__bfloat162float(in[i]) * inverse * weight[i]);
  }
}

__global__ void __launch_bounds__(kThreads)
    norm_rows_kernel(const Bf16* in, const float* weight, Bf16* out, std::uint32_t dim,
                     float epsilon) {
  const std::size_t row = blockIdx.x;
  norm_row(in + row * dim, weight, out + row * dim, dim, epsilon);
}

// Pair `i` of `from`, rotated, to `to`.
__device__ void rotate_pair(const StoreLatentArgs& args, const Bf16* from, Bf16* to,
                            std::uint32_t i, float cosine, float sine, float factor) {
  const std::uint32_t half = args.rope_dim / 2;
  const float a = __bfloat162float(from[args.interleaved ? 2 * i : i]);
  const float b = __bfloat162float(from[args.interleaved ? 2 * i + 1 : i + half]);
  to[i] = __float2bfloat16_rn((a * cosine - b * sine) * factor);
  to[half + i] = __float2bfloat16_rn((b * cosine + a * sine) * factor);
}

__global__ void __launch_bounds__(kThreads)
    store_latent_kernel(const __grid_constant__ StoreLatentArgs args) {
  __shared__ float cosines[kRopeMax / 2], sines[kRopeMax / 2];
  const std::size_t row = blockIdx.x;
  if (args.step.row_sequence[row] == kNoSequence) return;
  const std::uint32_t position = args.step.positions[row];
  const std::uint32_t half = args.rope_dim / 2;
  const std::uint32_t kept = args.kv_rank + args.rope_dim;
  for (std::uint32_t i = threadIdx.x; i < half; i += kThreads) {
    sincosf(static_cast<float>(position) * args.inverse_frequencies[i], &sines[i], &cosines[i]);
  }
  const ExactPage page = args.step.pages[args.step.row_page[row]];
  Bf16* const k =
      page.values + args.layer * page.layer_stride + std::size_t{position % kTileTokens} * kept;
  const Bf16* const kv = args.kv + row * kept;
  norm_row(kv, args.kv_norm, k, args.kv_rank, args.epsilon);
  __syncthreads();  // cosines and sines
  for (std::uint32_t i = threadIdx.x; i < half; i += kThreads) {
    rotate_pair(args, kv + args.kv_rank, k + args.kv_rank, i, cosines[i], sines[i], 1);
  }
  const std::uint32_t projected = args.nope_dim + args.rope_dim;
  for (std::uint32_t at = threadIdx.x; at < args.heads * half; at += kThreads) {
    const std::size_t head = row * args.heads + at / half;
    const std::uint32_t i = at % half;
    rotate_pair(args, args.projected + head * projected + args.nope_dim,
                args.q + head * kept + args.kv_rank, i, cosines[i], sines[i], args.q_factor);
  }
}

// A thread block to a head.
__global__ void __launch_bounds__(kThreads)
    transpose_keys_kernel(const Bf16* kv_b, Bf16* keys, std::uint32_t nope_dim, std::uint32_t v_dim,
                          std::uint32_t kv_rank) {
  const std::size_t head = blockIdx.x;
  const Bf16* const from = kv_b + head * (nope_dim + v_dim) * kv_rank;
  Bf16* const to = keys + head * kv_rank * nope_dim;
  for (std::uint32_t i = threadIdx.x; i < kv_rank * nope_dim; i += kThreads) {
    to[i] = from[std::size_t{i % nope_dim} * kv_rank + i / nope_dim];
  }
}

}  // namespace

void transpose_keys(const Bf16* kv_b, Bf16* keys, std::uint32_t heads, std::uint32_t nope_dim,
                    std::uint32_t v_dim, std::uint32_t kv_rank, StreamView stream) {
  transpose_keys_kernel<<<heads, kThreads, 0, stream.get()>>>(kv_b, keys, nope_dim, v_dim, kv_rank);
  check_launch("transpose_keys");
}

void rms_norm_rows(const Bf16* in, const float* weight, Bf16* out, std::size_t rows,
                   std::size_t dim, float epsilon, StreamView stream) {
  KVTIER_CHECK(in != out);
  if (rows == 0) return;
  norm_rows_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream.get()>>>(
      in, weight, out, static_cast<std::uint32_t>(dim), epsilon);
  check_launch("rms_norm_rows");
}

void store_latent(const StoreLatentArgs& args, StreamView stream) {
  KVTIER_CHECK(args.rope_dim % 8 == 0 && args.rope_dim <= kRopeMax && args.kv_rank % 8 == 0);
  if (args.step.rows == 0) return;
  store_latent_kernel<<<args.step.rows, kThreads, 0, stream.get()>>>(args);
  check_launch("store_latent");
}

}  // namespace kvtier::kernels::cuda
