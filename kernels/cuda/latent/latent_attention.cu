// Latent attention: a thread block is one row with some of its query heads, which share every token
// that they meet, and one part of the context. Tokens come to shared memory a tile at a time, as
// they are stored, and become BF16 there, their block's scale applied; warps share the tile's
// scores by tokens and heads, and its values by channels.
#include <cuda_fp16.h>

#include <algorithm>

#include "core/base/check.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/stored.cuh"
#include "kernels/cuda/latent/latent.h"
#include "kernels/cuda/launch.cuh"

namespace kvtier::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTileBlocks = 2;
constexpr int kBlock = static_cast<int>(kTileTokens);
constexpr int kTokens = kTileBlocks * kBlock;  // of a tile
constexpr std::uint32_t kPartBlocks = 64;      // of a context that is split
constexpr int kScoreStride = kTokens + 1;
constexpr int kWeightStride = kTokens + 8;
constexpr int kUnits = static_cast<int>(kLatentValuesMax) / 16 / kWarps;  // of 16 values, a warp's

struct LatentParams {
  StepRows step;
  const Bf16* q;
  Bf16* out;
  float* part_sums;    // [rows][heads][parts][values], relative to the part's largest
  float2* part_sizes;  // [rows][heads][parts]: largest score, sum of weights
  std::uint64_t k_offset, scale_offset;
  std::uint32_t first_row, layer, heads, channels, values;
  std::uint32_t part_blocks, parts;
  float scale_log2;
};

// Shared memory, in bytes from its beginning.
template <typename Stored>
struct Places {
  int stride;  // elements of a row of Q and of K: zeros behind the channels, and a bank apart
  int k, raw, scores, weights, decay, total, end;

  __host__ __device__ Places(int channels, int heads)
      : stride((channels + 15) / 16 * 16 + 8),
        k(heads * stride * 2),
        raw(k + kTokens * stride * 2),
        scores(raw + (kTokens * channels * Stored::kBytes + 15) / 16 * 16),
        weights(scores + heads * kScoreStride * 4),
        decay(weights + heads * kWeightStride * 2),
        total(decay + heads * 4),
        end(total + heads * 4) {}
};

struct LatentWork {
  std::uint32_t row;  // of the step
  std::uint32_t first_head;
  std::uint32_t first_block;
  int stored_blocks;
  int exact_tokens;  // 0 where the row's own block is in another part
  std::byte* const* table;
};

__device__ bool find_work(const LatentParams& params, std::uint32_t heads, LatentWork& work) {
  work.row = params.first_row + blockIdx.z;
  work.first_head = blockIdx.x * heads;
  work.first_block = blockIdx.y * params.part_blocks;
  const std::uint32_t sequence = params.step.row_sequence[work.row];
  const std::uint32_t position = params.step.positions[work.row];
  const std::uint32_t own = position / kTileTokens;
  if (sequence == kNoSequence || own < work.first_block) return false;
  const std::uint32_t before = own - work.first_block;
  work.table = params.step.block_tables[sequence];
  work.stored_blocks = static_cast<int>(min(before, params.part_blocks));
  work.exact_tokens =
      before < params.part_blocks ? static_cast<int>(position % kTileTokens) + 1 : 0;
  return true;
}

// The query heads, zeros beyond the last and behind the channels.
__device__ void take_queries(const LatentParams& params, const LatentWork& work, int heads,
                             int stride, Bf16* q) {
  const int pieces = stride / 8;
  const int channels = static_cast<int>(params.channels);
  for (int i = static_cast<int>(threadIdx.x); i < heads * pieces; i += kThreads) {
    const int head = i / pieces;
    const int channel = i % pieces * 8;
    uint4 x = {0, 0, 0, 0};
    if (work.first_head + head < params.heads && channel < channels) {
      const std::size_t at = std::size_t{work.row} * params.heads + work.first_head + head;
      x = *reinterpret_cast<const uint4*>(params.q + at * params.channels + channel);
    }
    *reinterpret_cast<uint4*>(q + head * stride + channel) = x;
  }
}

