// Attention to stored blocks with query heads as the rows of tensor-core tiles, for
// attention_tail.cu, whose thread blocks have rows enough to fill them.
//
// Blocks stream through shared memory by asynchronous copies. Tokens and dims of a tile may be
// dealt to lanes in any way that Q, K, V and the output share. With g = lane / 4 and t = lane % 4 a
// lane reads of K the tokens g and g + 8 and a quarter t of the dims; of V the tokens 2t, 2t + 1,
// 2t + 8, 2t + 9 and an eighth g of the dims. Quarters and eighths are interleaved piece by piece,
// and each lane copies exactly the pieces that lanes like it will multiply.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/kernels.h"

namespace kvtier::kernels::cuda {
namespace tail {

using device::commit_copies;
using device::copy_async;
using device::exp2_fast;
using device::max_of_row;
using device::multiply_add;
using device::pack_bf16;
using device::shared_address;
// Stored elements as BF16 pairs for the tensor cores. FP8 values are exact in BF16; scales are not
// applied here.

// An FP8 code in the upper byte of a 16-bit half, shifted right by kShift, is the BF16 of the same
// digits with the exponent bias still FP8's; the product with kFactor (a power of two, in both
// halves) mends it, subnormals too. Infinities and NaN come out finite: the quantiser saturates,
// and a NaN in a record is of a model that is broken anyway.
struct StoredE4m3 {
  static constexpr int kBytes = 1;
  static constexpr int kShift = 4;
  static constexpr std::uint32_t kFactor = 0x7B807B80;  // 2^120
};
struct StoredE5m2 {
  static constexpr int kBytes = 1;
  static constexpr int kShift = 3;
  static constexpr std::uint32_t kFactor = 0x77807780;  // 2^112
};
struct StoredBf16 {
  static constexpr int kBytes = 2;
};

__device__ inline std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;"
      : "=r"(product)
      : "r"(a), "r"(b), "r"(0x80008000U));  // minus zero keeps the sign of a zero product
  return product;
}

// Of four FP8 codes: `even` is numbers 0 and 2, `odd` numbers 1 and 3.
template <typename Stored>
__device__ inline void widen(std::uint32_t codes, std::uint32_t& even, std::uint32_t& odd) {
  constexpr std::uint32_t kSigns = 0x80008000;
  constexpr std::uint32_t kDigits = Stored::kShift == 4 ? 0x07F007F0 : 0x0FE00FE0;
  const std::uint32_t low = (codes << 8 & kSigns) | (codes << (8 - Stored::kShift) & kDigits);
  const std::uint32_t high = (codes & kSigns) | (codes >> Stored::kShift & kDigits);
  even = multiply_bf16x2(low, Stored::kFactor);
  odd = multiply_bf16x2(high, Stored::kFactor);
}

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

// A stored block in one slot of a warp's ring: [K token][piece][lane], then [V token][piece][lane].
template <typename Stored, int kHeadDim>
struct SlotBlock {
  using Element = Stored;
  using Deal = tail::Deal<Stored, kHeadDim>;
  static constexpr int kRowBytes = kHeadDim * Stored::kBytes;
  static constexpr int kHeadBytes = static_cast<int>(kTileTokens) * kRowBytes;
  static constexpr int kBytes = 2 * kHeadBytes;
  static constexpr int kKBytes = Deal::kKDims * Stored::kBytes;  // of a piece
  static constexpr int kVBytes = Deal::kVDims * Stored::kBytes;

