// Records into pages, wherever the records lie; pages into records where nothing has to be found
// out about a head first; and copies of pieces.
//
// All of a launch's stored bytes are one sequence of chunks, in the order in which they lie in the
// records. Every thread has several loads under way before it uses the first: over PCIe that is
// what fills the link with few thread blocks.
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/transfer/transfer.cuh"

namespace kvtier::kernels::cuda {
namespace {

constexpr std::uint32_t kThreads = 512;
constexpr int kInFlight = 4;  // chunks a thread loads before it stores
constexpr std::uint32_t kChunksPerBlock = kThreads * kInFlight;

// Past L1: nothing is read twice.
template <int kBytes>
__device__ __forceinline__ Chunk<kBytes> load_once(const std::byte* at) {
  if constexpr (kBytes == 16) {
    Chunk<16> chunk;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(chunk.words[0]), "=r"(chunk.words[1]), "=r"(chunk.words[2]),
                   "=r"(chunk.words[3])
                 : "l"(at));
    return chunk;
  } else {
    return load_chunk<kBytes>(at);
  }
}

std::uint32_t grid_for(std::uint32_t chunks, std::uint32_t thread_blocks) {
  const std::uint32_t most = thread_blocks != 0 ? thread_blocks : processors() * 4;
  return std::min(divided_up(chunks, kChunksPerBlock), most);
}

// One layer of one block: where its chunk `chunk` lies, and which head of [K then V][head] that is
// of.
struct ChunkPlace {
  std::uint32_t side_head;
  std::uint32_t in_head;  // chunks
  bool v;
};

struct PieceLayout {
  SideLayout sides;
  FastDivide k_head_chunks;
  FastDivide v_head_chunks;
  std::uint32_t k_chunks;  // of all heads

  PieceLayout(const RecordLayout& layout, std::uint32_t elements_per_chunk)
      : sides(layout),
        k_head_chunks(sides.k_elements / elements_per_chunk),
        v_head_chunks(sides.v_elements / elements_per_chunk),
        k_chunks(sides.kv_heads * k_head_chunks.divisor()) {}

  std::uint32_t chunks() const { return k_chunks + sides.kv_heads * v_head_chunks.divisor(); }

