#include "core/base/check.h"
#include "kernels/cpu/support.h"
#include "kernels/table.h"
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
      return DType::f32;
    case StorageFormat::raw:
    case StorageFormat::int8:
    case StorageFormat::int4:
      break;
  }
  check_shape(false, "a storage format without elements");
  return DType::f32;
}

}  // namespace

LayerView layer_view(const RecordLayout& layout, std::uint32_t layer) noexcept {
  KVTIER_CHECK(layout.uniform && layer < layout.layers);
  return layer_view(layout.layer(layer));
}

LayerView layer_view(const LayerLayout& layout) noexcept {
  const DType type = stored_type(layout.format);
  return {
      .k = {layout.k_offset(0), layout.k_head_bytes, layout.scale_offset(false, 0),
            layout.head_dim_k},
      .v = {layout.v_offset(0), layout.v_head_bytes, layout.scale_offset(true, 0),
            layout.head_dim_v},
      .kv_heads = layout.kv_heads,
      .block_tokens = layout.block_tokens,
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
