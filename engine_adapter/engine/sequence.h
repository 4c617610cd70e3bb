// One sequence's tokens and KV: its block table, and the exact values of the block that is still
// open. Invariant between steps: every complete block has its record, header included, in a page;
// the tokens after the last complete block have their exact K and V in open_block(); nothing else
// is kept.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine_adapter/engine/page_pool.h"
#include "kvtier/key.h"

namespace kvtier::engine {

// FP32 K and V of one block in every layer: [layer][K then V][kv_heads][block_tokens][head_dim].
class ExactBlock {
 public:
  explicit ExactBlock(const RecordLayout& layout);

  float* k(std::uint32_t layer) noexcept { return values_.data() + layer * layer_floats_; }
  float* v(std::uint32_t layer) noexcept { return k(layer) + k_floats_; }

 private:
  std::size_t k_floats_;
  std::size_t layer_floats_;
  std::vector<float> values_;
};

class Sequence {
 public:
  // `pool` outlives the sequence; `tokens_max` bounds its length.
  Sequence(PagePool& pool, const NamespaceId& ns, std::uint32_t tokens_max);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  // Tokens whose KV is held.
  std::span<const Token> tokens() const noexcept { return tokens_; }
  std::uint32_t length() const noexcept { return static_cast<std::uint32_t>(tokens_.size()); }
  std::uint32_t blocks_complete() const noexcept { return length() / layout_.block_tokens; }

  // Makes pages for the blocks of the first `tokens` tokens. What was made stays on an error.
  // Errors: no_space.
  Result<void> reserve(std::uint32_t tokens);
  // Of the reserved blocks.
  std::span<std::byte* const> records() const noexcept { return records_; }

  // Takes the first tokens.size() / block_tokens records, filled by someone else, as those of
  // `tokens` (whole blocks). The sequence is empty before.
  void adopt(std::span<const Token> tokens);
  // Forgets everything after the first `blocks` complete blocks.
  void truncate(std::uint32_t blocks) noexcept;

  // For the model, during a step that appends tokens: the block that is open before it, and where
  // the one goes that will be open after it.
  ExactBlock& open_block() noexcept { return exact_[open_]; }
  ExactBlock& next_open_block() noexcept { return exact_[1 - open_]; }
  // Per block, null where a step has not put a page: what kernels::SequenceKv points to.
  std::span<const float*> exact_k() noexcept { return exact_k_; }
  std::span<const float*> exact_v() noexcept { return exact_v_; }
  // Ends the step: KV of `tokens` is in all layers. Writes the headers of the blocks they complete.
  void append(std::span<const Token> tokens);

 private:
  void push_key(std::uint32_t block);

  PagePool& pool_;
  const RecordLayout& layout_;
  NamespaceId ns_;
  std::uint32_t tokens_max_;
  std::vector<Token> tokens_;
  std::vector<Key> keys_;  // of the complete blocks
  std::vector<PageId> pages_;
  std::vector<std::byte*> records_;
  std::array<ExactBlock, 2> exact_;
  std::size_t open_ = 0;
  std::vector<const float*> exact_k_;
  std::vector<const float*> exact_v_;
};

}  // namespace kvtier::engine
