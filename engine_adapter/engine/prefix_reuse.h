// What one request takes from the cache and gives to it. Whatever the daemon does, or fails to do,
// ends in fewer blocks, never in an error.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine_adapter/engine/sequence.h"
#include "kvtier/client.h"

namespace kvtier::engine {

// The leading blocks of a prompt on their way from the cache into a sequence's pages. In the order
// of use: the constructor; blocks(); wait_layer() for each layer; finish() after the forward pass
// that used them.
class PrefixReuse {
 public:
  // Looks `prompt` up and starts the copies into pages that it reserves in `sequence`, which is
  // empty and outlives this. `cache` may be null.
  PrefixReuse(Cache* cache, std::span<const Token> prompt, Sequence& sequence, Deadline deadline);

  std::uint32_t blocks() const noexcept { return blocks_; }
  void wait_layer(std::uint32_t layer);
  // Ends the load. Returns the leading blocks that held to the end; with fewer than blocks(), what
  // was computed from them is worth nothing.
  std::uint32_t finish();
  // Of the first `count` blocks, how many were leased from each tier.
  std::array<std::uint32_t, kTiers> tiers(std::uint32_t count) const noexcept;

 private:
  void start(Cache& cache, std::span<const Token> prompt, Sequence& sequence, Deadline deadline);

  std::optional<Lease> lease_;
  std::optional<Load> load_;  // after the lease, so that the copies end before it does
  std::vector<Tier> sources_;
  std::uint32_t blocks_ = 0;
};

// Offers each block of one sequence to the cache once, when it is complete in all layers.
class BlockOffers {
 public:
  // `cache` may be null; `sequence` outlives this.
  BlockOffers(Cache* cache, const Sequence& sequence) : cache_(cache), sequence_(sequence) {}
  ~BlockOffers() { wait(); }
  BlockOffers(const BlockOffers&) = delete;
  BlockOffers& operator=(const BlockOffers&) = delete;

  // The first `blocks` blocks came from the cache.
  void skip(std::uint32_t blocks) noexcept { offered_ = blocks; }
  void offer_new();
  // Waits until no page is read any more.
  void wait() noexcept;

 private:
  Cache* cache_;
  const Sequence& sequence_;
  std::uint32_t offered_ = 0;
  std::vector<WriteBack> writes_;
};

}  // namespace kvtier::engine
