// Records into pages, wherever the records lie, and copies of pieces.
//
// All of a call's stored bytes are one sequence of 16-byte chunks, in the order in which they lie
// in the records. Every thread has several loads under way before it uses the first: over PCIe that
// is what fills the link with few thread blocks.
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

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

struct GatherParams {
  PieceLayout piece;
  FastDivide piece_chunks;
  FastDivide blocks;
  std::uint32_t first_layer;
  std::uint32_t chunks_total;
  const std::byte* const* records;
  const float* scales;  // in place of those in the records where it is not null
  std::uint32_t scales_pitch;
  void* const* k_pages;
  void* const* v_pages;
};

// One layer of one block, and the scale of one of its heads.
struct Origin {
  const std::byte* payload;
  const float* scale;
};

__device__ __forceinline__ Origin origin_of(const GatherParams& p, std::uint32_t block,
                                            std::uint32_t layer, std::uint32_t side_head) {
  const SideLayout& sides = p.piece.sides;
  const std::byte* record = p.records[block];
  const float* apart = p.scales + std::uint64_t{block} * p.scales_pitch +
                       std::uint64_t{layer} * 2 * sides.kv_heads + side_head;
  layer += p.first_layer;
  const auto* inside =
      reinterpret_cast<const float*>(record + sides.scale_offset(layer, side_head));
  return {record + sides.header_bytes + layer * sides.layer_bytes,
          p.scales != nullptr ? apart : inside};
}

template <DType kStored, DType kPage, int kCount>
__global__ void __launch_bounds__(kThreads) gather_kernel(const __grid_constant__ GatherParams p) {
  constexpr int kFromBytes = kCount * size_of(kStored);
  constexpr int kToBytes = kCount * size_of(kPage);
  constexpr bool kScaled = is_fp8(kStored);
  for (std::uint32_t first = blockIdx.x * kChunksPerBlock + threadIdx.x; first < p.chunks_total;
       first += gridDim.x * kChunksPerBlock) {
    Chunk<kFromBytes> chunks[kInFlight];
    float scales[kInFlight];
    std::byte* to[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::uint32_t at =
          min(first + i * kThreads, p.chunks_total - 1);  // no branch: all load
      const std::uint32_t piece = p.piece_chunks.quotient(at);
      const std::uint32_t in_piece = at - piece * p.piece_chunks.divisor();
      const std::uint32_t layer = p.blocks.quotient(piece);
      const std::uint32_t block = piece - layer * p.blocks.divisor();
      const ChunkPlace place = p.piece.place(in_piece);
      const Origin origin = origin_of(p, block, layer, place.side_head);
      chunks[i] = load_once<kFromBytes>(origin.payload + std::uint64_t{in_piece} * kFromBytes);
      if constexpr (kScaled) scales[i] = __ldg(origin.scale);
      const std::uint32_t in_page = place.v ? in_piece - p.piece.k_chunks : in_piece;
      const std::uint64_t page = std::uint64_t{layer} * p.blocks.divisor() + block;
      to[i] = static_cast<std::byte*>((place.v ? p.v_pages : p.k_pages)[page]) +
              std::uint64_t{in_page} * kToBytes;
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * kThreads < p.chunks_total)
        store_chunk<kToBytes>(
            to[i], converted<kStored, kPage, kCount, kScaled>(chunks[i], kScaled ? scales[i] : 1));
    }
  }
}

template <DType kStored, DType kPage, int kCount>
void launch_gather(const TransferArgs& args, StreamView stream) {
  const PieceLayout piece(args.layout, kCount);
  const std::uint64_t layer_chunks = std::uint64_t{piece.chunks()} * args.blocks;
  // Layers of one launch: its chunks are counted below 2^31, with room for one turn of the grid.
  const auto layers_max = static_cast<std::uint32_t>((FastDivide::kLimit / 2) / layer_chunks);
  KVTIER_CHECK(layers_max > 0);
  for (std::uint32_t done = 0; done < args.layers; done += layers_max) {
    const std::uint32_t layers = std::min(args.layers - done, layers_max);
    const std::uint64_t first_page = std::uint64_t{done} * args.blocks;
    const GatherParams params{
        .piece = piece,
        .piece_chunks = FastDivide(piece.chunks()),
        .blocks = FastDivide(args.blocks),
        .first_layer = args.first_layer + done,
        .chunks_total = static_cast<std::uint32_t>(layers * layer_chunks),
        .records = args.records,
        .scales = args.scales == nullptr
                      ? nullptr
                      : args.scales + std::size_t{done} * 2 * args.layout.kv_heads,
        .scales_pitch = args.scales_pitch,
        .k_pages = args.k_pages + first_page,
        .v_pages = args.v_pages + first_page};
    gather_kernel<kStored, kPage, kCount>
        <<<grid_for(params.chunks_total, args.thread_blocks), kThreads, 0, stream.get()>>>(params);
    check_launch("gather_and_dequantise");
  }
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
      const std::uint32_t block = p.first_block + piece;
      const std::byte* record = p.block_table[block];
      chunks[i] = load_once<kFromBytes>(record + p.piece.sides.header_bytes +
                                        p.layer * p.piece.sides.layer_bytes +
                                        std::uint64_t{in_piece} * kFromBytes);
      const ChunkPlace place = p.piece.place(in_piece);
      if constexpr (kScaled) {
        scales[i] = __ldg(reinterpret_cast<const float*>(
            record + p.piece.sides.scale_offset(p.layer, place.side_head)));
      }
      const std::uint32_t head =
          place.v ? place.side_head - p.piece.sides.kv_heads : place.side_head;
      to[i] = (place.v ? p.v : p.k) + head * p.head_stride +
              std::uint64_t{block} * p.piece.sides.k_elements + place.in_head * kCount;
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
  KVTIER_CHECK(args.first_layer + args.layers <= args.layout.layers);
  if (args.blocks == 0 || args.layers == 0) return;
  with_stored_type(args.layout.format, [&](auto stored) {
    with_page_type(args.page_type, [&](auto page) {
      constexpr DType kStored = decltype(stored)::kType;
      constexpr DType kPage = decltype(page)::kType;
      constexpr int kCount = 16 / size_of(kStored);
      // 16 bytes a thread over the link; in the GPU's memory so many of what is written, which is
      // more.
      constexpr int kNear = std::min(kCount, 16 / size_of(kPage));
      if (args.on_device && SideLayout(args.layout).divides(kNear)) {
        launch_gather<kStored, kPage, kNear>(args, stream);
      } else if (SideLayout(args.layout).divides(kCount)) {
        launch_gather<kStored, kPage, kCount>(args, stream);
      } else {
        launch_gather<kStored, kPage, 1>(args, stream);
      }
    });
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