// Begins to copy the blocks of a tile as they are stored.
template <typename Stored>
__device__ void fetch_tile(const LatentParams& params, const LatentWork& work, int tile,
                           std::byte* raw) {
  const int block_bytes = kBlock * static_cast<int>(params.channels) * Stored::kBytes;
  const int pieces = block_bytes / 16;
  const int blocks = min(kTileBlocks, work.stored_blocks - tile * kTileBlocks);
  for (int i = static_cast<int>(threadIdx.x); i < blocks * pieces; i += kThreads) {
    const std::byte* record = work.table[work.first_block + tile * kTileBlocks + i / pieces];
    device::copy_async<16>(device::shared_address(raw + i * 16),
                           record + params.k_offset + i % pieces * 16);
  }
  device::commit_copies();
}

// Two numbers of a stored pair of codes, BF16 once they are multiplied by the scale.
__device__ std::uint32_t scaled_pair(std::uint32_t halves, float scale) {
  const float2 x = __half22float2(*reinterpret_cast<const __half2*>(&halves));
  return device::pack_bf16(x.x * scale, x.y * scale);
}

// From `raw` to BF16 rows; tokens of blocks that the tile has not are zeros.
template <typename Stored>
__device__ void widen_tile(const LatentParams& params, const LatentWork& work, int tile,
                           const std::byte* raw, Bf16* k, int stride) {
  const int row_pieces = static_cast<int>(params.channels) / 8;
  const int blocks = min(kTileBlocks, work.stored_blocks - tile * kTileBlocks);
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * row_pieces; i += kThreads) {
    const int token = i / row_pieces;
    uint4 wide = {0, 0, 0, 0};
    if (token / kBlock < blocks) {
      if constexpr (Stored::kBytes == 2) {
        wide = reinterpret_cast<const uint4*>(raw)[i];
      } else {
        const std::byte* record =
            work.table[work.first_block + tile * kTileBlocks + token / kBlock];
        const float scale = __ldg(reinterpret_cast<const float*>(record + params.scale_offset));
        const uint2 codes = reinterpret_cast<const uint2*>(raw)[i];
        std::uint32_t first = 0, second = 0;
        device::widen_in_order(Stored{}, codes.x, first, second);
        wide.x = scaled_pair(first, scale);
        wide.y = scaled_pair(second, scale);
        device::widen_in_order(Stored{}, codes.y, first, second);
        wide.z = scaled_pair(first, scale);
        wide.w = scaled_pair(second, scale);
      }
    }
    *reinterpret_cast<uint4*>(k + token * stride + i % row_pieces * 8) = wide;
  }
}

// The row's own block up to the row; zeros behind it, where anything may lie.
__device__ void take_exact(const LatentParams& params, const LatentWork& work, Bf16* k,
                           int stride) {
  const ExactPage page = params.step.pages[params.step.row_page[work.row]];
  const Bf16* from = page.values + params.layer * page.layer_stride;
  const int row_pieces = static_cast<int>(params.channels) / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * row_pieces; i += kThreads) {
    const int token = i / row_pieces;
    uint4 x = {0, 0, 0, 0};
    if (token < work.exact_tokens) x = reinterpret_cast<const uint4*>(from)[i];
    *reinterpret_cast<uint4*>(k + token * stride + i % row_pieces * 8) = x;
  }
}

