#include "kernels/cuda/attention_prefill.cuh"

#include <algorithm>

#include "core/base/check.h"
#include "kernels/cuda/error.h"

namespace kvtier::kernels::cuda {
namespace {

// K and V of the heads that are worked on together, of the second-level cache.
constexpr std::uint64_t kSectionBytes = 24ULL << 20;

std::uint32_t section_heads(const PrefillAttentionArgs& args) {
  const std::uint64_t head_bytes =
      std::uint64_t{args.start + args.rows} * args.head_dim * 2 * sizeof(Bf16);
  const std::uint64_t kv_heads =
      std::clamp<std::uint64_t>(kSectionBytes / head_bytes, 1, args.kv_heads);
  return static_cast<std::uint32_t>(kv_heads) * (args.heads / args.kv_heads);
}

}  // namespace

void prefill_attention(const PrefillAttentionArgs& args, StreamView stream) {
  const std::uint32_t dim = args.head_dim;
  KVTIER_CHECK(dim == 64 || dim == 96 || dim == 128 || dim == 256);
  KVTIER_CHECK(args.heads % args.kv_heads == 0 && args.scale > 0);
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
#ifdef KVTIER_CUDA_SM90A
  if (!args.portable && prefill_attention_wgmma(params, dim, stream)) return;
#endif
  prefill_attention_mma(params, dim, stream);
}

}  // namespace kvtier::kernels::cuda