  // Begins the copies of the lane's pieces; k and v are one head's [token][dim].
  static __device__ void fetch(std::byte* slot, const std::byte* k, const std::byte* v, int lane) {
    const int g = lane / 4;
    const int t = lane % 4;
    std::uint32_t to = shared_address(slot) + lane * kKBytes;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
#pragma unroll
      for (int piece = 0; piece < Deal::kKPieces; ++piece, to += 32 * kKBytes) {
        copy_async<kKBytes>(
            to, k + Deal::k_token(which, g) * kRowBytes + Deal::k_dim(piece, t) * Stored::kBytes);
      }
    }
    to = shared_address(slot) + kHeadBytes + lane * kVBytes;
#pragma unroll
    for (int which = 0; which < 4; ++which) {
#pragma unroll
      for (int piece = 0; piece < Deal::kVPieces; ++piece, to += 32 * kVBytes) {
        copy_async<kVBytes>(
            to, v + Deal::v_token(which, t) * kRowBytes + Deal::v_dim(piece, g) * Stored::kBytes);
      }
    }
  }

  const std::byte* slot;
  int lane;

  __device__ void k_piece(int which, int piece, std::uint32_t (&words)[kKBytes / 4]) const {
    load_words(slot + ((which * Deal::kKPieces + piece) * 32 + lane) * kKBytes, words);
  }
  __device__ void v_piece(int which, int piece, std::uint32_t (&words)[kVBytes / 4]) const {
    load_words(slot + kHeadBytes + ((which * Deal::kVPieces + piece) * 32 + lane) * kVBytes, words);
  }
  static __device__ bool sees(int) {
    return true;
  }
};

// The row's own block, read in place from its exact page but dealt as stored blocks are. Tokens
// from `tokens` on are not read: what lies there may be anything, and a weight of 0 would still
// make a NaN of it.
template <typename Stored, int kHeadDim>
struct ExactBlock {
  using Element = StoredBf16;
  using Deal = tail::Deal<Stored, kHeadDim>;

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

// A warp's running softmax of one KV head's query heads. Rows 8 to 15 of the tile are used only
// where kWide.
template <int kHeadDim, bool kWide>
struct DecodeTile {
  static constexpr int kTiles = kHeadDim / 8;
  static constexpr int kRows = kWide ? 2 : 1;

  float sums[kTiles][4] = {};
  float largest[kRows];
  float total[kRows] = {};

  __device__ DecodeTile() {
#pragma unroll
    for (float& x : largest) x = -INFINITY;
  }
};

// Q as the first operand, its columns in the order in which lanes hold K. Where K is FP8, the four
// numbers of a step are taken as (0, 2) and (1, 3), as they come out of widen().
template <typename Stored, int kHeadDim, bool kWide>
struct Queries {
  using Deal = tail::Deal<Stored, kHeadDim>;
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kPieceSteps = Deal::kKDims / 4;
  static constexpr bool kInterleaved = Stored::kBytes == 1;

  std::uint32_t words[kSteps][kWide ? 4 : 2];

  // q is [group][kHeadDim]; the rows beyond are zero.
  __device__ Queries(const Bf16* q, int group, int lane) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int dim = Deal::k_dim(step / kPieceSteps, lane % 4) + step % kPieceSteps * 4;
#pragma unroll
      for (int half = 0; half < (kWide ? 2 : 1); ++half) {
        const int row = half * 8 + lane / 4;
        uint2 x = {0, 0};
        if (row < group) x = *reinterpret_cast<const uint2*>(q + row * kHeadDim + dim);
        order(x.x, x.y);
        words[step][half * 2] = x.x;
        words[step][half * 2 + 1] = x.y;
      }
    }
  }

  static __device__ void order(std::uint32_t& first, std::uint32_t& second) {
    if constexpr (kInterleaved) {
      const std::uint32_t even = __byte_perm(first, second, 0x5410);
      second = __byte_perm(first, second, 0x7632);
      first = even;
    }
  }

  __device__ void multiply(float (&scores)[4], int step, std::uint32_t b0, std::uint32_t b1) const {
    if constexpr (kWide) {
      multiply_add(scores, words[step][0], words[step][2], words[step][1], words[step][3], b0, b1);
    } else {
      multiply_add(scores, words[step][0], 0, words[step][1], 0, b0, b1);
    }
  }
};

// scores[0] of tokens 0 .. 7, scores[1] of tokens 8 .. 15, before any scale.
template <typename Q, typename Block>
__device__ inline void score_block(const Q& queries, const Block& block, float (&scores)[2][4]) {
  using Deal = typename Block::Deal;
  using Element = typename Block::Element;
#pragma unroll
  for (int piece = 0; piece < Deal::kKPieces; ++piece) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      std::uint32_t words[Deal::kKDims * Element::kBytes / 4];
      block.k_piece(which, piece, words);
#pragma unroll
      for (int i = 0; i < Q::kPieceSteps; ++i) {
        std::uint32_t b0;
        std::uint32_t b1;
        if constexpr (Element::kBytes == 1) {
          widen<Element>(words[i], b0, b1);
        } else {
          b0 = words[i * 2];
          b1 = words[i * 2 + 1];
          Q::order(b0, b1);
        }
        queries.multiply(scores[which], piece * Q::kPieceSteps + i, b0, b1);
      }
    }
  }
}

