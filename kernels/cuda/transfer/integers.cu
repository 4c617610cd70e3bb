// Pages to records of integers in groups and back, as docs/format.md has it. Both ways in chunks of
// 8 channels of one token; two channels that follow one another always share a scale.
#include <bit>
#include <type_traits>

#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/transfer/transfer.cuh"
#include "kvtier/groups.h"

namespace kvtier::kernels::cuda {
namespace {

constexpr std::uint32_t kWarp = 32;
constexpr std::uint32_t kWarpsPerBlock = 8;
constexpr std::uint32_t kThreads = 512;
constexpr int kInFlight = 4;  // chunks a thread loads before it stores
constexpr std::uint32_t kChunksPerBlock = kThreads * kInFlight;
constexpr std::uint32_t kChannels = 8;  // of a chunk
constexpr int kPairs = 4;

// One head of K or V in a record; sizes in bytes but for the shifts, which are of numbers.
struct HeadShape {
  std::uint32_t dim;
  std::uint32_t tokens;
  std::uint32_t token_shift, channel_shift;  // of a group
  std::uint32_t token_groups, channel_groups;
  std::uint32_t row_bytes;
  std::uint64_t scales_offset;
  std::uint64_t bytes;

  static HeadShape of(const LayerLayout& layout, bool v) {
    const std::uint32_t dim = v ? layout.head_dim_v : layout.head_dim_k;
    const GroupedHead head = grouped_head(layout.format, layout.block_tokens, dim, v);
    return {dim,
            layout.block_tokens,
            static_cast<std::uint32_t>(std::countr_zero(head.group_tokens)),
            static_cast<std::uint32_t>(std::countr_zero(head.group_channels)),
            head.token_groups,
            head.channel_groups,
            static_cast<std::uint32_t>(head.row_bytes),
            head.scales_offset,
            head.bytes};
  }
};

struct IntegerParams {
  LaunchLayers launch;
  HeadShape heads[2];      // K, V
  FastDivide pieces;       // heads of K and V, or chunks, of a layer of a block
  std::uint32_t k_chunks;  // of those
  std::uint32_t total;
  std::uint64_t scales_offset;  // as in TransferParams
  const float* scales;
  std::uint32_t scales_pitch;

