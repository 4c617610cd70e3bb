// Decode attention, the kernels. A thread block is one part (so many blocks at a fixed place of
// the context) of one row and one KV head; its warps take the part's blocks in turn, each with all
// query heads of the KV head as columns of a tensor-core tile, and merge at the end. A part is what
// it is whatever else the call has, so a row's result depends on nothing but the row.
//
// Blocks stream through a ring in shared memory. Tokens and dims of a tile may be dealt to lanes in
// any way that Q, K, V and the output share, so lanes read pieces as wide as there are. With
// g = lane / 4 and t = lane % 4 a lane reads of K the tokens g and g + 8 and a quarter t of the
// dims; of V the tokens 2t, 2t + 1, 2t + 8, 2t + 9 and an eighth g of the dims. Quarters and
// eighths are interleaved piece by piece.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/bulk.cuh"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/stored.cuh"
#include "kernels/cuda/kernels.h"

namespace kvtier::kernels::cuda {

inline constexpr int kDecodeWarps = 4;
// Of FP8, of which four thread blocks share a multiprocessor, parts are half as long: with few of
// them the last ones would be most of the time.
constexpr std::uint32_t part_blocks(bool fp8) {
  return fp8 ? 32 : 64;
}
static_assert(part_blocks(false) / kDecodeWarps <= 32, "a lane looks up each block of a warp");

struct DecodeParams {
  StepRows step;
  const Bf16* q;
  Bf16* out;
  float* part_sums;    // [rows][kv_heads][parts][group][head_dim], relative to the part's largest
  float2* part_sizes;  // [rows][kv_heads][parts][group]: largest score, sum of weights
  std::uint64_t k_offset, v_offset;              // of the layer in a record
  std::uint64_t k_scale_offset, v_scale_offset;  // of the layer in a record; FP8 only
  std::uint32_t layer;
  std::uint32_t kv_heads;
  std::uint32_t group;  // query heads of a KV head
  std::uint32_t part_blocks, parts;
  float scale_log2;
  Sight sight;
};

namespace device {

constexpr int piece_bytes(int bytes) {
  return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : 4;
}

// How the elements of a block fall to lanes: the largest pieces that one copy of the stored type
// can move.
template <typename Stored, int kHeadDim>
struct Deal {
  static constexpr int kKDims = piece_bytes(kHeadDim / 4 * Stored::kBytes) / Stored::kBytes;
  static constexpr int kVDims = piece_bytes(kHeadDim / 8 * Stored::kBytes) / Stored::kBytes;
  static constexpr int kKPieces = kHeadDim / 4 / kKDims;
  static constexpr int kVPieces = kHeadDim / 8 / kVDims;

  static __device__ int k_token(int which, int g) { return which * 8 + g; }
  static __device__ int v_token(int which, int t) { return which / 2 * 8 + t * 2 + which % 2; }
  // The first dim of a piece.
  static __device__ int k_dim(int piece, int t) { return (piece * 4 + t) * kKDims; }
  static __device__ int v_dim(int piece, int g) { return (piece * 8 + g) * kVDims; }
};

// Bytes of a stored token's row, of one head's K or V of a block, and of both.
template <typename Stored, int kHeadDim>
struct BlockBytes {
  static constexpr int kRow = kHeadDim * Stored::kBytes;
  static constexpr int kHead = static_cast<int>(kTileTokens) * kRow;
  static constexpr int kBlock = 2 * kHead;
};

template <int kWords>
__device__ inline void load_words(const std::byte* from, std::uint32_t (&words)[kWords]) {
  constexpr int kWide = kWords % 4 == 0 ? 4 : kWords % 2 == 0 ? 2 : 1;
#pragma unroll
  for (int i = 0; i < kWords; i += kWide) {
    if constexpr (kWide == 4) {
      const uint4 x = *reinterpret_cast<const uint4*>(from + i * 4);
      words[i] = x.x, words[i + 1] = x.y, words[i + 2] = x.z, words[i + 3] = x.w;
    } else if constexpr (kWide == 2) {
      const uint2 x = *reinterpret_cast<const uint2*>(from + i * 4);
      words[i] = x.x, words[i + 1] = x.y;
    } else {
      words[i] = *reinterpret_cast<const std::uint32_t*>(from + i * 4);
    }
  }
}

// A warp's ring of stored blocks on sm_80: every lane copies exactly the pieces that it will
// multiply, so that a warp needs no barrier. A slot is [K token][piece][lane], then [V
// token][piece][lane].
template <typename Stored, int kHeadDim, int kSlots>
struct CopiedBlocks {
  using Element = Stored;
  using Deal = device::Deal<Stored, kHeadDim>;
  using Shape = BlockBytes<Stored, kHeadDim>;
  static constexpr int kKBytes = Deal::kKDims * Stored::kBytes;  // of a piece
  static constexpr int kVBytes = Deal::kVDims * Stored::kBytes;

