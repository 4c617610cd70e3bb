// The kernels of the CUDA backend. kernels/table.h is the reference: what a function here computes
// is what its CPU twin computes on the same values, up to BF16 activations where FP32 stands there.
//
// Every pointer is an address in device memory unless its comment says otherwise. Work is ordered
// on `stream`; nothing here waits, allocates or keeps a pointer once its work is done. Shapes are
// checked by the caller and asserted here; a launch that the runtime refuses throws CudaError
// (kernels/cuda/error.h). All functions may be captured into a CUDA graph: what changes from step
// to step lies in device memory, behind pointers that stay.
//
// Row independence holds for every kernel here: the result of a row does not depend on which other
// rows the call has. (The matrix products, kernels/cuda/gemm.h, choose their algorithm by shape.)
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvtier/dtype.h"
#include "kvtier/record_layout.h"
#include "kvtier/stream.h"

namespace kvtier::kernels::cuda {

using Bf16 = __nv_bfloat16;

// Blocks of the engine's kernels are one tile of 16 tokens; the transfer kernels take any.
inline constexpr std::uint32_t kTileTokens = 16;
// A row that pads a batch: every kernel leaves its output alone.
inline constexpr std::uint32_t kNoSequence = 0xFFFFFFFF;

// K and V of one block at engine precision, [layer][K then V][kv_heads][block_tokens][head_dim].
struct ExactPage {
  Bf16* values = nullptr;
  std::uint64_t layer_stride = 0;  // elements; 0 where the page holds one layer at a time
};

// The rows (tokens) of one step, of one or more sequences. Host struct of device arrays.
struct StepRows {
  std::uint32_t rows = 0;                           // padding included
  const std::uint32_t* positions = nullptr;         // [rows] in the sequence
  const std::uint32_t* row_sequence = nullptr;      // [rows], kNoSequence for padding
  const std::uint32_t* row_page = nullptr;          // [rows] -> pages: the row's own block
  const ExactPage* pages = nullptr;                 // [pages]
  std::byte* const* const* block_tables = nullptr;  // [sequences] -> [blocks] -> record
};

// --- Around attention: every dimension is a multiple of 8 ----------------------------------------

// out[r] = table[ids[r]], widened; table[vocabulary][dim].
void embed(const std::uint32_t* ids, const Bf16* table, float* out, std::size_t rows,
           std::size_t dim, StreamView stream);

// residual[r] += delta[r] (delta may be null), then
// out[r][i] = residual[r][i] * weight[i] / sqrt(mean_i(residual[r][i]^2) + epsilon).
void add_rms_norm(float* residual, const Bf16* delta, const float* weight, Bf16* out,
                  std::size_t rows, std::size_t dim, float epsilon, StreamView stream);

// The same for chosen rows, without the sum kept: out[i] is the norm of residual[index[i]] +
// delta[index[i]].
void gather_rms_norm(const float* residual, const Bf16* delta, const std::uint32_t* index,
                     const float* weight, Bf16* out, std::size_t count, std::size_t dim,
                     float epsilon, StreamView stream);

// From the fused projection of a layer to what attention reads: per-head RMS norm of Q and K (where
// the model has one), RoPE of both (pairs (i, i + head_dim / 2)), Q to `q`, K and V into each row's
// exact page at its position.
struct StoreKvArgs {
  StepRows step;
  std::uint32_t layer = 0;
  std::uint32_t heads = 0, kv_heads = 0, head_dim = 0;
  const Bf16* qkv = nullptr;      // [rows][heads + 2 * kv_heads][head_dim]: Q, K, V
  Bf16* q = nullptr;              // [rows][heads][head_dim]
  const float* q_norm = nullptr;  // [head_dim], null for none
  const float* k_norm = nullptr;
  float epsilon = 0;
  const float* inverse_frequencies = nullptr;  // [head_dim / 2]
  // Where not null: Q once more, as the sinks are met, at `sink_position` at most (Sight).
  Bf16* sink_q = nullptr;  // [rows][heads][head_dim]
  std::uint32_t sink_position = 0;
};
void store_kv(const StoreKvArgs& args, StreamView stream);

// One layer of complete blocks from exact pages into their records: payload and scales as the CPU's
// quantise_and_scatter makes them. `completed_pages[i]` names a page of `pages`; an entry whose
// record is null is passed over.
void quantise_pages(const RecordLayout& layout, std::uint32_t layer, const ExactPage* pages,
                    const std::uint32_t* completed_pages, std::byte* const* completed_records,
                    std::uint32_t count, StreamView stream);

// out[r][i] = silu(gate_up[r][i]) * gate_up[r][inner + i]; gate_up[rows][2 * inner].
void swiglu(const Bf16* gate_up, Bf16* out, std::size_t rows, std::size_t inner, StreamView stream);

// --- Attention: the "as stored" rule of kernels/table.h ----------------------------------------

// What of a context a row attends to: its last `window` tokens, itself included (0: all), and the
// first `sinks`, which `sink_q` meets in place of `q`. Where there are sinks, the window has a
// block or more. Sinks that the window holds may be met with either: both are rotated alike there.
struct Sight {
  std::uint32_t window = 0;
  std::uint32_t sinks = 0;
  const Bf16* sink_q = nullptr;  // [rows][heads][head_dim]
};

// One query row a sequence-row; any mixture of sequences. Blocks before the row's own are read from
// their records through block_tables, the row's own block from its exact page. Records that no row
// sees are not read, and may be null. Split over the blocks; the number of parts depends on
// `context_max` and the sight's numbers alone.
struct DecodeAttentionArgs {
  RecordLayout layout;  // head_dim_k == head_dim_v: 64, 96, 128 or 256
  StepRows step;
  std::uint32_t layer = 0;
  std::uint32_t heads = 0;        // kv_heads * 1..16
  std::uint32_t context_max = 0;  // host: no position is at or beyond it
  float scale = 0;
  const Bf16* q = nullptr;    // [rows][heads][head_dim]
  Bf16* out = nullptr;        // [rows][heads][head_dim]
  void* workspace = nullptr;  // decode_workspace_bytes(...)
  Sight sight{};
};
std::size_t decode_workspace_bytes(const RecordLayout& layout, std::uint32_t rows,
                                   std::uint32_t heads, std::uint32_t context_max,
                                   const Sight& sight = {});
void decode_attention(const DecodeAttentionArgs& args, StreamView stream);

// A few consecutive rows of one sequence, with the blocks before each row's own read in place: the
// end of a prompt whose beginning is stored. As decode_attention, but every record is read once for
// sixteen query heads or more. Row i is at start + i.
struct TailAttentionArgs {
  RecordLayout layout;  // as for decode_attention
  std::uint32_t layer = 0;
  std::uint32_t heads = 0;
  std::uint32_t start = 0, rows = 0;
  float scale = 0;
  const Bf16* q = nullptr;                  // [rows][heads][head_dim]
  Bf16* out = nullptr;                      // [rows][heads][head_dim]
  std::byte* const* block_table = nullptr;  // the sequence's
  const ExactPage* pages = nullptr;         // of the step
  const std::uint32_t* row_page = nullptr;  // [rows] of this sequence -> pages
  void* workspace = nullptr;                // tail_workspace_bytes(...)
  bool portable = false;  // the kernel for cards without sm_90a's instructions, on any
};
std::size_t tail_workspace_bytes(const RecordLayout& layout, std::uint32_t heads,
                                 std::uint32_t start, std::uint32_t rows);
void tail_attention(const TailAttentionArgs& args, StreamView stream);

// The complete blocks [first_block, first_block + blocks) of one sequence in one layer,
// dequantised: k[kv_head][token][head_dim] with `tokens_stride` tokens from a head to the next,
// token 0 being the first of `first_block`; v alike. A record that is null gives zeros.
void gather_stored(const RecordLayout& layout, std::uint32_t layer,
                   const std::byte* const* block_table, std::uint32_t first_block,
                   std::uint32_t blocks, Bf16* k, Bf16* v, std::uint64_t tokens_stride,
                   StreamView stream);

// Where a piece's earlier tokens lie as gather_stored leaves them: `sink_blocks` from the beginning
// of the context, then those from `first_block` on. Fixed places of the context, so that what a row
// adds up, and in which order, does not depend on where its piece begins.
struct StoredSpan {
  std::uint32_t sink_blocks = 0;
  std::uint32_t first_block = 0;
  std::uint32_t end_block = 0;

