// Pages into records of integers in groups, a head to a warp.
#include "kernels/cuda/transfer/integers.cuh"

namespace kvtier::kernels::cuda {
namespace {

constexpr std::uint32_t kWarp = 32;
constexpr std::uint32_t kWarpsPerBlock = 8;

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

// A head's scale and `unit`, of the largest magnitude that each lane found. Called by a whole warp.
struct HeadScale {
  float of_head, unit;
};

template <int kBits>
__device__ __forceinline__ HeadScale head_scale(float amax) {
  constexpr float kLevels = levels<kBits>();
  amax = fminf(largest_of_warp(amax), FLT_MAX);
  const float of_head = amax == 0 ? 1.0F : fmaxf(__fdiv_rn(amax, 448.0F * kLevels), 0x1p-117F);
  return {of_head, __fdiv_rn(1.0F, __fmul_rn(of_head, kLevels))};
}

template <int kBits>
__device__ __forceinline__ std::uint32_t integer_code(float x, float inverse) {
  if (!(x == x) || inverse == 0) return 0;
  const float rounded = rintf(__fmul_rn(x, inverse));
  const float kept = fminf(fmaxf(rounded, -levels<kBits>()), levels<kBits>() - 1);
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(kept)) & ((1U << kBits) - 1);
}

template <int kBits, DType kPage>
__device__ __forceinline__ Chunk<kBits> codes_of(const Decoded<kPage, 8>& x,
                                                 const float (&inverse)[kPairs]) {
  constexpr int kInWord = 32 / kBits;
  Chunk<kBits> codes{};
#pragma unroll
  for (int c = 0; c < static_cast<int>(kChannels); ++c)
    codes.words[c / kInWord] |= integer_code<kBits>(x.x[c], inverse[c / 2])
                                << (kBits * (c % kInWord));
  return codes;
}

// Of each pair of channels, the largest x and the largest -x with those of a chunk.
template <DType kPage>
__device__ __forceinline__ void widen(const Decoded<kPage, 8>& x, float (&up)[kPairs],
                                      float (&down)[kPairs]) {
#pragma unroll
  for (int c = 0; c < static_cast<int>(kChannels); ++c) {
    up[c / 2] = fmaxf(up[c / 2], x.x[c]);
    down[c / 2] = fmaxf(down[c / 2], -x.x[c]);
  }
}

// Pairs kWith apart together.
template <int kWith>
__device__ __forceinline__ void join(float (&up)[kPairs], float (&down)[kPairs]) {
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    if ((pair & kWith) != 0) continue;
    up[pair] = up[pair ^ kWith] = fmaxf(up[pair], up[pair ^ kWith]);
    down[pair] = down[pair ^ kWith] = fmaxf(down[pair], down[pair ^ kWith]);
  }
}

// Zeros behind a head's scales. Called by a whole warp.
__device__ __forceinline__ void fill_up(const HeadShape& h, std::byte* to, std::uint32_t lane) {
  const std::uint64_t end = h.scales_offset + std::uint64_t{h.token_groups} * h.channel_groups;
  for (std::uint64_t at = end + lane; at < h.bytes; at += kWarp) to[at] = std::byte{0};
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
    return amax;
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
        widen(channels(token, at), up, down);
      }
    }
    // Pairs of one group together: in groups of 4 channels two of them, in wider ones all.
    if (h.channel_shift >= 2) join<1>(up, down);
    if (h.channel_shift >= 3) join<2>(up, down);
    float inverse[kPairs];
    std::byte* row = to + h.scales_offset + (first >> h.token_shift) * h.channel_groups;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const auto scale = group_scale<kBits>(up[pair], down[pair], of_head, unit);
      inverse[pair] = scale.inverse;
      const std::uint32_t begins = channel + 2 * pair;
      if (begins < channels_end && begins % (1U << h.channel_shift) == 0)
        row[begins >> h.channel_shift] = static_cast<std::byte>(scale.code);
    }
    for (std::uint32_t token = first; token < end; ++token) {
      for (std::uint32_t at = channel; at < channels_end; at += kChannels) {
        store_codes<kBits, kWhole>(to + std::uint64_t{token} * h.row_bytes + at * kBits / 8,
                                   codes_of<kBits>(channels(token, at), inverse),
                                   min(kChannels, h.dim - at));
      }
    }
  }

  __device__ __forceinline__ void run(float* scale) const {
    const HeadShape& h = shape();
    const auto [of_head, unit] = head_scale<kBits>(largest());
    if (lane == 0) *scale = of_head;
    const std::uint32_t bundle = max(kChannels, 1U << h.channel_shift);
    const std::uint32_t bundles = (h.dim + bundle - 1) / bundle;
    for (std::uint32_t i = lane; i < h.token_groups * bundles; i += kWarp) {
      const std::uint32_t group = i / bundles;
      const std::uint32_t first = group << h.token_shift;
      store_bundle(first, min(first + (1U << h.token_shift), h.tokens),
                   (i - group * bundles) * bundle, bundle, of_head, unit);
    }
    fill_up(h, to, lane);
  }
};