  std::byte* ring;
  int lane;
  const std::byte* slot = nullptr;  // of the block that was waited for

  __device__ CopiedBlocks(std::byte* shared, std::uint64_t*, int warp, int of_lane)
      : ring(shared + warp * kSlots * Shape::kBlock), lane(of_lane) {}

  // Begins to copy a warp's block number `index`; k and v are one head's [token][dim]. To be called
  // for every index, wanted or not.
  __device__ void fetch(int index, bool wanted, const std::byte* k, const std::byte* v) const {
    if (wanted) copy(ring + index % kSlots * Shape::kBlock, k, v);
    commit_copies();
  }
  __device__ void wait(int index) {
    wait_copies<kSlots - 1>();
    slot = ring + index % kSlots * Shape::kBlock;
  }

  __device__ void k_piece(int which, int piece, std::uint32_t (&words)[kKBytes / 4]) const {
    load_words(slot + ((which * Deal::kKPieces + piece) * 32 + lane) * kKBytes, words);
  }
  __device__ void v_piece(int which, int piece, std::uint32_t (&words)[kVBytes / 4]) const {
    load_words(slot + Shape::kHead + ((which * Deal::kVPieces + piece) * 32 + lane) * kVBytes,
               words);
  }
  static __device__ bool sees(int) { return true; }

 private:
  __device__ void copy(std::byte* to_slot, const std::byte* k, const std::byte* v) const {
    const int g = lane / 4;
    const int t = lane % 4;
    std::uint32_t to = shared_address(to_slot) + lane * kKBytes;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
#pragma unroll
      for (int piece = 0; piece < Deal::kKPieces; ++piece, to += 32 * kKBytes) {
        copy_async<kKBytes>(
            to, k + Deal::k_token(which, g) * Shape::kRow + Deal::k_dim(piece, t) * Stored::kBytes);
      }
    }
    to = shared_address(to_slot) + Shape::kHead + lane * kVBytes;
#pragma unroll
    for (int which = 0; which < 4; ++which) {
#pragma unroll
      for (int piece = 0; piece < Deal::kVPieces; ++piece, to += 32 * kVBytes) {
        copy_async<kVBytes>(
            to, v + Deal::v_token(which, t) * Shape::kRow + Deal::v_dim(piece, g) * Stored::kBytes);
      }
    }
  }
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// The same from sm_90 on: a block's K and V are one bulk copy each. A slot is [K, V][token][dim].
template <typename Stored, int kHeadDim, int kSlots>
struct BulkBlocks {
  using Element = Stored;
  using Deal = device::Deal<Stored, kHeadDim>;
  using Shape = BlockBytes<Stored, kHeadDim>;

  std::byte* ring;
  std::uint64_t* landed;  // [kSlots]
  int lane;
  const std::byte* slot = nullptr;

  __device__ BulkBlocks(std::byte* shared, std::uint64_t* barriers, int warp, int of_lane)
      : ring(shared + warp * kSlots * Shape::kBlock),
        landed(barriers + warp * kSlots),
        lane(of_lane) {
    if (lane == 0) {
      for (int i = 0; i < kSlots; ++i) init_barrier(landed + i, 1);
      publish_barriers();
    }
    __syncwarp();
  }

  __device__ void fetch(int index, bool wanted, const std::byte* k, const std::byte* v) const {
    __syncwarp();  // the slot has been read
    if (!wanted || lane != 0) return;
    std::byte* to = ring + index % kSlots * Shape::kBlock;
    std::uint64_t* barrier = landed + index % kSlots;
    arrive_and_expect(barrier, Shape::kBlock);
    copy_bulk(to, k, Shape::kHead, barrier);
    copy_bulk(to + Shape::kHead, v, Shape::kHead, barrier);
  }
  __device__ void wait(int index) {
    wait_phase(landed + index % kSlots, index / kSlots % 2);
    slot = ring + index % kSlots * Shape::kBlock;
  }

