// The types of kernels/table.h, apart from it so that a translation unit compiled for one
// instruction set can have them without the inline functions of other headers
// (kernels/cpu/isa/kernels.inc).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvtier/dtype.h"

namespace kvtier {
struct LayerLayout;
struct RecordLayout;
}  // namespace kvtier

namespace kvtier::kernels {

using kvtier::bytes_of;
using kvtier::DType;

// K or V in pages: where page n of a call begins, and where token t and head h of it, at t *
// token_stride + h * head_stride bytes behind. The numbers of one head of one token lie side by
// side.
struct PageSide {
  void* const* pages = nullptr;  // [pages of the call]; or, where it is null,
  std::byte* base = nullptr;     // base + numbers[n] * page_stride
  std::size_t page_stride = 0;
  const std::uint32_t* numbers = nullptr;
  std::size_t token_stride = 0;
  std::size_t head_stride = 0;
};

// K and V of `blocks` blocks in one layer, between an engine's pages and records. Not for raw.
struct BlockLayerArgs {
  const LayerLayout* layout = nullptr;
  std::uint32_t blocks = 0;
  std::uint32_t page_tokens = 0;  // of a page, of which a block has block_tokens / page_tokens
  DType page_type = DType::f32;   // f32, f16 or bf16
  PageSide k;
  PageSide v;                           // not looked at where head_dim_v is 0
  std::byte* const* records = nullptr;  // [blocks] -> one record each
};

// One sequence's KV as attention sees it: complete earlier blocks as stored, its open block
// exactly.
struct SequenceKv {
  const std::byte* const* records = nullptr;  // [complete blocks] -> record
  // Per block; only the blocks that hold a query row of this call are read, null elsewhere.
  const float* const* exact_k = nullptr;  // [blocks] -> [kv_heads][block_tokens][head_dim_k]
  const float* const* exact_v = nullptr;  // [blocks] -> [kv_heads][block_tokens][head_dim_v]; not
                                          // looked at where head_dim_v is 0
};

// The "as stored" rule: the row at position p, in block b = p / block_tokens, attends to blocks 0
// .. b-1 through their records and to tokens 0 .. p % block_tokens of block b through the exact
// pages; with a window of W only to the tokens p-W+1 .. p, and with S sinks to those of the tokens
// 0 .. S-1 that lie before them, through the queries `sink_q`.
struct AttentionArgs {
  const RecordLayout* layout = nullptr;
  std::uint32_t layer = 0;
  std::uint32_t rows = 0;
  std::uint32_t heads = 0;        // query heads, a multiple of layout->kv_heads
  std::uint32_t window = 0;       // tokens that a row sees, itself included; 0: all
  std::uint32_t sinks = 0;        // with a window that holds a block at least; 0: none
  const float* sink_q = nullptr;  // as q; not looked at without sinks
  // Where the layout has no V (latent attention): V is the first so many channels of K.
  std::uint32_t value_channels = 0;
  float scale = 0;                              // usually 1 / sqrt(head_dim_k)
  const float* q = nullptr;                     // [rows][heads][head_dim_k], after RoPE
  float* out = nullptr;                         // [rows][heads][head_dim_v, or value_channels]
  const std::uint32_t* positions = nullptr;     // [rows]
  const std::uint32_t* row_sequence = nullptr;  // [rows] -> index into sequences
  const SequenceKv* sequences = nullptr;
};

struct KernelTable {
  const char* name;

  // Elementwise between any two types, round to nearest even. Into FP8: saturating (anything beyond
  // the largest finite value, infinities too, becomes that value with its sign), NaN stays NaN;
  // unscaled.
  void (*convert)(const void* src, DType src_type, void* dst, DType dst_type, std::size_t count);

  // Exact pages -> payload and scales of one layer of each record, by the rules of docs/format.md.
  // amax passes over NaN and takes an infinity for the largest float. FP8: scale = amax / largest
  // finite value, 1 where amax is 0, never below 2^-126; FP8(x * (1 / scale)), converted as above.
  // int8 and int4 store NaN as 0. Other formats write no scale. The header fields and the proof of
  // the record are not touched.
  void (*quantise_and_scatter)(const BlockLayerArgs& args);

  // Payload and scales of one layer of each record -> pages.
  void (*gather_and_dequantise)(const BlockLayerArgs& args);

  // out[r][i] = in[r][i] * weight[i] / sqrt(mean_i(in[r][i]^2) + epsilon). `out` may be `in`.
  void (*rms_norm)(const float* in, const float* weight, float* out, std::size_t rows,
                   std::size_t dim, float epsilon);

  // Rotates x[rows][heads][head_dim] in place, pairs (i, i + head_dim/2) as Hugging Face Llama
  // does: angle = positions[r] * inverse_frequencies[i].
  void (*rope)(float* x, std::size_t rows, std::size_t heads, std::size_t head_dim,
               const std::uint32_t* positions, const float* inverse_frequencies);

  // out[i] = gate[i] / (1 + exp(-gate[i])) * up[i]. `out` may be `gate`.
  void (*swiglu)(const float* gate, const float* up, float* out, std::size_t count);

  // out[rows][n] = x[rows][k] * transpose(w[n][k]) + bias[n]; w of type f32, f16 or bf16, FP32
  // accumulation; bias may be null.
  void (*gemm)(const float* x, const void* w, DType w_type, const float* bias, float* out,
               std::size_t rows, std::size_t n, std::size_t k);

  // out[r] = table[ids[r]] as FP32; table[vocabulary][dim] of type f32, f16 or bf16.
  void (*embed)(const std::uint32_t* ids, const void* table, DType table_type, float* out,
                std::size_t rows, std::size_t dim);

  // x[i] += y[i].
  void (*add)(float* x, const float* y, std::size_t count);

  void (*attention)(const AttentionArgs& args);

  // out[r] = log(sum over i of exp(logits[r][i])), NaN passed over; the sum to a relative error of
  // 1e-6. The largest logit where that is not finite.
  void (*log_sum_exp)(const float* logits, double* out, std::size_t rows, std::size_t vocabulary);
};

}  // namespace kvtier::kernels
