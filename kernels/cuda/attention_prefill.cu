#include "kernels/cuda/attention_prefill.cuh"

#include <algorithm>

#include "core/base/check.h"
#include "kernels/cuda/error.h"

namespace kvtier::kernels::cuda {
namespace {

// K and V of the heads that are worked on together, of the second-level cache.
constexpr std::uint64_t kSectionBytes = 24ULL << 20;

std::uint32_t section_heads(const PrefillAttentionArgs& args) {
  const StoredSpan span = StoredSpan::of(args.sight, args.start, args.rows);
  const std::uint64_t tokens = std::uint64_t{span.blocks()} * kTileTokens + args.rows;
  const std::uint64_t head_bytes = tokens * args.head_dim * 2 * sizeof(Bf16);
  const std::uint64_t kv_heads =
      std::clamp<std::uint64_t>(kSectionBytes / head_bytes, 1, args.kv_heads);
  return static_cast<std::uint32_t>(kv_heads) * (args.heads / args.kv_heads);
}

// Of the largest tile of stored tokens.
constexpr std::uint32_t kSpanBlocks = kPrefillRows / kTileTokens;

}  // namespace

StoredSpan StoredSpan::of(const Sight& sight, std::uint32_t start, std::uint32_t rows) noexcept {
  StoredSpan span;
  span.end_block = (start + rows - 1) / kTileTokens;
  if (sight.window == 0) return span;
  const std::uint32_t low = start < sight.window ? 0 : start + 1 - sight.window;
  const std::uint32_t sinks = (sight.sinks + kTileTokens - 1) / kTileTokens;
  const std::uint32_t first = std::max(low, sight.sinks) / kTileTokens;
  span.sink_blocks = std::min(sinks, span.end_block);
  span.first_block = std::min(first / kSpanBlocks * kSpanBlocks, span.end_block);
  return span;
}

void prefill_attention(const PrefillAttentionArgs& args, StreamView stream) {
  const std::uint32_t dim = args.head_dim;
  KVTIER_CHECK(dim == 64 || dim == 96 || dim == 128 || dim == 256);
  KVTIER_CHECK(args.heads % args.kv_heads == 0 && args.scale > 0);
  KVTIER_CHECK(args.sight.sinks == 0 ||
               (args.sight.window >= kTileTokens && args.sight.sink_q != nullptr));
  if (args.rows == 0) return;

  PrefillParams params = {};
  params.q = args.q;
  params.out = args.out;
  params.stored_k = args.stored_k;
  params.stored_v = args.stored_v;
  params.tokens_stride = args.tokens_stride;
  params.pages = args.pages;
  params.row_page = args.row_page;
  params.layer = args.layer;
  params.heads = args.heads;
  params.group = args.heads / args.kv_heads;
  params.kv_heads = args.kv_heads;
  params.start = args.start;
  params.rows = args.rows;
  const std::uint32_t span = args.start % kTileTokens + args.rows;
  params.tiles = (span + kPrefillRows - 1) / kPrefillRows;
  params.section_heads = section_heads(args);
  params.scale_log2 = args.scale * 1.44269504F;
  params.sight = args.sight;
  params.span = StoredSpan::of(args.sight, args.start, args.rows);
#ifdef KVTIER_CUDA_SM90A
  if (!args.portable && prefill_attention_wgmma(params, dim, stream)) return;
#endif
  prefill_attention_mma(params, dim, stream);
}

}  // namespace kvtier::kernels::cuda
