#include "client/transfer/page_table.h"

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "kernels/table.h"

namespace kvtier::transfer {
namespace {

Error invalid(const std::string& what) {
  return make_error(Errc::invalid, "pages: " + what);
}

template <class T>
bool any_null(std::span<T* const> pointers) {
  return std::ranges::any_of(pointers, [](T* p) { return p == nullptr; });
}

bool is_wide(DType type) {
  return type == DType::f32 || type == DType::f16 || type == DType::bf16;
}

// Raw pages: every piece of side `side` of the pages `numbers`, at its place in the record.
// f(piece of the page, piece of the record, bytes); returns where in the record it ended.
template <class F>
std::byte* for_each_row(const PoolSide& side, std::span<const std::uint32_t> numbers,
                        std::byte* record, const F& f) {
  for (const std::uint32_t number : numbers) {
    std::byte* page = side.base + number * side.page_stride;
    for (std::uint32_t row = 0; row < side.rows; ++row, record += side.row_bytes)
      f(page + row * side.row_stride, record, side.row_bytes);
  }
  return record;
}

template <class F>
void for_each_row(const PoolLayer& layer, std::span<const std::uint32_t> numbers, std::byte* record,
                  const F& f) {
  record = for_each_row(layer.k, numbers, record, f);
  if (layer.v.base != nullptr) for_each_row(layer.v, numbers, record, f);
}

}  // namespace

std::uint32_t PageTable::blocks_of(const Pages& pages, const session::NamespaceEntry& ns) noexcept {
  if (!pages.records.empty()) return static_cast<std::uint32_t>(pages.records.size());
  if (pages.pool != nullptr)
    return static_cast<std::uint32_t>(pages.numbers.size() / pages.pool->pages_of_block());
  return static_cast<std::uint32_t>(pages.k_pages.size() / ns.layout.layers);
}

Result<PageTable> PageTable::of(const Pages& pages, const session::NamespaceEntry& ns,
                                StreamView stream, bool on_gpu) {
  if (stream && !on_gpu) return invalid("a stream was given, and this client copies without one");
  const int forms = (pages.records.empty() ? 0 : 1) + (pages.pool == nullptr ? 0 : 1) +
                    (pages.k_pages.empty() && pages.v_pages.empty() ? 0 : 1);
  if (forms > 1)
    return invalid("give either records, or pages of a pool, or K and V pages by their pointers");
  PageTable table;
  table.ns_ = &ns;
  table.blocks_ = blocks_of(pages, ns);
  const auto good = !pages.records.empty()  ? table.take_records(pages)
                    : pages.pool != nullptr ? table.take_pool(pages)
                                            : table.take_pointers(pages);
  if (!good) return good.error();
  return table;
}

Result<void> PageTable::take_records(const Pages& pages) {
  if (any_null(pages.records)) return invalid("a null pointer");
  records_.assign(pages.records.begin(), pages.records.end());
  in_place_ = pages.in_place;
  return {};
}

Result<void> PageTable::take_pool(const Pages& pages) {
  const PagePool& pool = *pages.pool;
  if (pool.ns() != ns_->id) return invalid("the pool is of another namespace than this cache");
  if (pages.numbers.size() % pool.pages_of_block() != 0) {
    return invalid("a block has " + std::to_string(pool.pages_of_block()) + " pages, and " +
                   std::to_string(pages.numbers.size()) + " were named");
  }
  for (const std::uint32_t number : pages.numbers) {
    if (number >= pool.pages())
      return invalid("page " + std::to_string(number) + " of a pool of " +
                     std::to_string(pool.pages()));
  }
  type_ = pool.type();
  page_tokens_ = pool.page_tokens();
  pages_of_block_ = pool.pages_of_block();
  pool_layers_ = pool.layers();
  numbers_.assign(pages.numbers.begin(), pages.numbers.end());
  return {};
}

Result<void> PageTable::take_pointers(const Pages& pages) {
  const RecordLayout& layout = ns_->layout;
  if (any_null(pages.k_pages) || any_null(pages.v_pages)) return invalid("a null pointer");
  const std::size_t v_wanted = layout.head_dim_v == 0 ? 0 : pages.k_pages.size();
  if (pages.v_pages.size() != v_wanted || pages.k_pages.size() % layout.layers != 0)
    return invalid("K and V must have one pointer for each layer of each block");
  if (!pages.k_pages.empty() && (!layout.uniform || layout.format == StorageFormat::raw)) {
    return invalid(
        "layers that are not alike, and raw pages, have no pages by pointers; give a pool");
  }
  if (!is_wide(pages.type) && !pages.k_pages.empty())
    return invalid("the type must be f32, f16 or bf16");
  type_ = pages.type;
  page_tokens_ = layout.block_tokens;
  k_.assign(pages.k_pages.begin(), pages.k_pages.end());
  v_.assign(pages.v_pages.begin(), pages.v_pages.end());
  return {};
}

std::uint32_t PageTable::pointer_alignment() const noexcept {
  std::uintptr_t bits = 16;
  for (const std::byte* page : records_) bits |= reinterpret_cast<std::uintptr_t>(page);
  for (const auto* side : {&k_, &v_}) {
    for (const void* page : *side) bits |= reinterpret_cast<std::uintptr_t>(page);
  }
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

kernels::PageSide PageTable::side(std::uint32_t layer, bool v,
                                  std::uint32_t first_block) const noexcept {
  if (of_pool()) {
    const PoolSide& from = v ? pool_layers_[layer].v : pool_layers_[layer].k;
    return {.base = from.base,
            .page_stride = from.page_stride,
            .numbers = numbers_.data() + std::size_t{first_block} * pages_of_block_,
            .token_stride = from.token_stride,
            .head_stride = from.head_stride};
  }
  const LayerLayout& layout = ns_->layers[layer];
  if (v && v_.empty()) return {};
  return kernels::head_major((v ? v_ : k_).data() + std::size_t{layer} * blocks_ + first_block,
                             page_tokens_, v ? layout.head_dim_v : layout.head_dim_k, type_);
}

kernels::BlockLayerArgs PageTable::args(std::uint32_t layer, std::uint32_t first_block,
                                        std::span<std::byte* const> records) const noexcept {
  return {.layout = &ns_->layers[layer],
          .blocks = static_cast<std::uint32_t>(records.size()),
          .page_tokens = page_tokens_,
          .page_type = type_,
          .k = side(layer, false, first_block),
          .v = side(layer, true, first_block),
          .records = records.data()};
}

void PageTable::load_layer(std::uint32_t layer,
                           std::span<std::byte* const> records) const noexcept {
  KVTIER_CHECK(records.size() <= blocks_ && layer < ns_->layout.layers);
  const LayerLayout& layout = ns_->layers[layer];
  if (of_records()) {
    const std::size_t begin = layer == 0 ? 0 : layout.offset;
    const std::size_t end =
        layer + 1 == ns_->layout.layers ? ns_->layout.record_bytes : layout.offset + layout.bytes;
    for (std::size_t i = 0; i < records.size(); ++i) {
      if (records[i] == nullptr) continue;
      std::memcpy(records_[i] + begin, records[i] + begin, end - begin);
    }
    return;
  }
  if (layout.format != StorageFormat::raw) {
    if (!records.empty()) kernels::cpu_kernels().gather_and_dequantise(args(layer, 0, records));
    return;
  }
  for (std::uint32_t i = 0; i < records.size(); ++i) {
    for_each_row(pool_layers_[layer], numbers(i), records[i] + layout.offset,
                 [](std::byte* page, const std::byte* record, std::size_t bytes) {
                   std::memcpy(page, record, bytes);
                 });
  }
}

void PageTable::store(std::uint32_t block, std::byte* record) const noexcept {
  KVTIER_CHECK(block < blocks_);
  const RecordLayout& layout = ns_->layout;
  if (of_records()) {
    // Not the engine's header: identity and proof are written from what is being committed.
    std::memcpy(record + layout.scales_offset, records_[block] + layout.scales_offset,
                layout.record_bytes - layout.scales_offset);
    return;
  }
  for (std::uint32_t layer = 0; layer < layout.layers; ++layer) store_layer(block, layer, record);
}

void PageTable::store_layer(std::uint32_t block, std::uint32_t layer,
                            std::byte* record) const noexcept {
  KVTIER_CHECK(block < blocks_ && layer < ns_->layout.layers);
  const LayerLayout& layout = ns_->layers[layer];
  if (of_records()) {
    std::memcpy(record + layout.offset, records_[block] + layout.offset, layout.bytes);
    if (has_scales(layout.format)) {
      const std::size_t scales = std::size_t{2} * layout.kv_heads * sizeof(float);
      std::memcpy(record + layout.scales_offset, records_[block] + layout.scales_offset, scales);
    }
    return;
  }
  if (layout.format != StorageFormat::raw) {
    return kernels::cpu_kernels().quantise_and_scatter(args(layer, block, std::span(&record, 1)));
  }
  for_each_row(pool_layers_[layer], numbers(block), record + layout.offset,
               [](const std::byte* page, std::byte* to, std::size_t bytes) {
                 std::memcpy(to, page, bytes);
               });
}

}  // namespace kvtier::transfer