  template <int kWords>
  __device__ void k_piece(int which, int piece, std::uint32_t (&words)[kWords]) const {
    load_words(slot + Deal::k_token(which, lane / 4) * Shape::kRow +
                   Deal::k_dim(piece, lane % 4) * Stored::kBytes,
               words);
  }
  template <int kWords>
  __device__ void v_piece(int which, int piece, std::uint32_t (&words)[kWords]) const {
    load_words(slot + Shape::kHead + Deal::v_token(which, lane % 4) * Shape::kRow +
                   Deal::v_dim(piece, lane / 4) * Stored::kBytes,
               words);
  }
  static __device__ bool sees(int) { return true; }
};
template <typename Stored, int kHeadDim, int kSlots>
using StoredBlocks = BulkBlocks<Stored, kHeadDim, kSlots>;
#else
template <typename Stored, int kHeadDim, int kSlots>
using StoredBlocks = CopiedBlocks<Stored, kHeadDim, kSlots>;
#endif

// The row's own block, read in place from its exact page but dealt as stored blocks are. Tokens
// from `tokens` on are not read: what lies there may be anything, and a weight of 0 would still
// make a NaN of it.
template <typename Stored, int kHeadDim>
struct ExactBlock {
  using Element = StoredBf16;
  using Deal = device::Deal<Stored, kHeadDim>;

  const Bf16* k;  // one head's [token][dim]
  const Bf16* v;
  int tokens;
  int lane;

  __device__ void k_piece(int which, int piece, std::uint32_t (&words)[Deal::kKDims / 2]) const {
    read(k, Deal::k_token(which, lane / 4), Deal::k_dim(piece, lane % 4), words);
  }
  __device__ void v_piece(int which, int piece, std::uint32_t (&words)[Deal::kVDims / 2]) const {
    read(v, Deal::v_token(which, lane % 4), Deal::v_dim(piece, lane / 4), words);
  }
  __device__ bool sees(int token) const { return token < tokens; }

 private:
  template <int kWords>
  __device__ void read(const Bf16* rows, int token, int dim, std::uint32_t (&words)[kWords]) const {
    if (sees(token)) {
      load_words(reinterpret_cast<const std::byte*>(rows + token * kHeadDim + dim), words);
    } else {
#pragma unroll
      for (std::uint32_t& word : words) word = 0;
    }
  }
};

// A warp's running softmax, transposed: tokens or dims are rows of a tensor-core tile, query heads
// its columns, eight in a tile. Element `i` of a lane is of head 2t + i % 2.
template <int kHeadDim, int kHeadTiles>
struct DecodeTile {
  static constexpr int kSumTiles = kHeadDim / 16;
  static constexpr int kHeads = kHeadTiles * 8;

  // Rows g and g + 8 of tile i are the (2i)-th and the next of the dims dealt to lanes of g.
  float sums[kHeadTiles][kSumTiles][4] = {};
  float largest[kHeadTiles][2];  // of the scores and the logarithms of V's scales, in log2
  float total[kHeadTiles][2] = {};

  __device__ DecodeTile() {
    for (auto& heads : largest) heads[0] = heads[1] = -INFINITY;
  }
};

// Q as the second operand, its rows in the order in which lanes hold K: of type Element, the four
// numbers of a step as widen() gives those of Stored. FP16 has not the range of BF16: each head is
// brought to [2^14, 2^15) by a power of two, which `scale` undoes.
template <typename Stored, typename Element, int kHeadDim, int kHeadTiles>
struct Queries {
  using Deal = device::Deal<Stored, kHeadDim>;
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kPieceSteps = Deal::kKDims / 4;
  static constexpr bool kFp16 = Element::kBytes == 1;

  std::uint32_t words[kHeadTiles][kSteps][2];
  float scale[kHeadTiles][2];  // of the lane's heads 2t and 2t + 1

