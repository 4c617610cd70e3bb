// A checked copy of an engine's Pages: which memory belongs to which block and layer, and moving
// one block or one layer between it and records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvtier/client.h"

namespace kvtier::transfer {

class PageTable {
 public:
  PageTable() = default;
  // `on_gpu`: the pages are in a GPU's memory; elsewhere there are no streams. Errors: invalid,
  // naming what is wrong.
  static Result<PageTable> of(const Pages& pages, const RecordLayout& layout, StreamView stream,
                              bool on_gpu);

  std::uint32_t blocks() const noexcept { return blocks_; }
  bool of_records() const noexcept { return !records_.empty(); }
  bool in_place() const noexcept { return in_place_ && of_records(); }
  DType type() const noexcept { return type_; }
  std::byte* record(std::uint32_t block) const noexcept { return records_[block]; }
  void* k(std::uint32_t layer, std::uint32_t block) const noexcept {
    return k_[std::size_t{layer} * blocks_ + block];
  }
  void* v(std::uint32_t layer, std::uint32_t block) const noexcept {
    return v_[std::size_t{layer} * blocks_ + block];
  }

  // The rest is for pages in host memory.

  // records[i] -> block i, layer `layer` of all of them, past those that are null. Layer 0 brings
  // the header of record pages with it.
  void load_layer(std::uint32_t layer, std::span<std::byte* const> records) const noexcept;
  // Block `block` -> `record`: payload and scales; its header is the caller's business.
  void store(std::uint32_t block, std::byte* record) const noexcept;

 private:
  RecordLayout layout_;
  std::uint32_t blocks_ = 0;
  std::vector<std::byte*> records_;
  std::vector<void*> k_;
  std::vector<void*> v_;
  DType type_ = DType::f32;
  bool in_place_ = false;
};

}  // namespace kvtier::transfer