// scores[head][token] in units of log2. A warp has 16 heads and 16 tokens.
__device__ void score_tile(const Bf16* q, const Bf16* k, int stride, int fragments, float scale,
                           float* scores) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int fragment = warp / kTileBlocks;
  const int block = warp % kTileBlocks;
  if (fragment >= fragments) return;
  const std::uint32_t q_at =
      device::shared_address(q + (fragment * 16 + lane % 16) * stride + lane / 16 * 8);
  const std::uint32_t k_at = device::shared_address(
      k + (block * kBlock + lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
  float sums[2][2][4] = {};  // of even and odd steps, so that one need not wait for the other
  const int steps = (stride - 8) / 16;
  const auto take = [&](int step, float(&of_step)[2][4]) {
    std::uint32_t a[4], b[4];
    device::load_matrices(a, q_at + step * 32);
    device::load_matrices(b, k_at + step * 32);
    device::multiply_add(of_step[0], a[0], a[1], a[2], a[3], b[0], b[1]);
    device::multiply_add(of_step[1], a[0], a[1], a[2], a[3], b[2], b[3]);
  };
#pragma unroll 2
  for (int step = 0; step < steps; step += 2) {
    take(step, sums[0]);
    if (step + 1 < steps) take(step + 1, sums[1]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = fragment * 16 + lane / 4 + i / 2 * 8;
      const int token = block * kBlock + half * 8 + lane % 4 * 2 + i % 2;
      scores[head * kScoreStride + token] = (sums[0][half][i] + sums[1][half][i]) * scale;
    }
  }
}

// A head's running softmax, which the threads of the head all have.
struct HeadState {
  float largest = -INFINITY;
  float total = 0;
};

// Turns the first `tokens` scores of the thread's head into weights, the others into 0.
template <int kHeads>
__device__ void weigh_tile(HeadState& state, const float* scores, int tokens, Bf16* weights,
                           float* decay) {
  constexpr int kThreadsOfHead = kThreads / kHeads;
  constexpr int kOwn = kTokens / kThreadsOfHead;
  const int head = static_cast<int>(threadIdx.x) / kThreadsOfHead;
  const int first = static_cast<int>(threadIdx.x) % kThreadsOfHead * kOwn;
  float x[kOwn];
  float most = state.largest;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    x[i] = first + i < tokens ? scores[head * kScoreStride + first + i] : -INFINITY;
    most = fmaxf(most, x[i]);
  }
#pragma unroll
  for (int distance = kThreadsOfHead / 2; distance > 0; distance /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, distance));
  }
  const float fade = device::exp2_fast(state.largest - most);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    x[i] = device::exp2_fast(x[i] - most);
    sum += x[i];
    weights[head * kWeightStride + first + i] = __float2bfloat16_rn(x[i]);
  }
#pragma unroll
  for (int distance = kThreadsOfHead / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, distance);
  }
  state.largest = most;
  state.total = state.total * fade + sum;
  if (first == 0) decay[head] = fade;
}

// A warp's sums of values: of all heads, every kWarps-th unit of 16 channels.
template <int kFragments>
struct ValueSums {
  float sums[kFragments][kUnits][2][4] = {};

  __device__ void add_tile(const Bf16* k, int stride, const Bf16* weights, const float* decay,
                           int units) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    rescale(decay, lane);
#pragma unroll
    for (int block = 0; block < kTileBlocks; ++block) {
      std::uint32_t a[kFragments][4];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        device::load_matrices(
            a[f], device::shared_address(weights + (f * 16 + lane % 16) * kWeightStride +
                                         block * kBlock + lane / 16 * 8));
      }
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const int unit = warp + u * kWarps;
        if (unit >= units) break;
        std::uint32_t b[4];
        device::load_matrices_transposed(
            b, device::shared_address(k + (block * kBlock + lane / 8 % 2 * 8 + lane % 8) * stride +
                                      unit * 16 + lane / 16 * 8));
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          device::multiply_add(sums[f][u][0], a[f][0], a[f][1], a[f][2], a[f][3], b[0], b[1]);
          device::multiply_add(sums[f][u][1], a[f][0], a[f][1], a[f][2], a[f][3], b[2], b[3]);
        }
      }
    }
  }
  // visit(head of the tile, first of two channels, the two sums) for all that the lane has.
  template <typename Visit>
  __device__ void each_pair(int units, const Visit& visit) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const int unit = warp + u * kWarps;
        if (unit >= units) break;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = sums[f][u][i / 2] + i % 2 * 2;
          visit(f * 16 + lane / 4 + i % 2 * 8, unit * 16 + i / 2 * 8 + lane % 4 * 2, pair);
        }
      }
    }
  }

 private:
  __device__ void rescale(const float* decay, int lane) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      const float of_half[2] = {decay[f * 16 + lane / 4], decay[f * 16 + lane / 4 + 8]};
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[f][u][i / 4][i % 4] *= of_half[i % 4 / 2];
      }
    }
  }
};

