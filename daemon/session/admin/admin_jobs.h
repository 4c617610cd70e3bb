// Admin commands over many blocks: drop, pin, unpin, invalidate. Each goes through its blocks in
// steps, between which the control thread serves clients. Owned by the control thread.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "daemon/cache/block_cache.h"

namespace kvtier::daemon {

class AdminJobs {
 public:
  template <class T>
  using Done = std::function<void(const T&)>;
  using Removed = BlockCache::Removed;
  struct Pinned {
    std::uint64_t blocks = 0;  // pinned, or pinned again; these counts are once a tier
    std::uint64_t bytes = 0;
    std::uint64_t no_room = 0;
  };
  struct Invalidated {
    std::vector<NamespaceId> namespaces;
    Removed removed;
    std::uint32_t sessions = 0;
    std::vector<std::string> disks_offline;
    Result<void> flushed;  // that nothing of it comes back after a power loss
  };

  // Runs a task in a later turn; tasks run in the order in which they came.
  using Later = std::function<void(std::function<void()>)>;
  AdminJobs(BlockCache& cache, Later later) : cache_(cache), later_(std::move(later)) {}

  // Each calls `done` once, perhaps before it returns. Errors now: not_found, invalid, no_space
  // (kAdminJobsMax under way); of drop() also refused (a disk tier that is not known yet).
  Result<void> drop(Selection selection, TierSet tiers, bool force, Done<Removed> done);
  Result<void> pin(Selection selection, TierSet tiers, Pins::Time until, Done<Pinned> done);
  Result<void> unpin(Selection selection, TierSet tiers, Done<std::uint64_t> done);
  struct Pushed {
    std::uint64_t blocks = 0;  // that are in the remote tier now, as far as is known
    std::uint64_t left = 0;    // that are not
  };
  // To the remote tier, what is in host memory: all, or what came or was used within so many
  // seconds (0: all). Ends when all are there or given up, at the latest after kPushWaitMax.
  Result<void> push(Selection selection, std::uint32_t used_within_s, Done<Pushed> done);
  // Every namespace that matches is closed at once, those of whom only the id is known too, since
  // they may be of that model; then their blocks go.
  Result<void> invalidate(NamespaceFilter filter, Done<Invalidated> done);

  // Ends the pins whose time has come.
  void end_pins(Pins::Time now);

  // A namespace was closed. Returns how many sessions have it open and were told.
  std::function<std::uint32_t(std::uint16_t ns)> on_closed;
  // So was what it matches of namespaces that nobody has made yet and readers wait for. As above.
  std::function<std::uint32_t(const NamespaceFilter&)> on_invalidated;

 private:
  using Step = std::function<bool()>;  // false: that was the last
  using Erasure = storage::Erasure;
  Result<SelectionWalk> begin(Selection selection);
  void run(Step step);
  void run_while(const std::shared_ptr<Step>& step);
  void finish(Invalidated&& so_far, const Done<Invalidated>& done);
  struct Push;
  void push_some(const std::shared_ptr<Push>& push);
  void end_push(const Push& push);
  std::vector<Erasure> all_of(const NamespaceFilter& filter) const;
  std::vector<Erasure> named(std::span<const BlockId> blocks) const;
  void erase_what_went(std::vector<Erasure> erasures, TierSet tiers, bool force);

  BlockCache& cache_;
  Later later_;
  std::uint32_t running_ = 0;
  bool ending_pins_ = false;
};

}  // namespace kvtier::daemon
