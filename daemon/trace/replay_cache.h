// The catalogue that a trace is replayed through, and what a daemon does to it for each prompt: in
// BlockCache's order, but at once, for nothing is read, written or copied.
#pragma once

#include <memory>
#include <vector>

#include "daemon/cache/catalogue/catalogue.h"
#include "daemon/cache/policy/write_budget.h"
#include "daemon/trace/replay.h"

namespace kvtier::daemon {

class ReplayCache {
 public:
  // Errors: invalid (a size that the index cannot have), no_space.
  static Result<std::unique_ptr<ReplayCache>> create(const Trace& trace,
                                                     const ReplayOptions& options);

  void request(const TracedRequest& request);
  const Replayed& replayed() const noexcept { return replayed_; }
  const Catalogue& catalogue() const noexcept { return catalogue_; }

 private:
  ReplayCache(const ReplayOptions& options, DirectoryWriter directory, std::uint32_t blocks_max);
  void set_keys(const TracedRequest& request);
  std::size_t lease(const Prompt& prompt);
  void commit(std::size_t index, const Prompt& prompt);
  void release(std::size_t known);
  bool make_room(Tier tier);
  void put(BlockId id, Tier tier, const Key& parent);
  void write(BlockId id, const Key& parent);
  bool is_worth_a_write(BlockId id, const Key& parent);
  Key parent_of(std::size_t index) const { return index == 0 ? Key{} : keys_[index - 1]; }

  ReplayOptions options_;
  DirectoryWriter directory_;
  Catalogue catalogue_;
  NamespaceId ns_id_;
  std::uint16_t ns_ = 0;
  std::uint32_t block_tokens_ = 0;
  std::uint32_t second_ = 0;
  Replayed replayed_;
  WriteBudget budget_;  // of blocks
  // Of the prompt.
  std::vector<Key> keys_;
  std::vector<BlockId> ids_;
};

}  // namespace kvtier::daemon