template <typename Stored, int kFragments>
__global__ void __launch_bounds__(kThreads, 1)
    latent_parts(const __grid_constant__ LatentParams params) {
  constexpr int kHeads = kFragments * 16;
  extern __shared__ __align__(16) std::byte shared[];
  LatentWork work;
  if (!find_work(params, kHeads, work)) return;
  const Places<Stored> places(static_cast<int>(params.channels), kHeads);
  auto* const q = reinterpret_cast<Bf16*>(shared);
  auto* const k = reinterpret_cast<Bf16*>(shared + places.k);
  auto* const scores = reinterpret_cast<float*>(shared + places.scores);
  auto* const weights = reinterpret_cast<Bf16*>(shared + places.weights);
  auto* const decay = reinterpret_cast<float*>(shared + places.decay);
  auto* const totals = reinterpret_cast<float*>(shared + places.total);
  std::byte* const raw = shared + places.raw;
  const int units = static_cast<int>(params.values) / 16;
  const int stored_tiles = (work.stored_blocks + kTileBlocks - 1) / kTileBlocks;
  const int tiles = stored_tiles + (work.exact_tokens != 0 ? 1 : 0);

  if (stored_tiles > 0) fetch_tile<Stored>(params, work, 0, raw);
  take_queries(params, work, kHeads, places.stride, q);
  // Behind the channels K is zero throughout.
  const int channels = static_cast<int>(params.channels);
  const int behind = places.stride - channels;
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * behind; i += kThreads) {
    k[i / behind * places.stride + channels + i % behind] = __float2bfloat16_rn(0);
  }
  HeadState state;
  ValueSums<kFragments> sums;
  for (int tile = 0; tile < tiles; ++tile) {
    const bool is_stored = tile < stored_tiles;
    device::wait_copies<0>();
    __syncthreads();  // the tile has landed, and the one before is done with
    if (is_stored) {
      widen_tile<Stored>(params, work, tile, raw, k, places.stride);
    } else {
      take_exact(params, work, k, places.stride);
    }
    __syncthreads();
    if (tile + 1 < stored_tiles) fetch_tile<Stored>(params, work, tile + 1, raw);
    score_tile(q, k, places.stride, kFragments, params.scale_log2, scores);
    __syncthreads();
    const int seen = is_stored ? min(kTileBlocks, work.stored_blocks - tile * kTileBlocks) * kBlock
                               : work.exact_tokens;
    weigh_tile<kHeads>(state, scores, seen, weights, decay);
    __syncthreads();
    sums.add_tile(k, places.stride, weights, decay, units);
  }
  constexpr int kThreadsOfHead = kThreads / kHeads;
  if (threadIdx.x % kThreadsOfHead == 0) totals[threadIdx.x / kThreadsOfHead] = state.total;
  __syncthreads();

  const std::size_t first = std::size_t{work.row} * params.heads + work.first_head;
  const int heads = static_cast<int>(min(params.heads - work.first_head, kHeads));
  if (params.part_sums == nullptr) {
    sums.each_pair(units, [&](int head, int channel, const float* pair) {
      if (head >= heads) return;
      const float inverse = __frcp_rn(totals[head]);
      *reinterpret_cast<std::uint32_t*>(params.out + (first + head) * params.values + channel) =
          device::pack_bf16(pair[0] * inverse, pair[1] * inverse);
    });
    return;
  }
  const std::size_t first_part =
      (std::size_t{blockIdx.z} * params.heads + work.first_head) * params.parts + blockIdx.y;
  const auto part = [&](int head) { return first_part + std::size_t(head) * params.parts; };
  sums.each_pair(units, [&](int head, int channel, const float* pair) {
    if (head >= heads) return;
    *reinterpret_cast<float2*>(params.part_sums + part(head) * params.values + channel) = {pair[0],
                                                                                           pair[1]};
  });
  const int own = static_cast<int>(threadIdx.x) / kThreadsOfHead;
  if (threadIdx.x % kThreadsOfHead == 0 && own < heads) {
    params.part_sizes[part(own)] = {state.largest, state.total};
  }
}

// A thread block to a row and head.
__global__ void __launch_bounds__(kThreads)
    combine_latent(const __grid_constant__ LatentParams params) {
  const std::uint32_t row = params.first_row + blockIdx.y;
  if (params.step.row_sequence[row] == kNoSequence) return;
  const auto parts =
      static_cast<int>(params.step.positions[row] / (kTileTokens * params.part_blocks) + 1);
  const std::size_t first = (std::size_t{blockIdx.y} * params.heads + blockIdx.x) * params.parts;
  float most = -INFINITY;
  for (int part = 0; part < parts; ++part) most = fmaxf(most, params.part_sizes[first + part].x);
  float total = 0;
  for (int part = 0; part < parts; ++part) {
    const float2 size = params.part_sizes[first + part];
    total = fmaf(size.y, device::exp2_fast(size.x - most), total);
  }
  const float inverse = __frcp_rn(total);
  Bf16* const out = params.out + (std::size_t{row} * params.heads + blockIdx.x) * params.values;
  for (std::uint32_t channel = threadIdx.x; channel < params.values; channel += kThreads) {
    float sum = 0;
    for (int part = 0; part < parts; ++part) {
      sum = fmaf(params.part_sums[(first + part) * params.values + channel],
                 device::exp2_fast(params.part_sizes[first + part].x - most), sum);
    }
    out[channel] = __float2bfloat16_rn(sum * inverse);
  }
}

