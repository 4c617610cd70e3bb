#include "core/base/check.h"
#include "kernels/cpu/support.h"
#include "kernels/table.h"
#include "kvtier/groups.h"
#include "kvtier/record_layout.h"

namespace kvtier::kernels {
namespace {

DType stored_type(StorageFormat format) noexcept {
  switch (format) {
    case StorageFormat::fp8_e4m3:
      return DType::fp8_e4m3;
    case StorageFormat::fp8_e5m2:
      return DType::fp8_e5m2;
    case StorageFormat::bf16:
      return DType::bf16;
    case StorageFormat::f32:
    case StorageFormat::raw:
    case StorageFormat::int8:
    case StorageFormat::int4:
      break;
  }
  return DType::f32;
}

int integer_bits(StorageFormat format) noexcept {
  if (format == StorageFormat::int8) return 8;
  return format == StorageFormat::int4 ? 4 : 0;
}

SideView side_view(const LayerLayout& layout, bool v) noexcept {
  const std::uint32_t dim = v ? layout.head_dim_v : layout.head_dim_k;
  SideView side{};
  side.payload_offset = v ? layout.v_offset(0) : layout.k_offset(0);
  side.head_bytes = v ? layout.v_head_bytes : layout.k_head_bytes;
  side.scale_offset = layout.scale_offset(v, 0);
  side.head_dim = dim;
  if (integer_bits(layout.format) == 0) return side;
  const GroupedHead head = grouped_head(layout.format, layout.block_tokens, dim, v);
  side.row_bytes = head.row_bytes;
  side.group_tokens = head.group_tokens;
  side.group_channels = head.group_channels;
  side.channel_groups = head.channel_groups;
  side.group_scales_offset = head.scales_offset;
  return side;
}

}  // namespace

LayerView layer_view(const RecordLayout& layout, std::uint32_t layer) noexcept {
  KVTIER_CHECK(layout.uniform && layer < layout.layers);
  return layer_view(layout.layer(layer));
}

LayerView layer_view(const LayerLayout& layout) noexcept {
  check_shape(layout.format != StorageFormat::raw, "raw pages, which no kernel reads");
  const DType type = stored_type(layout.format);
  return {
      .k = side_view(layout, false),
      .v = side_view(layout, true),
      .kv_heads = layout.kv_heads,
      .block_tokens = layout.block_tokens,
      .integer_bits = integer_bits(layout.format),
      .type = type,
      .scaled = type == DType::fp8_e4m3 || type == DType::fp8_e5m2,
      .largest_finite = type == DType::fp8_e4m3 ? 448.0F : 57344.0F,
  };
}

PageSide head_major(void* const* pages, std::uint32_t tokens, std::uint32_t head_dim,
                    DType type) noexcept {
  const std::size_t row = head_dim * bytes_of(type);
  return {.pages = pages, .token_stride = row, .head_stride = tokens * row};
}

void check_shape(bool holds, const char* what) noexcept {
  if (!holds) check_failed(what, "kernels/cpu", 0);
}

}  // namespace kvtier::kernels
