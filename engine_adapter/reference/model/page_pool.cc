#include "engine_adapter/reference/model/page_pool.h"

#include <string>

#include "core/base/check.h"

namespace kvtier::engine {

Result<std::unique_ptr<PagePool>> PagePool::create(const RecordLayout& layout, std::uint32_t pages,
                                                   KvMemory& memory) {
  if (pages == 0) return make_error(Errc::invalid, "a page pool needs at least one page");
  const auto records = memory.allocate(layout.record_bytes * pages);
  if (!records) {
    return make_error(records.error().code,
                      "a page pool (--pool-tokens): " + records.error().message);
  }
  return std::unique_ptr<PagePool>(new PagePool(layout, pages, memory, *records));
}

// The free list hands out low pages first, so that memory is touched as late as possible.
PagePool::PagePool(const RecordLayout& layout, std::uint32_t pages, KvMemory& memory,
                   std::byte* records)
    : layout_(layout), memory_(memory), records_(records), references_(pages), kept_(pages) {
  free_.reserve(pages);
  for (std::uint32_t page = pages; page > 0; --page) free_.push_back(PageId(page - 1));
}

PagePool::~PagePool() {
  KVTIER_CHECK(free_.size() == references_.size() && exact_free_.size() == exact_made_);
  for (const ExactBlock block : exact_free_) memory_.free(block.values, exact_bytes());
  memory_.free(records_, layout_.record_bytes * references_.size());
}

Result<PageId> PagePool::acquire() {
  if (free_.empty()) {
    return make_error(Errc::no_space, "all " + std::to_string(pages()) + " pages of " +
                                          std::to_string(layout_.block_tokens) +
                                          " tokens are in use: enlarge the pool (--pool-tokens)");
  }
  const PageId page = free_.back();
  free_.pop_back();
  references_[page.value] = 1;
  return page;
}

void PagePool::add_reference(PageId page) noexcept {
  KVTIER_CHECK(references_[page.value] > 0);
  if (kept_[page.value] && references_[page.value] == 1) --idle_;
  ++references_[page.value];
}

void PagePool::release(PageId page) noexcept {
  KVTIER_CHECK(references_[page.value] > 0);
  if (--references_[page.value] == 0) free_.push_back(page);
  if (kept_[page.value] && references_[page.value] == 1) ++idle_;
}

void PagePool::keep(PageId page) noexcept {
  KVTIER_CHECK(!kept_[page.value] && references_[page.value] > 0);
  ++references_[page.value];
  kept_[page.value] = true;
}

void PagePool::let_go(PageId page) noexcept {
  KVTIER_CHECK(kept_[page.value]);
  if (references_[page.value] == 1) --idle_;
  kept_[page.value] = false;
  release(page);
}

std::byte* PagePool::record(PageId page) const noexcept {
  return records_ + page.value * layout_.record_bytes;
}

std::size_t PagePool::exact_bytes() const noexcept {
  return std::size_t{layout_.layers} * layout_.kv_heads * layout_.block_tokens *
         (layout_.head_dim_k + layout_.head_dim_v) * bytes_of(memory_.exact_type());
}

void PagePool::copy_exact(ExactBlock to, ExactBlock from, StreamView stream) {
  memory_.copy(to.values, from.values, exact_bytes(), stream);
}

std::vector<std::byte> PagePool::save_exact(ExactBlock block, StreamView stream) const {
  std::vector<std::byte> values(exact_bytes());
  memory_.read(values.data(), block.values, values.size(), stream);
  return values;
}

void PagePool::restore_exact(ExactBlock block, std::span<const std::byte> values,
                             StreamView stream) {
  KVTIER_CHECK(values.size() == exact_bytes());
  memory_.write(block.values, values.data(), values.size(), stream);
}

Result<ExactBlock> PagePool::make_exact() {
  const auto values = memory_.allocate(exact_bytes());
  if (!values) {
    return make_error(values.error().code,
                      "the block that an answer has open: " + values.error().message);
  }
  ++exact_made_;
  return ExactBlock{*values};
}

Result<ExactBlock> PagePool::acquire_exact() {
  if (exact_free_.empty()) return make_exact();
  const ExactBlock block = exact_free_.back();
  exact_free_.pop_back();
  return block;
}

Result<void> PagePool::provide_exact(std::size_t blocks) {
  while (exact_made_ < blocks) {
    const auto made = make_exact();
    if (!made) return made.error();
    exact_free_.push_back(*made);
  }
  return {};
}

void PagePool::trim_exact(std::size_t blocks) noexcept {
  while (exact_made_ > blocks && !exact_free_.empty()) {
    memory_.free(exact_free_.back().values, exact_bytes());
    exact_free_.pop_back();
    --exact_made_;
  }
}

}  // namespace kvtier::engine
