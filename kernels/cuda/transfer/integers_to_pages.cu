// Records of integers in groups into pages, a chunk to a thread.
#include "kernels/cuda/transfer/integers.cuh"

namespace kvtier::kernels::cuda {
namespace {

constexpr std::uint32_t kThreads = 512;
constexpr int kInFlight = 4;  // chunks a thread loads before it stores
constexpr std::uint32_t kChunksPerBlock = kThreads * kInFlight;

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

template <int kBits>
__device__ __forceinline__ float integer(const Chunk<kBits>& codes, int i) {
  constexpr int kInWord = 32 / kBits;
  const std::uint32_t moved = codes.words[i / kInWord] << (32 - kBits * (i % kInWord + 1));
  return static_cast<float>(static_cast<std::int32_t>(moved) >> (32 - kBits));
}

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

}  // namespace

void unpack_integers(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                     StreamView stream) {
  with_integer_types(args, first_layer, alike, [&](auto page, auto bits, auto whole) {
    for_each_integer_part(
        args, first_layer, alike, Pieces::chunks, [&](const IntegerParams& params) {
          const std::uint32_t grid = grid_of(args, divided_up(params.total, kChunksPerBlock), 4);
          integers_to_pages_kernel<decltype(bits)::value, decltype(page)::kType,
                                   decltype(whole)::value>
              <<<grid, kThreads, 0, stream.get()>>>(params);
        });
  });
}

}  // namespace kvtier::kernels::cuda