  __device__ __forceinline__ std::byte* head_at(std::uint32_t layer, std::uint32_t block,
                                                std::uint32_t side, std::uint32_t head) const {
    const std::uint64_t before = side * launch.sides[0].heads * heads[0].bytes;
    return const_cast<std::byte*>(launch.records[block]) + launch.payload +
           layer * launch.layer_bytes + before + head * heads[side].bytes;
  }
  __device__ __forceinline__ const float* scale_at(std::uint32_t layer, std::uint32_t block,
                                                   std::uint32_t side, std::uint32_t head) const {
    const std::uint32_t count = launch.sides[0].heads;
    const auto* inside = reinterpret_cast<const float*>(launch.records[block] + scales_offset);
    return (scales == nullptr ? inside : scales + std::uint64_t{block} * scales_pitch) +
           (layer * 2 * count + side * count + head);
  }
};

template <int kBits>
__host__ __device__ constexpr float levels() {
  return kBits == 4 ? 8.0F : 128.0F;
}

// Up to 8 elements of a page; those from `count` on are 0. kWhole: there are 8, and they begin at a
// multiple of 16 bytes or of their size together.
template <DType kPage, bool kWhole>
__device__ __forceinline__ Decoded<kPage, 8> load_channels(const std::byte* at,
                                                           std::uint32_t count) {
  Chunk<8 * size_of(kPage)> chunk{};
  if constexpr (kWhole) {
    chunk = load_chunk<8 * size_of(kPage)>(at);
  } else if constexpr (size_of(kPage) == 4) {
#pragma unroll
    for (std::uint32_t i = 0; i < kChannels; ++i) {
      if (i < count) chunk.words[i] = reinterpret_cast<const std::uint32_t*>(at)[i];
    }
  } else {
#pragma unroll
    for (std::uint32_t i = 0; i < kChannels; ++i) {
      if (i < count)
        chunk.words[i / 2] |= std::uint32_t{reinterpret_cast<const std::uint16_t*>(at)[i]}
                              << (16 * (i % 2));
    }
  }
  return Decoded<kPage, 8>(chunk);
}

template <DType kPage, bool kWhole>
__device__ __forceinline__ void store_channels(std::byte* at, const float* x, std::uint32_t count) {
  Chunk<8 * size_of(kPage)> chunk;
#pragma unroll
  for (int i = 0; i < 2 * size_of(kPage); ++i)
    chunk.words[i] = encode_word<kPage, false>(x + i * per_word(kPage), 1);
  if constexpr (kWhole) {
    store_chunk<8 * size_of(kPage)>(at, chunk);
  } else if constexpr (size_of(kPage) == 4) {
#pragma unroll
    for (std::uint32_t i = 0; i < kChannels; ++i) {
      if (i < count) reinterpret_cast<std::uint32_t*>(at)[i] = chunk.words[i];
    }
  } else {
#pragma unroll
    for (std::uint32_t i = 0; i < kChannels; ++i) {
      if (i < count)
        reinterpret_cast<std::uint16_t*>(at)[i] =
            static_cast<std::uint16_t>(chunk.words[i / 2] >> (16 * (i % 2)));
    }
  }
}

// 8 integers as they are stored, in the low bytes: two words for int8, one for int4.
template <int kBits, bool kWhole>
__device__ __forceinline__ Chunk<kBits> load_codes(const std::byte* at, std::uint32_t count) {
  if constexpr (kWhole) {
    return load_chunk<kBits>(at);
  } else {
    Chunk<kBits> codes{};
    const std::uint32_t bytes = (count * kBits + 7) / 8;
#pragma unroll
    for (std::uint32_t i = 0; i < kBits; ++i) {
      if (i < bytes)
        codes.words[i / 4] |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(at[i]))
                              << (8 * (i % 4));
    }
    return codes;
  }
}

template <int kBits, bool kWhole>
__device__ __forceinline__ void store_codes(std::byte* at, const Chunk<kBits>& codes,
                                            std::uint32_t count) {
  if constexpr (kWhole) {
    store_chunk<kBits>(at, codes);
  } else {
    const std::uint32_t bytes = (count * kBits + 7) / 8;
#pragma unroll
    for (std::uint32_t i = 0; i < kBits; ++i) {
      if (i < bytes) at[i] = static_cast<std::byte>(codes.words[i / 4] >> (8 * (i % 4)));
    }
  }
}

template <int kBits>
__device__ __forceinline__ float integer(const Chunk<kBits>& codes, int i) {
  constexpr int kInWord = 32 / kBits;
  const std::uint32_t moved = codes.words[i / kInWord] << (32 - kBits * (i % kInWord + 1));
  return static_cast<float>(static_cast<std::int32_t>(moved) >> (32 - kBits));
}

__device__ __forceinline__ float e4m3_value(std::uint8_t code) {
  const __half_raw half = __nv_cvt_fp8_to_halfraw(code, __NV_E4M3);
  return __half2float(half);
}

// --- Into pages ----------------------------------------------------------------------------------

template <int kBits, DType kPage, bool kWhole>
__global__ void __launch_bounds__(kThreads)
    integers_to_pages_kernel(const __grid_constant__ IntegerParams p) {
  for (std::uint32_t first = blockIdx.x * kChunksPerBlock + threadIdx.x; first < p.total;
       first += gridDim.x * kChunksPerBlock) {
    Chunk<kBits> codes[kInFlight];
    std::uint8_t scales[kInFlight][kPairs];
    float of_head[kInFlight];
    std::byte* to[kInFlight];
    std::uint32_t counts[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::uint32_t chunk = min(first + i * kThreads, p.total - 1);  // no branch: all load
      const std::uint32_t piece = p.pieces.quotient(chunk);
      const std::uint32_t in_piece = chunk - piece * p.pieces.divisor();
      const std::uint32_t layer = p.launch.blocks.quotient(piece);
      const std::uint32_t block = piece - layer * p.launch.blocks.divisor();
      const std::uint32_t side = in_piece >= p.k_chunks ? 1 : 0;
      const std::uint32_t in_side = in_piece - side * p.k_chunks;
      const SideShape& shape = p.launch.sides[side];
      const std::uint32_t head = shape.head_chunks.quotient(in_side);
      const std::uint32_t in_head = in_side - head * shape.head_chunks.divisor();
      const std::uint32_t token = shape.row_chunks.quotient(in_head);
      const std::uint32_t channel = (in_head - token * shape.row_chunks.divisor()) * kChannels;
      const HeadShape& h = p.heads[side];
      const std::byte* at = p.head_at(layer, block, side, head);
      counts[i] = min(kChannels, h.dim - channel);
      codes[i] = load_codes<kBits, kWhole>(
          at + std::uint64_t{token} * h.row_bytes + channel * kBits / 8, counts[i]);
      const std::byte* row = at + h.scales_offset + (token >> h.token_shift) * h.channel_groups;
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const std::uint32_t group =
            min((channel + 2 * pair) >> h.channel_shift, h.channel_groups - 1);
        scales[i][pair] = static_cast<std::uint8_t>(row[group]);
      }
      of_head[i] = __ldg(p.scale_at(layer, block, side, head));
      to[i] = p.launch.page_chunk<kChannels * size_of(kPage)>(layer, block, side, head, in_head);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * kThreads >= p.total) continue;
      float x[kChannels];
#pragma unroll
      for (int c = 0; c < static_cast<int>(kChannels); ++c) {
        const float scale = __fmul_rn(e4m3_value(scales[i][c / 2]), of_head[i]);
        x[c] = __fmul_rn(integer<kBits>(codes[i], c), scale);
      }
      store_channels<kPage, kWhole>(to[i], x, counts[i]);
    }
  }
}