// A head of rows of kRowChunks chunks, a power of two of at most a warp's lanes, in pages of whole
// tiles: one warp's, which reads it once where it is one tile. Lane l keeps chunk l % kRowChunks of
// tokens l / kRowChunks + i * kRows of a tile.
template <int kBits, DType kPage, int kRowChunks>
struct TiledHeadStore {
  static constexpr int kRows = kWarp / kRowChunks;
  static constexpr int kKept = kGroupTokensMax / kRows;
  static constexpr std::uint32_t kGroupChunks = kGroupNumbers / kChannels;  // of V

  const IntegerParams& p;
  std::uint32_t layer, block, side, head, lane;
  std::byte* to;
  Chunk<16> kept[kKept];

  __device__ __forceinline__ std::uint32_t chunk() const { return lane % kRowChunks; }
  __device__ __forceinline__ std::uint32_t token(int i) const {
    return lane / kRowChunks + i * kRows;
  }

  __device__ __forceinline__ void load(std::uint32_t first) {
    const std::byte* page = p.launch.page_row(layer, block, side, head, first) + chunk() * 16;
    const std::uint64_t stride = p.launch.places[layer][side].row_stride;
#pragma unroll
    for (int i = 0; i < kKept; ++i) kept[i] = load_chunk<16>(page + token(i) * stride);
  }

  __device__ __forceinline__ float larger_magnitude(float amax) const {
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const Decoded<kPage, 8> x(kept[i]);
#pragma unroll
      for (int c = 0; c < static_cast<int>(kChannels); ++c) amax = fmaxf(amax, fabsf(x.x[c]));
    }
    return amax;
  }

  // Of lanes that differ in bits from kFirst up to below kEnd of their number.
  template <int kFirst, int kEnd>
  __device__ __forceinline__ static float largest_of_lanes(float x) {
#pragma unroll
    for (int bit = kFirst; bit < kEnd; bit *= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFF, x, bit));
    return x;
  }

  __device__ __forceinline__ void store_codes_of(std::uint32_t first, int i,
                                                 const Decoded<kPage, 8>& x,
                                                 const float (&inverse)[kPairs]) const {
    const std::uint32_t row = first + token(i);
    store_chunk<kBits>(to + std::uint64_t{row} * p.heads[side].row_bytes + chunk() * kBits,
                       codes_of<kBits>(x, inverse));
  }

  // A tile of K: the group of a pair of channels has all of its tokens.
  __device__ __forceinline__ void store_k(std::uint32_t first, float of_head, float unit) const {
    float up[kPairs] = {}, down[kPairs] = {};
#pragma unroll
    for (int i = 0; i < kKept; ++i) widen(Decoded<kPage, 8>(kept[i]), up, down);
    float inverse[kPairs];
    std::uint32_t scales = 0;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const auto scale =
          group_scale<kBits>(largest_of_lanes<kRowChunks, kWarp>(up[pair]),
                             largest_of_lanes<kRowChunks, kWarp>(down[pair]), of_head, unit);
      inverse[pair] = scale.inverse;
      scales |= std::uint32_t{scale.code} << (8 * pair);
    }
    const HeadShape& h = p.heads[side];
    if (lane < kRowChunks) {
      std::byte* row = to + h.scales_offset + first / kGroupTokensMax * h.channel_groups;
      reinterpret_cast<std::uint32_t*>(row)[lane] = scales;
    }