  __device__ __forceinline__ ChunkPlace place(std::uint32_t chunk) const {
    const bool v = chunk >= k_chunks;
    const std::uint32_t in_side = v ? chunk - k_chunks : chunk;
    const FastDivide& head_chunks = v ? v_head_chunks : k_head_chunks;
    const std::uint32_t head = head_chunks.quotient(in_side);
    return {v ? sides.kv_heads + head : head, in_side - head * head_chunks.divisor(), v};
  }
};

// A chunk as it is stored and as it is in a page: kElements elements that stand alone. kEven false:
// one that is stored at no multiple of its size, behind a layer of an odd one.
template <DType kStored, DType kPage, int kElements, bool kEven = true>
struct Numbers {
  static constexpr int kCount = kElements;
  static constexpr bool kAligned = kEven;
  static constexpr int kStoredBytes = kCount * size_of(kStored);
  static constexpr int kPageBytes = kCount * size_of(kPage);
  static constexpr bool kScaled = is_fp8(kStored);
  __device__ __forceinline__ static Chunk<kPageBytes> to_page(const Chunk<kStoredBytes>& stored,
                                                              float scale) {
    return converted<kStored, kPage, kCount, kScaled>(stored, scale);
  }
  __device__ __forceinline__ static Chunk<kStoredBytes> to_record(const Chunk<kPageBytes>& page) {
    static_assert(!kScaled);
    return converted<kPage, kStored, kCount, false>(page, 1);
  }
};

// Or bytes, whatever they mean.
template <int kBytes>
struct Bytes {
  static constexpr int kCount = kBytes;
  static constexpr bool kAligned = true;
  static constexpr int kStoredBytes = kBytes;
  static constexpr int kPageBytes = kBytes;
  static constexpr bool kScaled = false;
  __device__ __forceinline__ static Chunk<kBytes> to_page(const Chunk<kBytes>& stored, float) {
    return stored;
  }
  __device__ __forceinline__ static Chunk<kBytes> to_record(const Chunk<kBytes>& page) {
    return page;
  }
};

template <class Format>
__device__ __forceinline__ Chunk<Format::kStoredBytes> load_stored(const std::byte* at) {
  if constexpr (Format::kAligned) {
    return load_once<Format::kStoredBytes>(at);
  } else {
    Chunk<Format::kStoredBytes> chunk{};
#pragma unroll
    for (int i = 0; i < Format::kStoredBytes; ++i)
      chunk.words[i / 4] |= static_cast<std::uint32_t>(at[i]) << (8 * (i % 4));
    return chunk;
  }
}

template <class Format>
__device__ __forceinline__ void store_stored(std::byte* at,
                                             const Chunk<Format::kStoredBytes>& chunk) {
  if constexpr (Format::kAligned) {
    store_chunk<Format::kStoredBytes>(at, chunk);
  } else {
#pragma unroll
    for (int i = 0; i < Format::kStoredBytes; ++i)
      at[i] = static_cast<std::byte>(chunk.words[i / 4] >> (8 * (i % 4)));
  }
}

struct TransferParams {
  LaunchLayers launch;
  FastDivide piece_chunks;
  std::uint32_t k_chunks;
  std::uint32_t chunks_total;
  // Of the first layer, behind records[i]; or, where `scales` is not null, in its row of that.
  std::uint64_t scales_offset;
  const float* scales;
  std::uint32_t scales_pitch;
};

// One chunk in a record and in its page, and the scale of its head.
struct Ends {
  std::byte* stored;
  std::byte* page;
  const float* scale;
};

template <class Format>
__device__ __forceinline__ Ends ends_of(const TransferParams& p, std::uint32_t chunk) {
  const std::uint32_t piece = p.piece_chunks.quotient(chunk);
  const std::uint32_t in_piece = chunk - piece * p.piece_chunks.divisor();
  const std::uint32_t layer = p.launch.blocks.quotient(piece);
  const std::uint32_t block = piece - layer * p.launch.blocks.divisor();
  const std::uint32_t side = in_piece >= p.k_chunks ? 1 : 0;
  const std::uint32_t in_side = in_piece - side * p.k_chunks;
  const FastDivide& head_chunks = p.launch.sides[side].head_chunks;
  const std::uint32_t head = head_chunks.quotient(in_side);
  auto* record = const_cast<std::byte*>(p.launch.records[block]);
  Ends ends;
  ends.stored = record + p.launch.payload + layer * p.launch.layer_bytes +
                std::uint64_t{in_piece} * Format::kStoredBytes;
  ends.page = p.launch.page_chunk<Format::kPageBytes>(layer, block, side, head,
                                                      in_side - head * head_chunks.divisor());
  if constexpr (Format::kScaled) {
    const std::uint32_t heads = p.launch.sides[0].heads;
    const std::uint64_t number = std::uint64_t{layer} * 2 * heads + side * heads + head;
    const auto* inside = reinterpret_cast<const float*>(record + p.scales_offset);
    ends.scale =
        (p.scales == nullptr ? inside : p.scales + std::uint64_t{block} * p.scales_pitch) + number;
  }
  return ends;
}

template <class Format>
__global__ void __launch_bounds__(kThreads)
    to_pages_kernel(const __grid_constant__ TransferParams p) {
  for (std::uint32_t first = blockIdx.x * kChunksPerBlock + threadIdx.x; first < p.chunks_total;
       first += gridDim.x * kChunksPerBlock) {
    Chunk<Format::kStoredBytes> chunks[kInFlight];
    float scales[kInFlight];
    std::byte* to[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      // No branch: all load.
      const Ends ends = ends_of<Format>(p, min(first + i * kThreads, p.chunks_total - 1));
      chunks[i] = load_stored<Format>(ends.stored);
      scales[i] = 1;
      if constexpr (Format::kScaled) scales[i] = __ldg(ends.scale);
      to[i] = ends.page;
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * kThreads < p.chunks_total)
        store_chunk<Format::kPageBytes>(to[i], Format::to_page(chunks[i], scales[i]));
    }
  }
}