// --- Into records --------------------------------------------------------------------------------

// A group's scale: the byte that is stored, and its inverse (0 where it is 0).
struct GroupScale {
  std::uint8_t code;
  float inverse;
};

// `up`, `down`: the largest x and the largest -x of the group; `unit`: 1 / (scale of the head *
// levels).
template <int kBits>
__device__ __forceinline__ GroupScale group_scale(float up, float down, float of_head, float unit) {
  up = fminf(up, FLT_MAX);
  down = fminf(down, FLT_MAX);
  const float largest = __fmul_rn(fmaxf(up, down), unit);
  std::uint32_t code = __nv_cvt_float_to_fp8(largest, __NV_SATFINITE, __NV_E4M3);
  if (kBits == 8 && code < 0x7E && e4m3_value(static_cast<std::uint8_t>(code)) < largest) ++code;
  if (up > down) code |= 0x80;
  const float scale = __fmul_rn(e4m3_value(static_cast<std::uint8_t>(code)), of_head);
  return {static_cast<std::uint8_t>(code), scale == 0 ? 0.0F : __fdiv_rn(1.0F, scale)};
}

template <int kBits>
__device__ __forceinline__ std::uint32_t integer_code(float x, float inverse) {
  if (!(x == x) || inverse == 0) return 0;
  const float rounded = rintf(__fmul_rn(x, inverse));
  const float kept = fminf(fmaxf(rounded, -levels<kBits>()), levels<kBits>() - 1);
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(kept)) & ((1U << kBits) - 1);
}

// A head on its way: one warp's.
template <int kBits, DType kPage, bool kWhole>
struct HeadStore {
  const IntegerParams& p;
  std::uint32_t layer, block, side, head, lane;
  std::byte* to;

  __device__ __forceinline__ const HeadShape& shape() const { return p.heads[side]; }

  __device__ __forceinline__ Decoded<kPage, 8> channels(std::uint32_t token,
                                                        std::uint32_t channel) const {
    const std::byte* row = p.launch.page_row(layer, block, side, head, token);
    return load_channels<kPage, kWhole>(row + std::uint64_t{channel} * size_of(kPage),
                                        shape().dim - channel);
  }

  __device__ __forceinline__ float largest() const {
    const FastDivide& row_chunks = p.launch.sides[side].row_chunks;
    float amax = 0;
    for (std::uint32_t i = lane; i < p.launch.sides[side].head_chunks.divisor(); i += kWarp) {
      const std::uint32_t token = row_chunks.quotient(i);
      const auto x = channels(token, (i - token * row_chunks.divisor()) * kChannels);
#pragma unroll
      for (int c = 0; c < static_cast<int>(kChannels); ++c) amax = fmaxf(amax, fabsf(x.x[c]));
    }
    return fminf(largest_of_warp(amax), FLT_MAX);
  }

