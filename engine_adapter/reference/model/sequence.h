// One sequence's tokens and KV: its block table, and the exact values of the block that is still
// open. Invariant between steps: every complete block has its record, header included, in a page
// or where use_record() said; the tokens after the last complete block have their exact K and V in
// open_block(); nothing else is kept. Records and exact pages lie in the pool's memory, which the
// host may not be able to read.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine_adapter/reference/model/page_pool.h"
#include "kvtier/key.h"
#include "kvtier/pages.h"

namespace kvtier::engine {

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
  // Block `block`, reserved, is not in its page but at `record`, which the caller keeps there for
  // as long as the sequence has the block. The page goes back to the pool.
  void use_record(std::uint32_t block, std::byte* record);

  // `page`, which it refers to from now on, is that of the block after the last reserved one:
  // filled, or being filled, by someone else.
  void share(PageId page);
  // The page of reserved block `block`; none where use_record() said so.
  std::optional<PageId> page(std::uint32_t block) const noexcept { return pages_[block]; }
  // Sees to it that block `block`, reserved and not complete, has a page that nobody else refers
  // to. Errors: no_space.
  Result<void> make_own(std::uint32_t block);

  // Takes the record after the complete blocks, filled by someone else, as that of `tokens`, a
  // whole block whose key is `key`. No block is open.
  void adopt(std::span<const Token> tokens, const Key& key);
  // Forgets everything after the first `blocks` complete blocks.
  void truncate(std::uint32_t blocks) noexcept;
  // Takes back what was appended after the first `tokens` tokens: fewer tokens than a block has. A
  // block that is open again has its exact values still, so it was not filled by one step alone.
  // Pages behind it go back to the pool.
  void take_back(std::uint32_t tokens) noexcept;

  // Lets go of the pages of these complete blocks, which no later token attends to. It is never cut
  // back to before them, but to nothing.
  void forget(BlockRange blocks) noexcept;

  // Becomes, empty as it is, what `other` is; complete blocks are shared, the open one is copied on
  // `stream`. Errors: no_space.
  Result<void> copy_from(const Sequence& other, StreamView stream);
  // The open block's tokens and exact values come back into a sequence that has none open.
  // Errors: no_space.
  Result<void> restore_open(std::span<const Token> tokens, std::span<const std::byte> values,
                            StreamView stream);

  // For the model, during a step that appends tokens: the block that is open before it, and where
  // the one goes that will be open after it. Good once something is reserved.
  ExactBlock open_block() const noexcept { return exact_[open_]; }
  ExactBlock next_open_block() const noexcept { return exact_[1 - open_]; }
  // Appends `tokens`, whose KV the step at hand puts in all layers, and makes the keys of the
  // blocks they complete. The model brings write_header() of those into their records.
  void append(std::span<const Token> tokens);
  // Of a complete block; that of the one before it is its parent.
  const Key& key(std::uint32_t block) const noexcept { return keys_[block]; }
  // Header and proof of a complete block, into host memory of layout().header_bytes at least.
  void write_header(std::uint32_t block, std::span<std::byte> to) const;

 private:
  Result<void> make_exact();
  void push_key(std::uint32_t block);
  void release_pages(std::uint32_t blocks) noexcept;

  PagePool& pool_;
  const RecordLayout& layout_;
  NamespaceId ns_;
  std::uint32_t tokens_max_;
  std::vector<Token> tokens_;
  std::vector<Key> keys_;                     // of the complete blocks
  std::vector<std::optional<PageId>> pages_;  // none where use_record() said so
  std::vector<std::byte*> records_;
  std::array<ExactBlock, 2> exact_;
  std::size_t open_ = 0;
  std::uint32_t forgotten_end_ = 0;  // of the blocks that were forgotten
};

}  // namespace kvtier::engine
