// Norm and rotation of Q and K, and K and V into exact pages. A thread block to a row; kLanes lanes
// to a head, each holding four elements of the head's first half and their partners of the second.
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace kvtier::kernels::cuda {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kHeadDimMax = 256;
constexpr int kQuad = 4;

struct HeadHalves {
  float a[kQuad];  // elements i .. i + 3
  float b[kQuad];  // elements i + half .. i + half + 3
};

__device__ __forceinline__ void load_quad(const Bf16* at, float* x) {
  const Decoded<DType::bf16, kQuad> quad(load_chunk<8>(reinterpret_cast<const std::byte*>(at)));
#pragma unroll
  for (int i = 0; i < kQuad; ++i) x[i] = quad.x[i];
}

__device__ __forceinline__ void store_quad(Bf16* at, const float* x) {
  Chunk<8> chunk;
  chunk.words[0] = encode_word<DType::bf16, false>(x, 1.0F);
  chunk.words[1] = encode_word<DType::bf16, false>(x + 2, 1.0F);
  store_chunk<8>(reinterpret_cast<std::byte*>(at), chunk);
}

// Lanes beyond the head hold zeros. Called by whole groups of kLanes.
template <int kLanes>
__device__ __forceinline__ void normalise(HeadHalves& x, const float* weight, std::uint32_t i,
                                          std::uint32_t half, float epsilon) {
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    squares = fmaf(x.a[j], x.a[j], squares);
    squares = fmaf(x.b[j], x.b[j], squares);
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    squares += __shfl_xor_sync(0xFFFFFFFF, squares, distance);
  }
  const float inverse = 1.0F / sqrtf(squares / static_cast<float>(2 * half) + epsilon);
  if (i >= half) return;
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    x.a[j] *= inverse * weight[i + j];
    x.b[j] *= inverse * weight[half + i + j];
  }
}

// Where a K or V head of this row goes.
__device__ __forceinline__ Bf16* page_row(const StoreKvArgs& args, std::uint32_t row,
                                          std::uint32_t position, std::uint32_t side_head) {
  const ExactPage page = args.step.pages[args.step.row_page[row]];
  return page.values + args.layer * page.layer_stride +
         (std::uint64_t{side_head} * kTileTokens + position % kTileTokens) * args.head_dim;
}

// By the angle of each pair.
__device__ __forceinline__ HeadHalves rotated(const HeadHalves& x, const float* cosines,
                                              const float* sines, std::uint32_t i) {
  HeadHalves result;
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    result.a[j] = x.a[j] * cosines[i + j] - x.b[j] * sines[i + j];
    result.b[j] = x.b[j] * cosines[i + j] + x.a[j] * sines[i + j];
  }
  return result;
}

template <int kLanes>
__global__ void __launch_bounds__(kThreads)
    store_kv_kernel(const __grid_constant__ StoreKvArgs args) {
  __shared__ float cosines[2][kHeadDimMax / 2];  // at the row's position, and where sinks are met
  __shared__ float sines[2][kHeadDimMax / 2];
  const std::uint32_t row = blockIdx.x;
  device::release_dependent_kernel();  // attention, which waits before it reads what is here
  // What the step reads is older than the kernel before this one.
  if (args.step.row_sequence[row] == kNoSequence) return device::wait_for_previous_kernel();
  const std::uint32_t position = args.step.positions[row];
  const std::uint32_t half = args.head_dim / 2;
  for (std::uint32_t i = threadIdx.x; i < half; i += kThreads) {
    const float frequency = args.inverse_frequencies[i];
    sincosf(static_cast<float>(position) * frequency, &sines[0][i], &cosines[0][i]);
    if (args.sink_q == nullptr) continue;
    const std::uint32_t of_sinks = min(position, args.sink_position);
    sincosf(static_cast<float>(of_sinks) * frequency, &sines[1][i], &cosines[1][i]);
  }
  __syncthreads();
  device::wait_for_previous_kernel();

  const std::uint32_t lane = threadIdx.x % kLanes;
  const std::uint32_t i = lane * kQuad;
  const std::uint32_t heads_all = args.heads + 2 * args.kv_heads;
  constexpr std::uint32_t kHeadsAtOnce = kThreads / kLanes;
  const std::uint32_t turns = (heads_all + kHeadsAtOnce - 1) / kHeadsAtOnce;
  for (std::uint32_t turn = 0; turn < turns; ++turn) {  // whole warps, for the shuffles
    const std::uint32_t head = turn * kHeadsAtOnce + threadIdx.x / kLanes;
    const bool mine = head < heads_all && i < half;
    HeadHalves x{};
    if (mine) {
      const Bf16* from = args.qkv + (std::uint64_t{row} * heads_all + head) * args.head_dim;
      load_quad(from + i, x.a);
      load_quad(from + half + i, x.b);
    }
    const bool is_q = head < args.heads;
    const bool is_v = head >= args.heads + args.kv_heads;
    // The weights differ between the heads of a warp, the shuffles do not.
    if (args.q_norm != nullptr || args.k_norm != nullptr) {
      const float* weight = is_q ? args.q_norm : is_v ? nullptr : args.k_norm;
      HeadHalves normal = x;
      normalise<kLanes>(normal, weight, weight != nullptr ? i : half, half, args.epsilon);
      if (weight != nullptr) x = normal;
    }
    if (!mine) continue;
    const std::uint64_t of_q = (std::uint64_t{row} * args.heads + head) * args.head_dim;
    if (is_q && args.sink_q != nullptr) {
      const HeadHalves turned = rotated(x, cosines[1], sines[1], i);
      store_quad(args.sink_q + of_q + i, turned.a);
      store_quad(args.sink_q + of_q + half + i, turned.b);
    }
    if (!is_v) x = rotated(x, cosines[0], sines[0], i);
    Bf16* to = is_q ? args.q + of_q : page_row(args, row, position, head - args.heads);
    store_quad(to + i, x.a);
    store_quad(to + half + i, x.b);
  }
}

}  // namespace

void store_kv(const StoreKvArgs& args, StreamView stream) {
  KVTIER_CHECK(args.head_dim % (2 * kQuad) == 0 && args.head_dim <= kHeadDimMax);
  if (args.step.rows == 0) return;
  const auto kernel = args.head_dim <= 64    ? store_kv_kernel<8>
                      : args.head_dim <= 128 ? store_kv_kernel<16>
                                             : store_kv_kernel<32>;
  device::launch_dependent(kernel, {.grid = dim3(args.step.rows), .threads = kThreads}, stream,
                           args);
}

}  // namespace kvtier::kernels::cuda
