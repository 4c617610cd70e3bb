// The catalogue that a trace is replayed through, and what a daemon does to it for each prompt: in
// BlockCache's order, but at once, for nothing is read, written or copied.
#pragma once

#include <functional>
#include <memory>
#include <span>
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
  // The same of a request whose keys are known, at another time: caches of one trace have equal
  // keys.
  void request(std::span<const Key> keys, std::uint32_t output_tokens, std::uint64_t at_ms);
  // The keys of a prompt. What two copies of a trace ask for has nothing in common.
  void set_keys(const TracedRequest& request, std::uint64_t copy, std::vector<Key>& keys) const;
  // Told of every block that comes to be in a tier, and of each that is in none any more.
  void on_block(std::function<void(const Key&, bool there)> told);
  const Replayed& replayed() const noexcept { return replayed_; }
  const Catalogue& catalogue() const noexcept { return catalogue_; }

 private:
  ReplayCache(const ReplayOptions& options, DirectoryWriter directory, std::uint32_t blocks_max);
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
  std::vector<Key> own_keys_;
  std::span<const Key> keys_;
  std::vector<BlockId> ids_;
};

}  // namespace kvtier::daemon
