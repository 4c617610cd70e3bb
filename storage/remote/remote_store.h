// The remote tier: records under their keys in a store that several hosts share, which is Redis or
// Valkey, alone or as a cluster, or a shared directory.
//
// The control thread submits, the store's own threads work, completions come back on the control
// thread through `post`. A key finds a record on every host: it is a digest of the namespace, the
// parent and the proof, so it needs nothing beside it.
//
// What must hold: what a read brought is served only if header, key, namespace and both checksums
// hold where no client can have written meanwhile. After its `done` nothing touches a slot.
// Everything with a deadline is answered by then, whatever the server does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/record/record.h"
#include "kvtier/deadline.h"
#include "kvtier/result.h"
#include "storage/memory/extent.h"
#include "storage/remote/remote_options.h"

namespace kvtier::storage {

struct RemoteStats {
  std::uint64_t finds = 0, keys_found = 0, keys_missed = 0;
  std::uint64_t records_read = 0, bytes_read = 0, read_failures = 0, not_found = 0;
  std::uint64_t corrupt = 0;  // values that did not hold; deleted
  std::uint64_t late = 0;     // past their deadline
  // Reads of values that hold in the store but did not in the slot where they landed.
  std::uint64_t memory_faults = 0;
  std::uint64_t records_written = 0, bytes_written = 0, write_failures = 0, writes_refused = 0;
  std::uint64_t reads_refused = 0;  // over the budget, queue full, offline
  std::uint32_t connections = 0;    // open and ready
};

// What can be done with the store: everything; finds and reads alone, where writes are refused or
// no space is left; nothing.
enum class RemoteState : std::uint8_t { online, read_only, offline };

class RemoteStore {
 public:
  // Runs a task on the control thread; callable from the store's threads at any time until close()
  // returns.
  using Post = std::function<void(std::function<void()>)>;
  template <class T>
  using Done = std::function<void(Result<T>)>;

  virtual ~RemoteStore() = default;

  // Makes an extent known as the home of buffers for write() and read(), and forgets it, as
  // RecordStore does: the memory stays where it is until `done`, when nothing touches it any more;
  // only then may it be registered again. Errors: invalid (registered already, memory that the
  // daemon cannot address), unavailable (closed).
  virtual Result<void> register_extent(const Extent& extent) = 0;
  virtual void forget_extent(ExtentId extent, std::function<void()> done) = 0;

  // How many of the leading keys are there, asked in one go. A key whose server cannot be asked is
  // not there. Errors now: unavailable (offline), no_space (queue full); later: unavailable,
  // deadline.
  virtual Result<void> find(std::vector<Key> keys, Deadline deadline, Done<std::size_t> done) = 0;

  struct Read {
    NamespaceId ns;
    Key key;
    ExtentId extent;  // where to: this slot of this extent
    std::uint32_t slot = 0;
    std::uint64_t record_bytes = 0;
    Deadline deadline;
  };
  // Fetches a record into the slot and verifies it: header, key, namespace, both checksums. What
  // does not hold in the slot, which clients can write to, is fetched again into memory of the
  // store's own; what holds there is copied to the slot, and good. After `done` nothing touches the
  // slot. Errors now: no_space (queue full), unavailable (offline, over the budget of reads);
  // later: not_found, corrupt (the value is deleted there), io, unavailable, deadline, invalid (the
  // extent is not registered, or the record does not fit its slot).
  virtual Result<void> read(const Read& read, Done<void> done) = 0;

  struct Write {
    BlockIdentity identity;
    ExtentId extent;  // the record's bytes: this slot of this extent, unchanged until done
    std::uint32_t slot = 0;
    std::uint64_t record_bytes = 0;
  };
  // Stores the record under its key, with checksums as RecordStore::write() sets them, and era 0.
  // The slot itself is not written to, so a disk may write the same record meanwhile. Errors now:
  // no_space (queue full, over the budget of writes), unavailable (read-only, offline); later: io,
  // corrupt, no_space, unavailable, invalid.
  virtual Result<void> write(const Write& write, Done<void> done) = 0;

  // Best effort, behind what is under way of these keys: an erase of what a later write() stores
  // does not come after it.
  virtual void erase(std::vector<Key> keys) = 0;

  // Health. The store probes by itself and comes back without being asked. `changed` runs on the
  // control thread; `why` says what failed and the mend, also where the store is online and a
  // server of its cluster is not, and is empty when all is well. A store begins offline, and says
  // what it is as soon as it knows. Set before the first submission.
  using Changed = std::function<void(RemoteState state, const std::string& why)>;
  virtual void on_health(Changed changed) = 0;

  virtual RemoteStats stats() const = 0;

  // Fails everything in flight and ends the threads; one that hangs in a call on a directory is
  // left to end by itself, and touches no slot. No completion is posted after it.
  virtual void close() = 0;
};

// Starts a store; it connects by itself, and need not be there. Errors: invalid (settings; a file
// that cannot be read or has not the form it must have; says which, and the mend).
Result<std::unique_ptr<RemoteStore>> open_remote_store(const RemoteOptions& options,
                                                       RemoteStore::Post post);

}  // namespace kvtier::storage