template <class Format>
__global__ void __launch_bounds__(kThreads)
    to_records_kernel(const __grid_constant__ TransferParams p) {
  for (std::uint32_t first = blockIdx.x * kChunksPerBlock + threadIdx.x; first < p.chunks_total;
       first += gridDim.x * kChunksPerBlock) {
    Chunk<Format::kPageBytes> chunks[kInFlight];
    std::byte* to[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const Ends ends = ends_of<Format>(p, min(first + i * kThreads, p.chunks_total - 1));
      chunks[i] = load_once<Format::kPageBytes>(ends.page);
      to[i] = ends.stored;
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * kThreads < p.chunks_total)
        store_stored<Format>(to[i], Format::to_record(chunks[i]));
    }
  }
}

// `alike` layers from `first_layer` on; kToPages false: into records.
template <class Format, bool kToPages>
void launch_transfer(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                     StreamView stream) {
  const TransferLayer& first = args.layers[first_layer];
  const std::uint32_t k_chunks =
      SideRows::of(args, first, false).in_chunks(Format::kCount).chunks();
  const std::uint32_t piece_chunks =
      k_chunks + SideRows::of(args, first, true).in_chunks(Format::kCount).chunks();
  const auto launch = [&](const LaunchPart& part) {
    const LayerLayout& layout = args.layers[part.first_layer].layout;
    const std::size_t scales_before = layout.scales_offset - args.layers[0].layout.scales_offset;
    const TransferParams params{
        .launch = launch_layers(args, part, Format::kCount),
        .piece_chunks = FastDivide(piece_chunks),
        .k_chunks = k_chunks,
        .chunks_total = part.layers * part.blocks * piece_chunks,
        .scales_offset = layout.scales_offset - args.records_begin,
        .scales = args.scales == nullptr ? nullptr
                                         : args.scales + scales_before / sizeof(float) +
                                               std::size_t{part.first_block} * args.scales_pitch,
        .scales_pitch = args.scales_pitch};
    const std::uint32_t grid = grid_for(params.chunks_total, args.thread_blocks);
    if constexpr (kToPages) {
      to_pages_kernel<Format><<<grid, kThreads, 0, stream.get()>>>(params);
    } else {
      to_records_kernel<Format><<<grid, kThreads, 0, stream.get()>>>(params);
    }
    check_launch("a transfer between records and pages");
  };
  // With room for one turn of the grid.
  for_each_part(args, first_layer, alike, piece_chunks, FastDivide::kLimit / 2, launch);
}

// Of chunks of kWanted elements where those fit, else of one.
template <DType kStored, DType kPage, int kWanted, bool kToPages>
void transfer_numbers(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                      StreamView stream) {
  if (fit(args, first_layer, alike, {kWanted, size_of(kPage), size_of(kStored)})) {
    launch_transfer<Numbers<kStored, kPage, kWanted>, kToPages>(args, first_layer, alike, stream);
  } else if (fit(args, first_layer, alike, {1, size_of(kPage), size_of(kStored)})) {
    launch_transfer<Numbers<kStored, kPage, 1>, kToPages>(args, first_layer, alike, stream);
  } else {
    launch_transfer<Numbers<kStored, kPage, 1, false>, kToPages>(args, first_layer, alike, stream);
  }
}

template <bool kToPages>
void transfer_bytes(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                    StreamView stream) {
  if (fit(args, first_layer, alike, {16, 1, 1})) {
    launch_transfer<Bytes<16>, kToPages>(args, first_layer, alike, stream);
  } else if (fit(args, first_layer, alike, {4, 1, 1})) {
    launch_transfer<Bytes<4>, kToPages>(args, first_layer, alike, stream);
  } else {
    launch_transfer<Bytes<1>, kToPages>(args, first_layer, alike, stream);
  }
}

