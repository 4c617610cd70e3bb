// The remote tier as the rest of the cache sees it: the records that are read from it, and in front
// of its parts, each of which has its own header: what is known to be there (RemoteKnowledge), what
// is asked before a lease (RemoteLookups), and what is written (RemoteWrites). The I/O is the
// RemoteStore's. Owned by the control thread.
//
// It is never needed: without a store, or with one that is offline, everything here does nothing at
// once. What a read does not find is known no more; what cannot be reached now stays known.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "daemon/cache/remote/remote_lookups.h"
#include "daemon/cache/remote/remote_writes.h"

namespace kvtier::daemon {

class RemoteTier {
 public:
  using Options = RemoteTierOptions;
  // `store` is null where there is no remote tier, and else outlives this, as all others do.
  RemoteTier(Options options, storage::RemoteStore* store, Catalogue& catalogue);
  RemoteTier(const RemoteTier&) = delete;

  bool configured() const noexcept { return store_ != nullptr; }
  storage::RemoteState state() const noexcept { return knowledge_.state(); }
  // Whether leases can be served from it now.
  bool readable() const noexcept { return configured() && knowledge_.readable(); }
  const char* state_name() const noexcept;
  // What is wrong, and the mend; empty where all is well.
  const std::string& why() const noexcept { return why_; }

  // Reads the block's record into `to`, a slot of the host tier, and verifies it. Errors now and
  // later: as RemoteStore::read(). After one, done() with it is the caller's to read_failed().
  Result<void> read(BlockId id, Place to, std::function<void(Result<void>)> done);
  // A read has failed: what is not there, or did not hold, is known no more. Whether the record
  // did not hold.
  bool read_failed(BlockId id, const Error& why);

  bool ask(const RemoteLookups::Prompt& prompt, std::function<void()> done) {
    return lookups_.ask(prompt, std::move(done));
  }
  // It is not known any more to be there; nothing is erased.
  void forget(BlockId id) { knowledge_.forget(id); }
  // These go from there too, best effort, whether they are known to be there or not.
  void erase(std::span<const BlockId> ids);
  // None of it is looked for any more, but for what this host writes there later.
  void bar(std::span<const storage::Erasure> what) { knowledge_.bars().add(what); }

  std::size_t lookups_under_way() const noexcept { return lookups_.under_way(); }
  RemoteWrites& writes() noexcept { return writes_; }
  const RemoteWrites& writes() const noexcept { return writes_; }
  RemoteKnowledge& knowledge() noexcept { return knowledge_; }
  const RemoteCounts& counts() const noexcept { return counts_; }
  storage::RemoteStats stats() const {
    return store_ == nullptr ? storage::RemoteStats{} : store_->stats();
  }
  void set_admission(RemoteAdmission admission) noexcept { options_.admission = admission; }
  void set_times(std::chrono::milliseconds lookup, std::chrono::milliseconds read) noexcept {
    options_.lookup_timeout = lookup;
    options_.read_timeout = read;
  }
  // About once a second.
  void pass_time() { knowledge_.trim(); }

  Later later;
  daemon::After after;

 private:
  Options options_;
  storage::RemoteStore* store_;
  Catalogue& catalogue_;
  RemoteCounts counts_;
  RemoteKnowledge knowledge_;
  RemoteLookups lookups_;
  RemoteWrites writes_;
  std::string why_;
};

}  // namespace kvtier::daemon