  // q is [group][kHeadDim]; the heads beyond are zero.
  __device__ Queries(const Bf16* q, int group, float factor, int lane) {
#pragma unroll
    for (int tile = 0; tile < kHeadTiles; ++tile) {
      const int head = tile * 8 + lane / 4;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int dim = Deal::k_dim(step / kPieceSteps, lane % 4) + step % kPieceSteps * 4;
        uint2 x = {0, 0};
        if (head < group) x = *reinterpret_cast<const uint2*>(q + head * kHeadDim + dim);
        order(x.x, x.y);
        words[tile][step][0] = x.x;
        words[tile][step][1] = x.y;
      }
      scale[tile][0] = scale[tile][1] = factor;
      if constexpr (kFp16) to_fp16(words[tile], scale[tile], lane);
    }
  }

  static __device__ void order(std::uint32_t& first, std::uint32_t& second) {
    if constexpr (Stored::kInterleaved) {
      const std::uint32_t even = __byte_perm(first, second, 0x5410);
      second = __byte_perm(first, second, 0x7632);
      first = even;
    }
  }

 private:
  static __device__ float low(std::uint32_t pair) {
    return __uint_as_float(pair << 16);
  }
  static __device__ float high(std::uint32_t pair) {
    return __uint_as_float(pair & 0xFFFF0000U);
  }

  static __device__ void to_fp16(std::uint32_t (&of_head)[kSteps][2], float (&scale)[2], int lane) {
    float largest = 0x1p-100F;
#pragma unroll
    for (int i = 0; i < kSteps * 2; ++i) {
      const std::uint32_t pair = of_head[i / 2][i % 2];
      largest = fmaxf(largest, fmaxf(fabsf(low(pair)), fabsf(high(pair))));
    }
    largest = max_of_row(largest);
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    const float up = __uint_as_float(static_cast<std::uint32_t>(127 + 14 - exponent) << 23);
#pragma unroll
    for (int i = 0; i < kSteps * 2; ++i) {
      std::uint32_t& pair = of_head[i / 2][i % 2];
      pair = pack_fp16(low(pair) * up, high(pair) * up);
    }
    const float down = 1.0F / up;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scale[i] *= __shfl_sync(0xFFFFFFFF, down, (lane % 4 * 2 + i) * 4);
    }
  }
};

// scores[tile] = K Q^T before any scale: of tokens g, then g + 8, and the lane's two heads.
template <typename Q, typename Block, int kHeadTiles>
__device__ inline void score_block(const Q& queries, const Block& block,
                                   float (&scores)[kHeadTiles][4]) {
  using Deal = typename Block::Deal;
  using Element = typename Block::Element;
#pragma unroll
  for (int piece = 0; piece < Deal::kKPieces; ++piece) {
    std::uint32_t words[2][Deal::kKDims * Element::kBytes / 4];
    block.k_piece(0, piece, words[0]);
    block.k_piece(1, piece, words[1]);
#pragma unroll
    for (int i = 0; i < Q::kPieceSteps; ++i) {
      std::uint32_t a[4];
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        if constexpr (Element::kBytes == 1) {
          widen(Element{}, words[which][i], a[which], a[which + 2]);
        } else {
          a[which] = words[which][i * 2];
          a[which + 2] = words[which][i * 2 + 1];
          Q::order(a[which], a[which + 2]);
        }
      }
      const int step = piece * Q::kPieceSteps + i;
#pragma unroll
      for (int tile = 0; tile < kHeadTiles; ++tile) {
        multiply_elements<Element>(scores[tile], a, queries.words[tile][step][0],
                                   queries.words[tile][step][1]);
      }
    }
  }
}

// The scales of one stored block; of an exact one they are 1.
struct BlockScales {
  float k = 1;
  float v_log2 = 0;
  float v_inverse = 1;
};