// Takes scores, times `factor` in units of log2, into the running softmax; leaves in `weights` the
// first operand of P V, the weights times `v_scale`.
template <typename Tile, typename Block>
__device__ inline void weigh_block(Tile& tile, const Block& block, const float (&scores)[2][4],
                                   float factor, float v_scale, int lane,
                                   std::uint32_t (&weights)[4]) {
  float decay[Tile::kRows];
  bool decays = false;
#pragma unroll
  for (int row = 0; row < Tile::kRows; ++row) {
    float x[4];
    float largest = tile.largest[row];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = i / 2 * 8 + lane % 4 * 2 + i % 2;
      x[i] = block.sees(token) ? __fmul_rn(scores[i / 2][row * 2 + i % 2], factor) : -INFINITY;
      largest = fmaxf(largest, x[i]);
    }
    largest = max_of_row(largest);
    decay[row] = exp2_fast(__fadd_rn(tile.largest[row], -largest));
    decays |= tile.largest[row] != largest;
    tile.largest[row] = largest;
#pragma unroll
    for (float& w : x) w = exp2_fast(__fadd_rn(w, -largest));
    const float sum = __fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(x[2], x[3]));
    tile.total[row] = __fmaf_rn(tile.total[row], decay[row], sum);
    weights[row] = pack_bf16(__fmul_rn(x[0], v_scale), __fmul_rn(x[1], v_scale));
    weights[row + 2] = pack_bf16(__fmul_rn(x[2], v_scale), __fmul_rn(x[3], v_scale));
  }
  if constexpr (Tile::kRows == 1) weights[1] = weights[3] = 0;
  if (!__any_sync(0xFFFFFFFF, decays)) return;  // a product with 1 changes no bit
#pragma unroll
  for (auto& sum : tile.sums) {
#pragma unroll
    for (int i = 0; i < Tile::kRows * 2; ++i) sum[i] = __fmul_rn(sum[i], decay[i / 2]);
  }
}

// Adds the weighted values: tile i of the sums has, in its column c, the dim that lanes with g = c
// hold as their i-th.
template <typename Tile, typename Block>
__device__ inline void add_block(Tile& tile, const Block& block,
                                 const std::uint32_t (&weights)[4]) {
  using Deal = typename Block::Deal;
  using Element = typename Block::Element;
  constexpr int kWordDims = 4 / Element::kBytes;
  constexpr int kWords = Deal::kVDims / kWordDims;
#pragma unroll
  for (int piece = 0; piece < Deal::kVPieces; ++piece) {
    std::uint32_t rows[4][kWords];
#pragma unroll
    for (int which = 0; which < 4; ++which) block.v_piece(which, piece, rows[which]);
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      std::uint32_t b[2][kWordDims];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t low = __byte_perm(rows[i * 2][word], rows[i * 2 + 1][word], 0x5410);
        const std::uint32_t high = __byte_perm(rows[i * 2][word], rows[i * 2 + 1][word], 0x7632);
        if constexpr (Element::kBytes == 1) {
          widen<Element>(low, b[i][0], b[i][1]);
          widen<Element>(high, b[i][2], b[i][3]);
        } else {
          b[i][0] = low;
          b[i][1] = high;
        }
      }
#pragma unroll
      for (int i = 0; i < kWordDims; ++i) {
        multiply_add(tile.sums[piece * Deal::kVDims + word * kWordDims + i], weights[0], weights[1],
                     weights[2], weights[3], b[0][i], b[1][i]);
      }
    }
  }
}

template <typename Tile, typename Q, typename Block>
__device__ inline void attend_to_block(Tile& tile, const Q& queries, const Block& block,
                                       float factor, float v_scale, int lane) {
  float scores[2][4] = {};
  score_block(queries, block, scores);
  std::uint32_t weights[4];
  weigh_block(tile, block, scores, factor, v_scale, lane, weights);
  add_block(tile, block, weights);
}

}  // namespace tail
}  // namespace kvtier::kernels::cuda
