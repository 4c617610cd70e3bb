#include "engine_adapter/engine/page_pool.h"

#include <sys/mman.h>

#include <string>

#include "client/base/check.h"
#include "client/base/fd.h"

namespace kvtier::engine {

Result<std::unique_ptr<PagePool>> PagePool::create(const RecordLayout& layout,
                                                   std::uint32_t pages) {
  if (pages == 0) return make_error(Errc::invalid, "a page pool needs at least one page");
  const std::size_t bytes = layout.record_bytes * pages;
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    return errno_error(Errc::no_space, "a page pool of " + std::to_string(bytes) + " bytes");
  }
  return std::unique_ptr<PagePool>(
      new PagePool(layout, pages, {static_cast<std::byte*>(at), bytes}));
}

// The free list hands out low pages first, so that memory is touched as late as possible.
PagePool::PagePool(const RecordLayout& layout, std::uint32_t pages, std::span<std::byte> memory)
    : layout_(layout), memory_(memory), references_(pages) {
  free_.reserve(pages);
  for (std::uint32_t page = pages; page > 0; --page) free_.push_back(PageId(page - 1));
}

PagePool::~PagePool() {
  KVTIER_CHECK(free_.size() == references_.size());
  ::munmap(memory_.data(), memory_.size());
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
  ++references_[page.value];
}

void PagePool::release(PageId page) noexcept {
  KVTIER_CHECK(references_[page.value] > 0);
  if (--references_[page.value] == 0) free_.push_back(page);
}

std::byte* PagePool::record(PageId page) const noexcept {
  return memory_.data() + page.value * layout_.record_bytes;
}

}  // namespace kvtier::engine
