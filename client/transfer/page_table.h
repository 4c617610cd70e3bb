// A checked copy of an engine's Pages: which memory belongs to which block and layer, and moving
// one block or one layer between it and records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/session/namespace_entry.h"
#include "kernels/kernel_table.h"
#include "kvtier/client.h"

namespace kvtier::transfer {

class PageTable {
 public:
  PageTable() = default;
  // `on_gpu`: the pages are in a GPU's memory; elsewhere there are no streams. `ns` outlives the
  // table. Errors: invalid, naming what is wrong.
  static Result<PageTable> of(const Pages& pages, const session::NamespaceEntry& ns,
                              StreamView stream, bool on_gpu);
  // How many blocks `pages` names, whether or not they are good.
  static std::uint32_t blocks_of(const Pages& pages, const session::NamespaceEntry& ns) noexcept;

  std::uint32_t blocks() const noexcept { return blocks_; }
  bool of_records() const noexcept { return !records_.empty(); }
  bool in_place() const noexcept { return in_place_ && of_records(); }
  DType type() const noexcept { return type_; }
  std::byte* record(std::uint32_t block) const noexcept { return records_[block]; }

  // Pages of a pool; else every page of a side has a pointer of its own.
  bool of_pool() const noexcept { return !pool_layers_.empty(); }
  const PoolLayer& pool_layer(std::uint32_t layer) const noexcept { return pool_layers_[layer]; }
  std::uint32_t page_tokens() const noexcept { return page_tokens_; }
  std::uint32_t pages_of_block() const noexcept { return pages_of_block_; }
  // Of block `block`: pages_of_block().
  std::span<const std::uint32_t> numbers(std::uint32_t block) const noexcept {
    return std::span(numbers_).subspan(std::size_t{block} * pages_of_block_, pages_of_block_);
  }

  // Where a page is for which there is a pointer: [kv_heads][block_tokens][head_dim].
  void* k(std::uint32_t layer, std::uint32_t block) const noexcept {
    return k_[std::size_t{layer} * blocks_ + block];
  }
  void* v(std::uint32_t layer, std::uint32_t block) const noexcept {
    return v_.empty() ? nullptr : v_[std::size_t{layer} * blocks_ + block];
  }
  // The largest power of two, at most 16, at whose multiples all of these pages, or all pages of
  // records, begin.
  std::uint32_t pointer_alignment() const noexcept;

  // The rest is for pages in host memory.

  // records[i] -> block i, layer `layer` of all of them, past those that are null. Layer 0 brings
  // the header of record pages with it.
  void load_layer(std::uint32_t layer, std::span<std::byte* const> records) const noexcept;
  // Block `block` -> `record`: payload and scales; its header is the caller's business.
  void store(std::uint32_t block, std::byte* record) const noexcept;
  // The same of one layer.
  void store_layer(std::uint32_t block, std::uint32_t layer, std::byte* record) const noexcept;

 private:
  Result<void> take_records(const Pages& pages);
  Result<void> take_pool(const Pages& pages);
  Result<void> take_pointers(const Pages& pages);
  kernels::PageSide side(std::uint32_t layer, bool v, std::uint32_t first_block) const noexcept;
  kernels::BlockLayerArgs args(std::uint32_t layer, std::uint32_t first_block,
                               std::span<std::byte* const> records) const noexcept;

  const session::NamespaceEntry* ns_ = nullptr;
  std::uint32_t blocks_ = 0;
  std::vector<std::byte*> records_;
  bool in_place_ = false;

  DType type_ = DType::f32;
  std::uint32_t page_tokens_ = 0;
  std::uint32_t pages_of_block_ = 1;
  std::vector<PoolLayer> pool_layers_;
  std::vector<std::uint32_t> numbers_;
  std::vector<void*> k_;
  std::vector<void*> v_;
};

}  // namespace kvtier::transfer
