#include "client/transfer/page_table.h"

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "kernels/table.h"

namespace kvtier::transfer {
namespace {

Error invalid(const char* what) {
  return make_error(Errc::invalid, std::string("pages: ") + what);
}

template <class T>
bool any_null(std::span<T* const> pointers) {
  return std::ranges::any_of(pointers, [](T* p) { return p == nullptr; });
}

}  // namespace

Result<PageTable> PageTable::of(const Pages& pages, const RecordLayout& layout, StreamView stream,
                                bool on_gpu) {
  if (stream && !on_gpu) return invalid("a stream was given, and this client copies without one");
  const bool as_records = !pages.records.empty();
  const bool as_pages = !pages.k_pages.empty() || !pages.v_pages.empty();
  if (as_records && as_pages) return invalid("give either records, or K and V pages");
  if (any_null(pages.records) || any_null(pages.k_pages) || any_null(pages.v_pages)) {
    return invalid("a null pointer");
  }
  if (pages.k_pages.size() != pages.v_pages.size() || pages.k_pages.size() % layout.layers != 0) {
    return invalid("K and V must have one pointer for each layer of each block");
  }
  if (as_pages && pages.type != DType::f32 && pages.type != DType::f16 &&
      pages.type != DType::bf16) {
    return invalid("the type must be f32, f16 or bf16");
  }
  PageTable table;
  table.layout_ = layout;
  table.blocks_ = static_cast<std::uint32_t>(as_records ? pages.records.size()
                                                        : pages.k_pages.size() / layout.layers);
  table.records_.assign(pages.records.begin(), pages.records.end());
  table.k_.assign(pages.k_pages.begin(), pages.k_pages.end());
  table.v_.assign(pages.v_pages.begin(), pages.v_pages.end());
  table.type_ = pages.type;
  table.in_place_ = pages.in_place;
  return table;
}

void PageTable::load_layer(std::uint32_t layer,
                           std::span<std::byte* const> records) const noexcept {
  KVTIER_CHECK(records.size() <= blocks_ && layer < layout_.layers);
  if (records_.empty()) {
    kernels::BlockLayerArgs args;
    args.layout = &layout_;
    args.layer = layer;
    args.blocks = static_cast<std::uint32_t>(records.size());
    args.page_type = type_;
    args.k_pages = k_.data() + std::size_t{layer} * blocks_;
    args.v_pages = v_.data() + std::size_t{layer} * blocks_;
    args.records = records.data();
    kernels::cpu_kernels().gather_and_dequantise(args);
    return;
  }
  const std::size_t begin = layer == 0 ? 0 : layout_.header_bytes + layer * layout_.layer_bytes;
  const std::size_t end = layer + 1 == layout_.layers
                              ? layout_.record_bytes
                              : layout_.header_bytes + (layer + 1) * layout_.layer_bytes;
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (records[i] == nullptr) continue;
    std::memcpy(records_[i] + begin, records[i] + begin, end - begin);
  }
}

void PageTable::store(std::uint32_t block, std::byte* record) const noexcept {
  KVTIER_CHECK(block < blocks_);
  if (!records_.empty()) {
    // Not the engine's header: identity and proof are written from what is being committed.
    std::memcpy(record + layout_.scales_offset, records_[block] + layout_.scales_offset,
                layout_.record_bytes - layout_.scales_offset);
    return;
  }
  for (std::uint32_t layer = 0; layer < layout_.layers; ++layer) {
    kernels::BlockLayerArgs args;
    args.layout = &layout_;
    args.layer = layer;
    args.blocks = 1;
    args.page_type = type_;
    args.k_pages = k_.data() + std::size_t{layer} * blocks_ + block;
    args.v_pages = v_.data() + std::size_t{layer} * blocks_ + block;
    args.records = &record;
    kernels::cpu_kernels().quantise_and_scatter(args);
  }
}

}  // namespace kvtier::transfer