  // The groups of channels [channel, channel + bundle) in tokens [first, end): all of one group or
  // several of one chunk.
  __device__ __forceinline__ void store_bundle(std::uint32_t first, std::uint32_t end,
                                               std::uint32_t channel, std::uint32_t bundle,
                                               float of_head, float unit) const {
    const HeadShape& h = shape();
    const std::uint32_t channels_end = min(channel + bundle, h.dim);
    float up[kPairs] = {}, down[kPairs] = {};
    for (std::uint32_t token = first; token < end; ++token) {
      for (std::uint32_t at = channel; at < channels_end; at += kChannels) {
        const auto x = channels(token, at);
#pragma unroll
        for (int c = 0; c < static_cast<int>(kChannels); ++c) {
          up[c / 2] = fmaxf(up[c / 2], x.x[c]);
          down[c / 2] = fmaxf(down[c / 2], -x.x[c]);
        }
      }
    }
    // Pairs of one group together: in groups of 4 channels two of them, in wider ones all.
    if (h.channel_shift >= 2) join<1>(up, down);
    if (h.channel_shift >= 3) join<2>(up, down);
    GroupScale scales[kPairs];
    std::byte* row = to + h.scales_offset + (first >> h.token_shift) * h.channel_groups;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      scales[pair] = group_scale<kBits>(up[pair], down[pair], of_head, unit);
      const std::uint32_t begins = channel + 2 * pair;
      if (begins < channels_end && begins % (1U << h.channel_shift) == 0)
        row[begins >> h.channel_shift] = static_cast<std::byte>(scales[pair].code);
    }
    for (std::uint32_t token = first; token < end; ++token) {
      for (std::uint32_t at = channel; at < channels_end; at += kChannels) {
        const auto x = channels(token, at);
        Chunk<kBits> codes{};
#pragma unroll
        for (int c = 0; c < static_cast<int>(kChannels); ++c) {
          constexpr int kInWord = 32 / kBits;
          codes.words[c / kInWord] |= integer_code<kBits>(x.x[c], scales[c / 2].inverse)
                                      << (kBits * (c % kInWord));
        }
        store_codes<kBits, kWhole>(to + std::uint64_t{token} * h.row_bytes + at * kBits / 8, codes,
                                   min(kChannels, h.dim - at));
      }
    }
  }

  template <int kWith>
  __device__ __forceinline__ static void join(float (&up)[kPairs], float (&down)[kPairs]) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      if ((pair & kWith) != 0) continue;
      up[pair] = up[pair ^ kWith] = fmaxf(up[pair], up[pair ^ kWith]);
      down[pair] = down[pair ^ kWith] = fmaxf(down[pair], down[pair ^ kWith]);
    }
  }

  __device__ __forceinline__ void run(float* scale) const {
    const HeadShape& h = shape();
    constexpr float kLevels = levels<kBits>();
    const float amax = largest();
    const float of_head = amax == 0 ? 1.0F : fmaxf(__fdiv_rn(amax, 448.0F * kLevels), 0x1p-117F);
    const float unit = __fdiv_rn(1.0F, __fmul_rn(of_head, kLevels));
    if (lane == 0) *scale = of_head;
    const std::uint32_t bundle = max(kChannels, 1U << h.channel_shift);
    const std::uint32_t bundles = (h.dim + bundle - 1) / bundle;
    for (std::uint32_t i = lane; i < h.token_groups * bundles; i += kWarp) {
      const std::uint32_t group = i / bundles;
      const std::uint32_t first = group << h.token_shift;
      store_bundle(first, min(first + (1U << h.token_shift), h.tokens),
                   (i - group * bundles) * bundle, bundle, of_head, unit);
    }
    const std::uint64_t end = h.scales_offset + std::uint64_t{h.token_groups} * h.channel_groups;
    for (std::uint64_t at = end + lane; at < h.bytes; at += kWarp) to[at] = std::byte{0};
  }
};

template <int kBits, DType kPage, bool kWhole>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarp)
    integers_to_records_kernel(const __grid_constant__ IntegerParams p) {
  for (std::uint32_t i = blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarp; i < p.total;
       i += gridDim.x * kWarpsPerBlock) {
    const std::uint32_t piece = p.pieces.quotient(i);
    const std::uint32_t side_head = i - piece * p.pieces.divisor();
    const std::uint32_t layer = p.launch.blocks.quotient(piece);
    const std::uint32_t block = piece - layer * p.launch.blocks.divisor();
    const std::uint32_t side = side_head >= p.launch.sides[0].heads ? 1 : 0;
    const std::uint32_t head = side_head - side * p.launch.sides[0].heads;
    const HeadStore<kBits, kPage, kWhole> store{
        p, layer, block, side, head, threadIdx.x % kWarp, p.head_at(layer, block, side, head)};
    store.run(const_cast<float*>(p.scale_at(layer, block, side, head)));
  }
}