int shared_memory_max() {
  int device = 0;
  int bytes = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "shared memory of a thread block");
  return bytes;
}

template <typename Stored, int kFragments>
bool launch_parts(const LatentParams& params, std::uint32_t rows, StreamView stream) {
  constexpr std::uint32_t kHeads = kFragments * 16;
  const int bytes = Places<Stored>(static_cast<int>(params.channels), kHeads).end;
  if (bytes > shared_memory_max()) return false;
  device::allow_shared_memory(latent_parts<Stored, kFragments>, bytes);
  const dim3 grid(divided_up(params.heads, kHeads), params.parts, rows);
  latent_parts<Stored, kFragments>
      <<<grid, kThreads, static_cast<std::size_t>(bytes), stream.get()>>>(params);
  check_launch("latent_parts");
  return true;
}

// As many heads at once as there are and as a multiprocessor has room for.
template <typename Stored>
void launch_latent(const LatentParams& params, std::uint32_t rows, StreamView stream) {
  if (params.heads > 32 && launch_parts<Stored, 4>(params, rows, stream)) return;
  if (params.heads > 16 && launch_parts<Stored, 2>(params, rows, stream)) return;
  const bool launched = launch_parts<Stored, 1>(params, rows, stream);
  KVTIER_CHECK(launched && "latent_attention: a tile of 16 heads needs more shared memory");
}

std::uint32_t parts_of(std::uint32_t context_max) {
  return std::max(divided_up(context_max, kTileTokens * kPartBlocks), 1U);
}

}  // namespace

std::size_t latent_workspace_bytes(std::uint32_t rows, std::uint32_t heads,
                                   std::uint32_t value_channels, std::uint32_t context_max) {
  return std::size_t{rows} * heads * parts_of(context_max) *
         (value_channels * sizeof(float) + sizeof(float2));
}

void latent_attention(const LatentAttentionArgs& args, StreamView stream) {
  const RecordLayout& layout = args.layout;
  KVTIER_CHECK(layout.block_tokens == kTileTokens && layout.kv_heads == 1 &&
               layout.head_dim_v == 0);
  KVTIER_CHECK(layout.head_dim_k % 8 == 0 && args.value_channels % 16 == 0);
  KVTIER_CHECK(args.value_channels <= std::min(layout.head_dim_k, kLatentValuesMax));
  if (args.rows == 0) return;
  LatentParams params = {};
  params.step = args.step;
  params.q = args.q;
  params.out = args.out;
  params.k_offset = layout.k_offset(args.layer, 0);
  params.scale_offset = layout.scale_offset(args.layer, false, 0);
  params.first_row = args.first_row;
  params.layer = args.layer;
  params.heads = args.heads;
  params.channels = layout.head_dim_k;
  params.values = args.value_channels;
  params.scale_log2 = args.scale * 1.44269504F;
  params.part_blocks = args.split ? kPartBlocks : 1U << 30;
  params.parts = args.split ? parts_of(args.context_max) : 1;
  if (args.split) {
    params.part_sums = static_cast<float*>(args.workspace);
    params.part_sizes =
        reinterpret_cast<float2*>(params.part_sums + std::size_t{args.rows} * args.heads *
                                                         params.parts * args.value_channels);
  }
  const bool known = device::with_stored_elements(layout.format, [&](auto stored) {
    launch_latent<decltype(stored)>(params, args.rows, stream);
  });
  KVTIER_CHECK(known && "latent_attention: records of this format are the CPU backend's alone");
  if (!args.split) return;
  combine_latent<<<dim3(args.heads, args.rows), kThreads, 0, stream.get()>>>(params);
  check_launch("combine_latent");
}

}  // namespace kvtier::kernels::cuda