template <DType kStored, DType kPage>
void dequantise(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                StreamView stream) {
  constexpr int kFar = 16 / size_of(kStored);
  // 16 bytes a thread over the link; in the GPU's memory so many of what is written, which is more.
  constexpr int kNear = std::min(kFar, 16 / size_of(kPage));
  if (!args.on_device && fit(args, first_layer, alike, {kFar, size_of(kPage), size_of(kStored)})) {
    return launch_transfer<Numbers<kStored, kPage, kFar>, true>(args, first_layer, alike, stream);
  }
  transfer_numbers<kStored, kPage, kNear, true>(args, first_layer, alike, stream);
}

struct StoredParams {
  PieceLayout piece;
  FastDivide piece_chunks;
  std::uint32_t layer;
  std::uint32_t first_block;
  std::uint32_t chunks_total;
  const std::byte* const* block_table;
  Bf16* k;
  Bf16* v;
  std::uint64_t head_stride;  // elements from a head to the next
};

// Elements of a chunk there: what is written, in the GPU's memory, is more than what is read, so
// that a thread writes 16 bytes rather than reads them.
constexpr int stored_count(DType stored) {
  return stored == DType::f32 ? 4 : 8;
}

template <DType kStored>
__global__ void __launch_bounds__(kThreads) stored_kernel(const __grid_constant__ StoredParams p) {
  constexpr int kCount = stored_count(kStored);
  constexpr int kFromBytes = kCount * size_of(kStored);
  constexpr bool kScaled = is_fp8(kStored);
  for (std::uint32_t first = blockIdx.x * kChunksPerBlock + threadIdx.x; first < p.chunks_total;
       first += gridDim.x * kChunksPerBlock) {
    Chunk<kFromBytes> chunks[kInFlight];
    float scales[kInFlight];
    Bf16* to[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::uint32_t at =
          min(first + i * kThreads, p.chunks_total - 1);  // no branch: all load
      const std::uint32_t piece = p.piece_chunks.quotient(at);
      const std::uint32_t in_piece = at - piece * p.piece_chunks.divisor();
      const std::byte* record = p.block_table[p.first_block + piece];
      const ChunkPlace place = p.piece.place(in_piece);
      chunks[i] = {};
      scales[i] = 1;
      if (record != nullptr) {
        chunks[i] = load_once<kFromBytes>(record + p.piece.sides.header_bytes +
                                          p.layer * p.piece.sides.layer_bytes +
                                          std::uint64_t{in_piece} * kFromBytes);
      }
      if (kScaled && record != nullptr) {
        scales[i] = __ldg(reinterpret_cast<const float*>(
            record + p.piece.sides.scale_offset(p.layer, place.side_head)));
      }
      const std::uint32_t head =
          place.v ? place.side_head - p.piece.sides.kv_heads : place.side_head;
      to[i] = (place.v ? p.v : p.k) + head * p.head_stride +
              std::uint64_t{piece} * p.piece.sides.k_elements + place.in_head * kCount;
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * kThreads < p.chunks_total)
        store_chunk<kCount * 2>(
            reinterpret_cast<std::byte*>(to[i]),
            converted<kStored, DType::bf16, kCount, kScaled>(chunks[i], kScaled ? scales[i] : 1));
    }
  }
}

struct CopyParams {
  const std::byte* const* from;
  std::byte* const* to;
  FastDivide piece_chunks;
  std::uint32_t chunks_total;
  std::uint64_t offset;
};

__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ CopyParams p) {
  for (std::uint32_t first = blockIdx.x * kChunksPerBlock + threadIdx.x; first < p.chunks_total;
       first += gridDim.x * kChunksPerBlock) {
    Chunk<16> chunks[kInFlight];
    std::byte* to[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::uint32_t at =
          min(first + i * kThreads, p.chunks_total - 1);  // no branch: all load
      const std::uint32_t piece = p.piece_chunks.quotient(at);
      const std::uint64_t place =
          p.offset + std::uint64_t{at - piece * p.piece_chunks.divisor()} * 16;
      chunks[i] = load_once<16>(p.from[piece] + place);
      to[i] = p.to[piece] + place;
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * kThreads < p.chunks_total) store_chunk<16>(to[i], chunks[i]);
    }
  }
}

}  // namespace

