// Attention of a few consecutive rows of one sequence over many stored blocks. A thread block is
// one part (kTailPartBlocks blocks at a fixed place of the context) of one KV head. Its warps share
// the part's blocks, which become 16-bit numbers a tile at a time; each has the query heads of a
// few neighbouring rows, none of another block than the others, as the rows of one tensor-core
// tile. What a row's tile has in its other rows changes no bit of it.
#include <algorithm>
#include <bit>

#include "core/base/check.h"
#include "kernels/cuda/attention_tail.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/parts.cuh"

namespace kvtier::kernels::cuda {
namespace {

template <int kHeadDim>
__global__ void __launch_bounds__(device::kCombineThreads)
    combine_tail(const __grid_constant__ TailParams params) {
  const std::uint32_t row = blockIdx.y;
  const std::size_t of_row = std::size_t{row} * gridDim.x + blockIdx.x;
  device::wait_for_previous_kernel();
  device::release_dependent_kernel();
  device::combine_parts<kHeadDim>(
      {params.part_sizes, params.part_sums, of_row * params.parts, 1,
       static_cast<int>((params.start + row) / (kTileTokens * kTailPartBlocks)) + 1},
      params.out + of_row * kHeadDim);
}

void combine(const TailParams& params, std::uint32_t head_dim, StreamView stream) {
  const auto kernel = head_dim == 64    ? combine_tail<64>
                      : head_dim == 96  ? combine_tail<96>
                      : head_dim == 128 ? combine_tail<128>
                                        : combine_tail<256>;
  device::launch_dependent(kernel,
                           {.grid = dim3(params.kv_heads * params.group, params.rows),
                            .threads = device::kCombineThreads},
                           stream, params);
}

std::uint32_t parts_of(std::uint32_t start, std::uint32_t rows) {
  return (start + rows - 1) / (kTileTokens * kTailPartBlocks) + 1;
}

}  // namespace

std::size_t tail_workspace_bytes(const RecordLayout& layout, std::uint32_t heads,
                                 std::uint32_t start, std::uint32_t rows) {
  return std::size_t{rows} * heads * parts_of(start, rows) *
         (layout.head_dim_v * sizeof(float) + sizeof(float2));
}

void tail_attention(const TailAttentionArgs& args, StreamView stream) {
  const RecordLayout& layout = args.layout;
  const std::uint32_t dim = layout.head_dim_k;
  KVTIER_CHECK(layout.block_tokens == kTileTokens && layout.head_dim_v == dim);
  KVTIER_CHECK(dim == 64 || dim == 96 || dim == 128 || dim == 256);
  KVTIER_CHECK(args.heads % layout.kv_heads == 0 && args.heads / layout.kv_heads <= kTailTileRows);
  if (args.rows == 0) return;
  TailParams params = {};
  params.q = args.q;
  params.out = args.out;
  params.table = args.block_table;
  params.pages = args.pages;
  params.row_page = args.row_page;
  params.group = args.heads / layout.kv_heads;
  params.tile_tokens = std::bit_floor(kTailTileRows / params.group);
  params.start = args.start;
  params.rows = args.rows;
  params.parts = parts_of(args.start, args.rows);
  params.part_sums = static_cast<float*>(args.workspace);
  params.part_sizes = reinterpret_cast<float2*>(
      params.part_sums + std::size_t{args.rows} * args.heads * params.parts * dim);
  params.k_offset = layout.k_offset(args.layer, 0);
  params.v_offset = layout.v_offset(args.layer, 0);
  params.k_scale_offset = layout.scale_offset(args.layer, false, 0);
  params.v_scale_offset = layout.scale_offset(args.layer, true, 0);
  params.layer = args.layer;
  params.kv_heads = layout.kv_heads;
  params.scale_log2 = args.scale * 1.44269504F;
  bool made = false;
#ifdef KVTIER_CUDA_SM90A
  made = !args.portable && tail_parts_wgmma(params, layout.format, dim, stream);
#endif
  if (!made) tail_parts_mma(params, layout.format, dim, stream);
  combine(params, dim, stream);
}

}  // namespace kvtier::kernels::cuda