// --- Launches ------------------------------------------------------------------------------------

SideShape in_chunks_of_channels(const SideRows& rows) {
  if (rows.heads == 0) return rows.in_chunks(1);
  const std::uint32_t row = divided_up(rows.row_elements, kChannels);
  return {FastDivide(row), FastDivide(row * rows.page_rows * rows.pages),
          FastDivide(rows.page_rows), rows.pages, rows.heads};
}

template <int kBits, DType kPage, bool kWhole, bool kToPages>
void launch_integers(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                     StreamView stream) {
  const TransferLayer& first = args.layers[first_layer];
  const SideShape k = in_chunks_of_channels(SideRows::of(args, first, false));
  const SideShape v = in_chunks_of_channels(SideRows::of(args, first, true));
  const std::uint32_t pieces = kToPages ? k.chunks() + v.chunks() : k.heads + v.heads;
  const auto launch = [&](const LaunchPart& part) {
    const LayerLayout& layout = args.layers[part.first_layer].layout;
    const std::size_t scales_before = layout.scales_offset - args.layers[0].layout.scales_offset;
    IntegerParams params{.launch = launch_layers(args, part, 1),
                         .heads = {HeadShape::of(layout, false), HeadShape::of(layout, true)},
                         .pieces = FastDivide(pieces),
                         .k_chunks = k.chunks(),
                         .total = part.layers * part.blocks * pieces,
                         .scales_offset = layout.scales_offset - args.records_begin,
                         .scales = args.scales == nullptr
                                       ? nullptr
                                       : args.scales + scales_before / sizeof(float) +
                                             std::size_t{part.first_block} * args.scales_pitch,
                         .scales_pitch = args.scales_pitch};
    params.launch.sides[0] = k;
    params.launch.sides[1] = v;
    const std::uint32_t busy = processors() * (kToPages ? 4 : 8);
    const std::uint32_t most = args.thread_blocks != 0 ? args.thread_blocks : busy;
    if constexpr (kToPages) {
      const std::uint32_t grid = std::min(divided_up(params.total, kChunksPerBlock), most);
      integers_to_pages_kernel<kBits, kPage, kWhole><<<grid, kThreads, 0, stream.get()>>>(params);
    } else {
      const std::uint32_t grid = std::min(divided_up(params.total, kWarpsPerBlock), most);
      integers_to_records_kernel<kBits, kPage, kWhole>
          <<<grid, kWarpsPerBlock * kWarp, 0, stream.get()>>>(params);
    }
    check_launch("a transfer of integers in groups");
  };
  for_each_part(args, first_layer, alike, pieces, FastDivide::kLimit / 2, launch);
}

template <bool kToPages>
void transfer_integers(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                       StreamView stream) {
  const StorageFormat format = args.layers[first_layer].layout.format;
  KVTIER_CHECK(format == StorageFormat::int8 || format == StorageFormat::int4);
  with_page_type(args.page_type, [&](auto page) {
    constexpr DType kPage = decltype(page)::kType;
    const bool whole = fit(args, first_layer, alike, {kChannels, size_of(kPage), 2});
    const auto launch = [&](auto bits) {
      constexpr int kBits = decltype(bits)::value;
      if (whole) {
        launch_integers<kBits, kPage, true, kToPages>(args, first_layer, alike, stream);
      } else {
        launch_integers<kBits, kPage, false, kToPages>(args, first_layer, alike, stream);
      }
    };
    if (format == StorageFormat::int8) {
      launch(std::integral_constant<int, 8>{});
    } else {
      launch(std::integral_constant<int, 4>{});
    }
  });
}

}  // namespace

void unpack_integers(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                     StreamView stream) {
  transfer_integers<true>(args, first_layer, alike, stream);
}

void pack_integers(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                   StreamView stream) {
  transfer_integers<false>(args, first_layer, alike, stream);
}

}  // namespace kvtier::kernels::cuda
