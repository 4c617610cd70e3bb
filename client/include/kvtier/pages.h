// What a load or a write-back names of the engine's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvtier/dtype.h"
#include "kvtier/page_pool.h"

namespace kvtier {

// The engine's memory for `blocks` blocks, owned by the engine and untouched by it while a load or
// a write-back that names it is in progress. Exactly one of the three forms:
struct Pages {
  // Records as stored (layout().record_bytes each), for an engine that attends to records directly.
  std::span<std::byte* const> records{};
  // With records, in a load: a block that lies in the device tier of the client's own GPU is not
  // copied; Load::records() says where it is.
  bool in_place = false;
  // Or pages of a pool by their numbers, converted on the way: one after the other those of a
  // block, then of the next. A block has block_tokens / pool->page_tokens() of them.
  const PagePool* pool = nullptr;
  std::span<const std::uint32_t> numbers{};
  // Or K and V pages, converted on the way: [layer * blocks + block] ->
  // [kv_heads][block_tokens][head_dim], of `type` (f32, f16 or bf16). For namespaces whose layers
  // are alike; without V v_pages is empty.
  std::span<void* const> k_pages{};
  std::span<void* const> v_pages{};
  DType type = DType::f32;
};

// Blocks first, first + 1, ..., end - 1 of a prefix.
struct BlockRange {
  std::uint32_t first = 0;
  std::uint32_t end = 0;
};

}  // namespace kvtier