  // Of a piece of `rows` rows from `start` on.
  static StoredSpan of(const Sight& sight, std::uint32_t start, std::uint32_t rows) noexcept;
  std::uint32_t blocks() const noexcept { return sink_blocks + end_block - first_block; }
};

// Consecutive rows of one sequence, beginning anywhere in a block. Row i is at start + i; tokens of
// earlier blocks come from `stored_k` and `stored_v` (StoredSpan::of the same numbers), those of
// its own block from its exact page.
struct PrefillAttentionArgs {
  std::uint32_t layer = 0;
  std::uint32_t heads = 0, kv_heads = 0, head_dim = 0;
  std::uint32_t start = 0, rows = 0;
  float scale = 0;
  const Bf16* q = nullptr;  // [rows][heads][head_dim]
  Bf16* out = nullptr;
  const Bf16* stored_k = nullptr;  // [kv_heads][tokens_stride][head_dim]
  const Bf16* stored_v = nullptr;
  std::uint64_t tokens_stride = 0;
  const ExactPage* pages = nullptr;         // of the step
  const std::uint32_t* row_page = nullptr;  // [rows] of this sequence -> pages
  bool portable = false;                    // not by the kernel for sm_90a, to compare with
  Sight sight{};
};
void prefill_attention(const PrefillAttentionArgs& args, StreamView stream);

// --- Choosing tokens ---------------------------------------------------------------------------

// tokens[r] from logits[r] as engine::Sampler chooses: the lowest id of the largest where
// temperature is 0; else among the top_k most likely (0: all), of those the fewest that hold top_p
// of the probability, the one that `uniform` in [0, 1) falls on. At most 2^19 tokens. The choice
// is the same on every card; it is the CPU's unless `uniform`, or top_p, falls within 1e-8 of where
// another token begins.
struct SampleRow {
  float temperature = 0;
  std::uint32_t top_k = 0;
  float top_p = 1;
  double uniform = 0;
};
// With `index`, of logits[index[r]]: several tokens from one row.
void sample(const float* logits, const SampleRow* rows, std::uint32_t* tokens, std::size_t count,
            std::size_t vocabulary, void* workspace, StreamView stream,
            const std::uint32_t* index = nullptr);
std::size_t sample_workspace_bytes(std::size_t count, std::size_t vocabulary);

// Of each row: log_sums[r] as the CPU's log_sum_exp, and out[r][0 .. k-1], the likeliest tokens as
// engine::likeliest_tokens orders them, kNoToken where there are no more.
inline constexpr std::uint32_t kLikeliestTokensMax = 128;
inline constexpr std::uint32_t kNoToken = 0xFFFFFFFF;
struct LikeliestToken {
  std::uint32_t token;
  float logprob;
};
void likeliest(const float* logits, LikeliestToken* out, double* log_sums, std::size_t count,
               std::size_t vocabulary, std::uint32_t k, void* workspace, StreamView stream);
std::size_t likeliest_workspace_bytes(std::size_t count, std::size_t vocabulary, std::uint32_t k);
// out[i] = logits[rows[i]][tokens[i]] - log_sums[rows[i]].
void token_logprobs(const float* logits, const double* log_sums, const std::uint32_t* rows,
                    const std::uint32_t* tokens, float* out, std::size_t count,
                    std::size_t vocabulary, StreamView stream);

// --- Between records and an engine's pages -------------------------------------------------------

// K or V of one layer in an engine's pages. Page n of a call, of which a block has block_tokens /
// page_tokens, begins at pages[n], or, where `pages` is null, at base + numbers[n] * page_stride;
// token t and head h of it at t * token_stride + h * head_stride bytes behind. The numbers of one
// head of one token lie side by side. A raw page is `rows` pieces of row_bytes, token_stride apart.
struct TransferSide {
  void* const* pages = nullptr;
  std::byte* base = nullptr;
  std::uint64_t page_stride = 0;
  std::uint64_t token_stride = 0;
  std::uint64_t head_stride = 0;
  std::uint32_t rows = 0;
  std::uint32_t row_bytes = 0;
};
struct TransferLayer {
  LayerLayout layout;  // of the records
  TransferSide k;
  TransferSide v;  // raw: of no rows where there is none; else head_dim_v says so
};

// Records may lie in pinned host memory: the kernels read it over the link with `thread_blocks`
// thread blocks (8 to 16 reach what kernels can of PCIe 5.0, 0.92 of it, and leave the rest of the
// card to compute; 0: as many as there is work for). The copy engine is faster. Arrays that
// pointers here name are in memory the device can read; `layers` is in the host's, and read during
// the call.
struct TransferArgs {
  std::span<const TransferLayer> layers;  // that follow one another
  std::uint32_t blocks = 0;
  const std::byte* const* records = nullptr;  // [blocks], source or destination
  std::uint64_t records_begin = 0;            // records[i] is where this byte of record i lies
  DType page_type = DType::bf16;              // f32, f16 or bf16; of no meaning for raw
  std::uint32_t page_tokens = 0;
  const std::uint32_t* numbers = nullptr;  // [blocks * pages of a block]
  std::uint32_t pages_alignment = 16;      // that all addresses in TransferSide::pages have
  std::uint32_t thread_blocks = 0;
  bool on_device = false;  // the records are in the GPU's memory: what is written bounds the rate
  // Scales that were brought apart: [blocks][scales_pitch], those of layers[0] first.
  const float* scales = nullptr;
  std::uint32_t scales_pitch = 0;
};
// [kv_heads][block_tokens][head_dim] in each of pages[blocks]; `v`: of V.
TransferSide head_major(void* const* pages, const LayerLayout& layout, bool v, DType type) noexcept;
// Payload and scales -> pages.
void gather_and_dequantise(const TransferArgs& args, StreamView stream);
// Pages -> payload and scales (headers and proofs untouched).
void quantise_and_pack(const TransferArgs& args, StreamView stream);

// The bytes [offset, offset + bytes) of each source to the same place of its destination; both
// multiples of 16.
void copy_pieces(const std::byte* const* from, std::byte* const* to, std::uint32_t count,
                 std::uint64_t offset, std::uint64_t bytes, std::uint32_t thread_blocks,
                 StreamView stream);

}  // namespace kvtier::kernels::cuda
