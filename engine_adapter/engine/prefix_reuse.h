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

// How an engine takes blocks.
struct ReuseOptions {
  Deadline deadline;
  Stream stream{};        // what the copies are ordered on, and what waits for them
  bool in_place = false;  // blocks of the device tier are attended to where they are
};

// The leading blocks of a prompt on their way from the cache into a sequence. In the order of use:
// the constructor; blocks(); wait_layer() for each layer; finish() after the forward pass that used
// them. Blocks that are attended to in place stay leased: after each step, once its result is
// there, intact() says whether it was computed from what the cache had promised.
class PrefixReuse {
 public:
  // Looks `prompt` up and starts the copies into pages that it reserves in `sequence`, which is
  // empty and outlives this. `cache` may be null.
  PrefixReuse(Cache* cache, std::span<const Token> prompt, Sequence& sequence,
              const ReuseOptions& options);

  std::uint32_t blocks() const noexcept { return blocks_; }
  void wait_layer(std::uint32_t layer);
  // Ends the copies. Returns the leading blocks that held to the end; with fewer than blocks(),
  // what was computed from them is worth nothing. Ends the lease, too, unless blocks are attended
  // to in place.
  std::uint32_t finish();
  // Of the first `count` blocks, how many were leased from each tier.
  std::array<std::uint32_t, kTiers> tiers(std::uint32_t count) const noexcept;

  // Whether blocks that the sequence uses lie in the cache's memory.
  bool in_place() const noexcept { return first_in_place_ < blocks_; }
  // Whether those are still what they were.
  bool intact() const noexcept { return !in_place() || (lease_ && lease_->held()); }
  // Lets go of the blocks in place. Returns the leading blocks that the sequence has itself.
  std::uint32_t let_go() noexcept;

 private:
  void start(Cache& cache, std::span<const Token> prompt, Sequence& sequence);

  ReuseOptions options_;
  std::optional<Lease> lease_;
  std::optional<Load> load_;  // after the lease, so that the copies end before it does
  std::vector<Tier> sources_;
  std::uint32_t blocks_ = 0;
  std::uint32_t first_in_place_ = ~0U;
};

// Offers each block of one sequence to the cache once, when it is complete in all layers.
class BlockOffers {
 public:
  // `cache` may be null; `sequence` outlives this.
  // `stream` is what the blocks' computation is ordered on.
  BlockOffers(Cache* cache, const Sequence& sequence, Stream stream = {})
      : cache_(cache), sequence_(sequence), stream_(stream) {}
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
  Stream stream_;
  std::uint32_t offered_ = 0;
  std::vector<WriteBack> writes_;
};

}  // namespace kvtier::engine
