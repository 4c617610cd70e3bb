// An engine's KV memory, described once; loads and stores then name pages by their numbers.
//
// All layouts in use are strides: K and V apart or side by side, token-major (NHD) or head-major
// (HND), one tensor a layer or all layers in one block, pages of one token, latent pages without V.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvtier/dtype.h"
#include "kvtier/namespace.h"
#include "kvtier/result.h"

namespace kvtier {

// K or V of one layer. Strides are in bytes; the numbers of one head of one token lie side by side.
struct PoolSide {
  std::byte* base = nullptr;    // page 0, its first token, head 0; null: the layer has no such side
  std::size_t bytes = 0;        // of memory from `base` on that belongs to the pool
  std::size_t page_stride = 0;  // from a page to the next
  // Formats of numbers.
  std::size_t token_stride = 0;
  std::size_t head_stride = 0;  // of no meaning with one head
  // Format raw: a page is `rows` pieces of `row_bytes`, each `row_stride` behind the one before.
  std::uint32_t rows = 0;
  std::size_t row_bytes = 0;
  std::size_t row_stride = 0;  // of no meaning with one row

  friend bool operator==(const PoolSide&, const PoolSide&) = default;
};

struct PoolLayer {
  PoolSide k;
  PoolSide v;

  friend bool operator==(const PoolLayer&, const PoolLayer&) = default;
};

struct PoolShape {
  DType type = DType::bf16;       // f32, f16 or bf16; of no meaning in format raw
  std::uint32_t pages = 0;        // numbers go from 0 to this
  std::uint32_t page_tokens = 0;  // divides the namespace's block_tokens; 0: a block
  std::vector<PoolLayer> layers;  // one for each of the namespace
};

// A pool that fits a namespace. A value; it owns none of the memory that it names, which the engine
// keeps as long as loads and write-backs name it.
class PagePool {
 public:
  // Errors: invalid, naming layer and side: a number of layers or a size that the namespace does
  // not have, a base that is not aligned to its elements, strides by which pages, tokens or heads
  // overlap, memory that ends before the last page does, layers that overlap.
  static Result<PagePool> of(const Namespace& ns, PoolShape shape);

  const NamespaceId& ns() const noexcept { return id_; }
  DType type() const noexcept { return shape_.type; }
  std::uint32_t pages() const noexcept { return shape_.pages; }
  std::uint32_t page_tokens() const noexcept { return shape_.page_tokens; }
  std::uint32_t pages_of_block() const noexcept { return pages_of_block_; }
  const std::vector<PoolLayer>& layers() const noexcept { return shape_.layers; }

 private:
  PagePool(const NamespaceId& id, PoolShape shape, std::uint32_t pages_of_block)
      : id_(id), shape_(std::move(shape)), pages_of_block_(pages_of_block) {}

  NamespaceId id_;
  PoolShape shape_;
  std::uint32_t pages_of_block_ = 1;
};

}  // namespace kvtier