// Takes scores into the running softmax and leaves the weights as the second operand of V^T P^T.
// The scale of V is in the weights, as a summand of the scores, so that the largest of them is 1
// whatever the scales are; in the total of weights it is taken out again.
template <typename Element, typename Tile, typename Block, int kHeadTiles>
__device__ inline void weigh_block(Tile& tile, const Block& block,
                                   const float (&scores)[kHeadTiles][4],
                                   const float (&q_scale)[kHeadTiles][2], const BlockScales& scales,
                                   int lane, std::uint32_t (&weights)[kHeadTiles][2]) {
  float decay[kHeadTiles][2];
  bool decays = false;
#pragma unroll
  for (int n = 0; n < kHeadTiles; ++n) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float factor = __fmul_rn(q_scale[n][i % 2], scales.k);
      x[i] = block.sees(i / 2 * 8 + lane / 4) ? __fmaf_rn(scores[n][i], factor, scales.v_log2)
                                              : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float largest = fmaxf(tile.largest[n][i], max_of_column(fmaxf(x[i], x[i + 2])));
      decay[n][i] = exp2_fast(__fadd_rn(tile.largest[n][i], -largest));
      decays |= tile.largest[n][i] != largest;
      tile.largest[n][i] = largest;
      x[i] = exp2_fast(__fadd_rn(x[i], -largest));
      x[i + 2] = exp2_fast(__fadd_rn(x[i + 2], -largest));
      tile.total[n][i] = __fmaf_rn(__fadd_rn(x[i], x[i + 2]), scales.v_inverse,
                                   __fmul_rn(tile.total[n][i], decay[n][i]));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* of_token = x + half * 2;
      weights[n][half] = transpose(Element::kBytes == 1 ? pack_fp16(of_token[0], of_token[1])
                                                        : pack_bf16(of_token[0], of_token[1]));
    }
  }
  if (!__any_sync(0xFFFFFFFF, decays)) return;  // a product with 1 changes no bit
#pragma unroll
  for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
    for (auto& sum : tile.sums[n]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] = __fmul_rn(sum[i], decay[n][i % 2]);
    }
  }
}

// sums += V^T P^T.
template <typename Stored, typename Tile, typename Block, int kHeadTiles>
__device__ inline void add_block(Tile& tile, const Block& block,
                                 const std::uint32_t (&weights)[kHeadTiles][2]) {
  using Deal = typename Block::Deal;
  using Element = typename Block::Element;
  constexpr int kWordDims = 4 / Element::kBytes;
  constexpr int kWords = Deal::kVDims / kWordDims;
  constexpr bool kPairsOfRows = Element::kBytes == 2 || Element::kInterleaved;
  constexpr std::uint32_t kFirst = kPairsOfRows ? 0x5410 : 0x5140;
  constexpr std::uint32_t kSecond = kPairsOfRows ? 0x7632 : 0x7362;
#pragma unroll
  for (int piece = 0; piece < Deal::kVPieces; ++piece) {
    std::uint32_t rows[4][kWords];
#pragma unroll
    for (int which = 0; which < 4; ++which) block.v_piece(which, piece, rows[which]);
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      std::uint32_t pairs[kWordDims][2];  // of each dim, tokens 2t and 2t + 1, then 8 on
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t first = __byte_perm(rows[i * 2][word], rows[i * 2 + 1][word], kFirst);
        const std::uint32_t second = __byte_perm(rows[i * 2][word], rows[i * 2 + 1][word], kSecond);
        if constexpr (Element::kBytes == 1) {
          widen(Element{}, first, pairs[0][i], pairs[1][i]);
          widen(Element{}, second, pairs[2][i], pairs[3][i]);
        } else {
          pairs[0][i] = first;
          pairs[1][i] = second;
        }
      }
#pragma unroll
      for (int dim = 0; dim < kWordDims; dim += 2) {
        const std::uint32_t a[4] = {pairs[dim][0], pairs[dim + 1][0], pairs[dim][1],
                                    pairs[dim + 1][1]};
        const int at = (piece * Deal::kVDims + word * kWordDims + dim) / 2;
#pragma unroll
        for (int n = 0; n < kHeadTiles; ++n) {
          multiply_elements<Element>(tile.sums[n][at], a, weights[n][0], weights[n][1]);
        }
      }
    }
  }
}

template <typename Stored, int kHeadDim, int kHeadTiles, typename Block>
__device__ inline void attend_to_block(
    DecodeTile<kHeadDim, kHeadTiles>& tile,
    const Queries<Stored, typename Block::Element, kHeadDim, kHeadTiles>& queries,
    const Block& block, const BlockScales& scales, int lane) {
  float scores[kHeadTiles][4] = {};
  score_block(queries, block, scores);
  std::uint32_t weights[kHeadTiles][2];
  weigh_block<typename Block::Element>(tile, block, scores, queries.scale, scales, lane, weights);
  add_block<Stored>(tile, block, weights);
}

}  // namespace device
}  // namespace kvtier::kernels::cuda
