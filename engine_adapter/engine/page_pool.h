// The engine's own KV memory: pages that hold one block each as a record, byte for byte what the
// cache keeps, so that a block that was computed and one that was restored are the same thing to
// attention. Pages are counted by their users. Not thread safe: the engine's thread owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/base/strong.h"
#include "kvtier/record_layout.h"
#include "kvtier/result.h"

namespace kvtier::engine {

using PageId = Strong<struct PageTag, std::uint32_t>;

class PagePool {
 public:
  // Errors: invalid (no page), no_space. Memory is touched only as pages are used.
  static Result<std::unique_ptr<PagePool>> create(const RecordLayout& layout, std::uint32_t pages);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // A page with one reference and unspecified contents, in front of which no header is valid yet.
  // Errors: no_space.
  Result<PageId> acquire();
  void add_reference(PageId page) noexcept;
  void release(PageId page) noexcept;

  std::byte* record(PageId page) const noexcept;
  const RecordLayout& layout() const noexcept { return layout_; }
  std::uint32_t pages() const noexcept { return static_cast<std::uint32_t>(references_.size()); }
  std::uint32_t pages_free() const noexcept { return static_cast<std::uint32_t>(free_.size()); }

 private:
  PagePool(const RecordLayout& layout, std::uint32_t pages, std::span<std::byte> memory);

  RecordLayout layout_;
  std::span<std::byte> memory_;
  std::vector<std::uint32_t> references_;
  std::vector<PageId> free_;
};

}  // namespace kvtier::engine
