// The engine's own KV memory: pages that hold one block each as a record, byte for byte what the
// cache keeps, so that a block that was computed and one that was restored are the same thing to
// attention; and exact pages for the blocks that are still open. Pages are counted by their users.
// Not thread safe: the engine's thread owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/strong.h"
#include "engine_adapter/reference/model/kv_memory.h"
#include "kvtier/record_layout.h"
#include "kvtier/result.h"

namespace kvtier::engine {

using PageId = Strong<struct PageTag, std::uint32_t>;

// K and V of one block in every layer as computed: [layer][K then V][kv_heads][block_tokens]
// [head_dim], of the memory's exact_type(). Owned by a pool.
struct ExactBlock {
  std::byte* values = nullptr;
};

class PagePool {
 public:
  // `memory` outlives the pool. Errors: invalid (no page), no_space.
  static Result<std::unique_ptr<PagePool>> create(const RecordLayout& layout, std::uint32_t pages,
                                                  KvMemory& memory = host_memory());
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // A page with one reference and unspecified contents, in front of which no header is valid yet.
  // Errors: no_space.
  Result<PageId> acquire();
  void add_reference(PageId page) noexcept;
  void release(PageId page) noexcept;
  // A reference of the one who keeps pages beyond their use; one a page.
  void keep(PageId page) noexcept;
  void let_go(PageId page) noexcept;
  std::uint32_t references(PageId page) const noexcept { return references_[page.value]; }
  std::byte* record(PageId page) const noexcept;

  // Contents are finite numbers, otherwise unspecified. Made where none is free. Errors: no_space.
  Result<ExactBlock> acquire_exact();
  // Makes as many as are missing to `blocks` in all, those in use included. What was made stays on
  // an error. Errors: no_space.
  Result<void> provide_exact(std::size_t blocks);
  // Gives the memory of free ones back until there are `blocks` in all, or none is free.
  void trim_exact(std::size_t blocks) noexcept;
  std::size_t exact_made() const noexcept { return exact_made_; }
  void release_exact(ExactBlock block) noexcept { exact_free_.push_back(block); }

  void copy_exact(ExactBlock to, ExactBlock from, StreamView stream);
  // The values of `block` in host memory, and back.
  std::vector<std::byte> save_exact(ExactBlock block, StreamView stream) const;
  void restore_exact(ExactBlock block, std::span<const std::byte> values, StreamView stream);

  const RecordLayout& layout() const noexcept { return layout_; }
  std::uint32_t pages() const noexcept { return static_cast<std::uint32_t>(references_.size()); }
  std::uint32_t pages_free() const noexcept { return static_cast<std::uint32_t>(free_.size()); }
  // Kept, and not referred to otherwise.
  std::uint32_t pages_idle() const noexcept { return idle_; }

 private:
  PagePool(const RecordLayout& layout, std::uint32_t pages, KvMemory& memory, std::byte* records);
  std::size_t exact_bytes() const noexcept;
  Result<ExactBlock> make_exact();

  RecordLayout layout_;
  KvMemory& memory_;
  std::byte* records_;
  std::vector<std::uint32_t> references_;
  std::vector<bool> kept_;
  std::uint32_t idle_ = 0;
  std::vector<PageId> free_;
  std::size_t exact_made_ = 0;
  std::vector<ExactBlock> exact_free_;
};

}  // namespace kvtier::engine