void gather_and_dequantise(const TransferArgs& args, StreamView stream) {
  if (args.blocks == 0) return;
  for_each_alike(args.layers, [&](std::uint32_t first, std::uint32_t alike) {
    const StorageFormat format = args.layers[first].layout.format;
    if (format == StorageFormat::raw) return transfer_bytes<true>(args, first, alike, stream);
    if (is_integer(format)) return unpack_integers(args, first, alike, stream);
    with_stored_type(format, [&](auto stored) {
      with_page_type(args.page_type, [&](auto page) {
        dequantise<decltype(stored)::kType, decltype(page)::kType>(args, first, alike, stream);
      });
    });
  });
}

void pack_unscaled(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                   StreamView stream) {
  const StorageFormat format = args.layers[first_layer].layout.format;
  if (format == StorageFormat::raw) return transfer_bytes<false>(args, first_layer, alike, stream);
  with_page_type(args.page_type, [&](auto page) {
    constexpr DType kPage = decltype(page)::kType;
    constexpr int kCount = 16 / size_of(kPage);
    if (format == StorageFormat::bf16) {
      transfer_numbers<DType::bf16, kPage, kCount, false>(args, first_layer, alike, stream);
    } else {
      KVTIER_CHECK(format == StorageFormat::f32);
      transfer_numbers<DType::f32, kPage, kCount, false>(args, first_layer, alike, stream);
    }
  });
}

void gather_stored(const RecordLayout& layout, std::uint32_t layer,
                   const std::byte* const* block_table, std::uint32_t first_block,
                   std::uint32_t blocks, Bf16* k, Bf16* v, std::uint64_t tokens_stride,
                   StreamView stream) {
  KVTIER_CHECK(layer < layout.layers && layout.block_tokens == kTileTokens);
  KVTIER_CHECK(layout.head_dim_k == layout.head_dim_v);
  if (blocks == 0) return;
  with_stored_type(layout.format, [&](auto stored) {
    constexpr DType kStored = decltype(stored)::kType;
    const PieceLayout piece(layout, stored_count(kStored));
    const std::uint64_t chunks = std::uint64_t{piece.chunks()} * blocks;
    KVTIER_CHECK(chunks < FastDivide::kLimit / 2);
    const StoredParams params{.piece = piece,
                              .piece_chunks = FastDivide(piece.chunks()),
                              .layer = layer,
                              .first_block = first_block,
                              .chunks_total = static_cast<std::uint32_t>(chunks),
                              .block_table = block_table,
                              .k = k,
                              .v = v,
                              .head_stride = tokens_stride * layout.head_dim_k};
    stored_kernel<kStored><<<grid_for(params.chunks_total, 0), kThreads, 0, stream.get()>>>(params);
  });
  check_launch("gather_stored");
}

void copy_pieces(const std::byte* const* from, std::byte* const* to, std::uint32_t count,
                 std::uint64_t offset, std::uint64_t bytes, std::uint32_t thread_blocks,
                 StreamView stream) {
  KVTIER_CHECK(offset % 16 == 0 && bytes % 16 == 0);
  if (count == 0 || bytes == 0) return;
  const std::uint64_t piece_chunks = bytes / 16;
  // Pieces of one launch, as above.
  const std::uint64_t count_max = (FastDivide::kLimit / 2) / piece_chunks;
  KVTIER_CHECK(count_max > 0);
  for (std::uint64_t done = 0; done < count; done += count_max) {
    const std::uint64_t pieces = std::min<std::uint64_t>(count - done, count_max);
    const CopyParams params{.from = from + done,
                            .to = to + done,
                            .piece_chunks = FastDivide(static_cast<std::uint32_t>(piece_chunks)),
                            .chunks_total = static_cast<std::uint32_t>(pieces * piece_chunks),
                            .offset = offset};
    copy_kernel<<<grid_for(params.chunks_total, thread_blocks), kThreads, 0, stream.get()>>>(
        params);
    check_launch("copy_pieces");
  }
}

}  // namespace kvtier::kernels::cuda