#pragma unroll
    for (int i = 0; i < kKept; ++i) store_codes_of(first, i, Decoded<kPage, 8>(kept[i]), inverse);
  }

  // A tile of V: a group is four neighbouring chunks of one token.
  __device__ __forceinline__ void store_v(std::uint32_t first, float of_head, float unit) const {
    const HeadShape& h = p.heads[side];
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const Decoded<kPage, 8> x(kept[i]);
      float up[kPairs] = {}, down[kPairs] = {};
      widen(x, up, down);
      join<1>(up, down);
      join<2>(up, down);
      const auto scale =
          group_scale<kBits>(largest_of_lanes<1, kGroupChunks>(up[0]),
                             largest_of_lanes<1, kGroupChunks>(down[0]), of_head, unit);
      if (lane % kGroupChunks == 0)
        to[h.scales_offset + std::uint64_t{first + token(i)} * h.channel_groups +
           chunk() / kGroupChunks] = static_cast<std::byte>(scale.code);
      store_codes_of(first, i, x, {scale.inverse, scale.inverse, scale.inverse, scale.inverse});
    }
  }

  __device__ __forceinline__ void run(float* scale) {
    const HeadShape& h = p.heads[side];
    load(0);
    float amax = larger_magnitude(0);
    for (std::uint32_t first = kGroupTokensMax; first < h.tokens; first += kGroupTokensMax) {
      load(first);
      amax = larger_magnitude(amax);
    }
    const auto [of_head, unit] = head_scale<kBits>(amax);
    if (lane == 0) *scale = of_head;
    for (std::uint32_t first = 0; first < h.tokens; first += kGroupTokensMax) {
      if (h.tokens > kGroupTokensMax) load(first);
      side == 0 ? store_k(first, of_head, unit) : store_v(first, of_head, unit);
    }
    fill_up(h, to, lane);
  }
};

// kRowChunks: of a tiled head; 0: of any.
template <int kBits, DType kPage, bool kWhole, int kRowChunks>
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
    using Store = std::conditional_t<kRowChunks == 0, HeadStore<kBits, kPage, kWhole>,
                                     TiledHeadStore<kBits, kPage, kRowChunks>>;
    Store store{
        p, layer, block, side, head, threadIdx.x % kWarp, p.head_at(layer, block, side, head)};
    store.run(const_cast<float*>(p.scale_at(layer, block, side, head)));
  }
}

// Chunks of a row of heads that are tiled, 0 where a layer's are not.
std::uint32_t tiled_row_chunks(const TransferArgs& args, const LayerLayout& layout) {
  const bool alike = layout.head_dim_v == 0 || layout.head_dim_v == layout.head_dim_k;
  const std::uint32_t chunks = layout.head_dim_k / kChannels;
  const bool fits = chunks == 8 || chunks == 16 || chunks == 32;
  return alike && fits && args.page_tokens % kGroupTokensMax == 0 ? chunks : 0;
}

template <int kBits, DType kPage, bool kWhole, int kRowChunks>
void launch(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
            StreamView stream) {
  for_each_integer_part(args, first_layer, alike, Pieces::heads, [&](const IntegerParams& params) {
    const std::uint32_t grid = grid_of(args, divided_up(params.total, kWarpsPerBlock), 8);
    integers_to_records_kernel<kBits, kPage, kWhole, kRowChunks>
        <<<grid, kWarpsPerBlock * kWarp, 0, stream.get()>>>(params);
  });
}

}  // namespace

void pack_integers(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                   StreamView stream) {
  with_integer_types(args, first_layer, alike, [&](auto page, auto bits, auto whole) {
    constexpr DType kPage = decltype(page)::kType;
    constexpr int kBits = decltype(bits)::value;
    constexpr bool kWhole = decltype(whole)::value;
    if constexpr (kWhole && size_of(kPage) == 2) {
      switch (tiled_row_chunks(args, args.layers[first_layer].layout)) {
        case 8:
          return launch<kBits, kPage, kWhole, 8>(args, first_layer, alike, stream);
        case 16:
          return launch<kBits, kPage, kWhole, 16>(args, first_layer, alike, stream);
        case 32:
          return launch<kBits, kPage, kWhole, 32>(args, first_layer, alike, stream);
        default:
          break;
      }
    }
    launch<kBits, kPage, kWhole, 0>(args, first_layer, alike, stream);
  });
}

}  // namespace kvtier::kernels::cuda
