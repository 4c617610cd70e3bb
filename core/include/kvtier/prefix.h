// A sequence as a namespace sees it: whole blocks, each with its key and its proof.
//
// A Prefix grows with its sequence and hashes no block twice. It is a value: copy it where a
// sequence branches. Not for two threads at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kvtier/key.h"
#include "kvtier/namespace.h"
#include "kvtier/result.h"

namespace kvtier {

// Byte strings side by side: what proves blocks that follow one another (docs/format.md).
class Proofs {
 public:
  std::size_t size() const noexcept { return ends_.size(); }
  std::span<const std::byte> operator[](std::size_t block) const noexcept {
    const std::size_t begin = block == 0 ? 0 : ends_[block - 1];
    return std::span(bytes_).subspan(begin, ends_[block] - begin);
  }
  void add(std::span<const std::byte> proof);
  // More bytes of the last one, which is there.
  void extend(std::span<const std::byte> bytes);
  // Several at once, of `each` bytes.
  void add_all(std::span<const std::byte> proofs, std::size_t each);
  // Those of blocks first .. end - 1.
  Proofs slice(std::size_t first, std::size_t end) const;
  // The same of one that is of no use any more: nothing is copied where they are all.
  Proofs take(std::size_t first, std::size_t end) &&;
  void truncate(std::size_t blocks) noexcept;

 private:
  std::vector<std::byte> bytes_;
  std::vector<std::size_t> ends_;
};

class Prefix {
 public:
  // Of no tokens. `ns` has passed validate().
  explicit Prefix(const Namespace& ns);
  Prefix(const NamespaceId& id, const Namespace& ns);

  // Tokens behind those there are; blocks are complete as they fill. In a namespace of digests the
  // tokens are of no meaning, and append_digest() is what makes blocks. Errors: invalid.
  Result<void> append(std::span<const Token> tokens);
  // The next block, by the engine's own digest of ns.digest_bytes. Errors: invalid.
  Result<void> append_digest(std::span<const std::byte> digest);

  // Tokens first .. end - 1 stand for more than themselves: `bytes` (an image's digest, an adapter,
  // a salt) become part of key and proof of every block that has one of them, together with where
  // in the block they begin. Before the first of those blocks is complete. In a namespace of
  // digests a block is one token here. Errors: invalid, where it comes too late, is empty, or a
  // block would have more than ns.extra_bytes_max of it.
  Result<void> cover(std::size_t first, std::size_t end, std::span<const std::byte> bytes);

  // So many tokens are to be generated behind it, as far as the engine can say; 0, as at first: not
  // told. It is told with the blocks that are stored from then on, and says how likely they are to
  // be used again (docs/adr/0047).
  void expect_answer(std::uint32_t tokens) noexcept { answer_tokens_ = tokens; }
  std::uint32_t answer_tokens() const noexcept { return answer_tokens_; }

  // Takes what is behind the first `tokens` (of digests: blocks) away again, what covers it too.
  void truncate(std::size_t tokens);

  const NamespaceId& ns() const noexcept { return id_; }
  // So many were appended; of digests: blocks.
  std::size_t tokens() const noexcept { return tokens_; }
  // Whole blocks.
  std::uint32_t blocks() const noexcept { return static_cast<std::uint32_t>(keys_.size()); }
  // How many of them may come from a cache: never the one that holds the last token, whose logits
  // must be computed. Of digests: all, since only the engine knows its tokens.
  std::uint32_t blocks_matchable() const noexcept;

  std::span<const Key> keys() const noexcept { return keys_; }
  // The zero key before the first block.
  Key parent(std::uint32_t block) const noexcept { return block == 0 ? Key{} : keys_[block - 1]; }
  std::span<const std::byte> proof(std::uint32_t block) const noexcept { return proofs_[block]; }
  const Proofs& proofs() const noexcept { return proofs_; }
  // Of one that is of no use any more.
  Proofs take_proofs() && noexcept { return std::move(proofs_); }

 private:
  struct Cover {
    std::size_t first = 0;
    std::size_t end = 0;
    std::vector<std::byte> bytes;
  };

  std::size_t tokens_of_block() const noexcept { return digest_bytes_ != 0 ? 1 : block_tokens_; }
  void append_whole(std::span<const Token> tokens);
  void complete(std::uint32_t count);
  void append_extra(std::vector<std::byte>& proof, std::size_t block) const;
  std::size_t extra_of(std::size_t block) const noexcept;

  NamespaceId id_;
  std::uint32_t block_tokens_ = 0;
  std::uint32_t extra_bytes_max_ = 0;
  std::uint32_t digest_bytes_ = 0;
  std::uint32_t answer_tokens_ = 0;
  std::size_t tokens_ = 0;
  std::vector<Token> open_;        // of the block that is not complete
  std::vector<std::byte> digest_;  // of the last block
  std::vector<Cover> covers_;
  std::vector<Key> keys_;
  Proofs proofs_;
};

}  // namespace kvtier
