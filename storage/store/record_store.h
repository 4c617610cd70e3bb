// The disk tier: records in slots of segment files, their index in RocksDB, the I/O through
// io_uring.
//
// Two parts with one owner each. DiskSpace (disk_space.h) is bookkeeping on the daemon's control
// thread: which slot of which segment is free. RecordStore is the I/O: the control thread submits,
// the store's own thread works, completions come back on the control thread through `post`.
//
// Order that must hold: a record's bytes are written before its index entry; an index entry is
// removed before its slot is written again. A read is good only if header, key, namespace and both
// checksums hold, where no client can have written meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/record/record.h"
#include "kvtier/result.h"
#include "storage/index/store_options.h"
#include "storage/memory/extent.h"

namespace kvtier::storage {

class BlockDevice;

struct RecordStoreStats {
  std::uint64_t records_read = 0, bytes_read = 0, read_failures = 0, checksum_failures = 0;
  // Reads of records that hold on disk but did not in the slot where they landed.
  std::uint64_t memory_faults = 0;
  std::uint64_t records_written = 0, bytes_written = 0, write_failures = 0, writes_refused = 0;
  std::uint64_t records_given_up = 0;  // that a failed sync left in doubt
  std::uint64_t file_bytes = 0;        // allocated under the directory
  std::uint64_t index_memory_bytes = 0;
};

class RecordStore {
 public:
  // Runs a task on the control thread; callable from the store's thread at any time until close()
  // returns.
  using Post = std::function<void(std::function<void()>)>;
  template <class T>
  using Done = std::function<void(Result<T>)>;

  virtual ~RecordStore() = default;

  // Calls `visit` for every indexed record, in no order. Once, before anything is submitted. One
  // that comes late (late_store.h) has none at first; before it is online the first time it has
  // records to_recover(), a piece a call, newest first.
  virtual Result<void> recover(const std::function<void(const DiskEntry&)>& visit) = 0;
  virtual bool to_recover() const noexcept { return false; }
  // What recover() called for is taken over: the index merges its tables from now on, with which a
  // start does not share the processors and the disk. Once, after recover(). One that comes late
  // does so by itself.
  virtual void recovered() {}
  // Whether it is late and not there yet, so that nobody knows what it holds.
  virtual bool unknown() const noexcept { return false; }

  // Makes an extent known as the home of buffers for write() and read(), and forgets it. Both
  // return at once. The ring pins all of the extent's memory on the store's thread, which takes a
  // second a GiB or more; the memory stays where it is until `done`, when the last I/O on it has
  // completed and the ring has let go of it; only then may it be registered again. Errors: invalid
  // (registered already, too many), unavailable (closed).
  virtual Result<void> register_extent(const Extent& extent) = 0;
  virtual void forget_extent(ExtentId extent, std::function<void()> done) = 0;

  struct Write {
    BlockIdentity identity;
    std::uint64_t last_access = 0;
    DiskLocation to;
    std::uint64_t slot_bytes = 0;  // of the segment `to` lies in; the segment is made on first use
    ExtentId extent;  // the record's bytes: this slot of this extent, unchanged until done
    std::uint32_t slot = 0;
    std::uint64_t record_bytes = 0;
    // The record that `to` held until now: its index entry goes first. It has not been written
    // anew since; it may be from now on.
    std::optional<Key> replaces;
  };
  // Seals the record's checksums in place, writes it, then indexes it. `done` says that a read
  // would find it, also after this process is killed. Errors now: no_space (queue full),
  // unavailable (offline); later: io, corrupt, no_space, unavailable, not_found (erased before it
  // was done).
  virtual Result<void> write(const Write& write, Done<void> done) = 0;
  // Whether the index takes more records, as of a moment ago: where it does not, write() fails with
  // no_space, later.
  virtual bool has_room() const noexcept { return true; }

  struct Read {
    NamespaceId ns;
    Key key;
    DiskLocation from;
    std::uint64_t slot_bytes = 0;
    ExtentId extent;  // where to: this slot of this extent
    std::uint32_t slot = 0;
    std::uint64_t record_bytes = 0;
  };
  // What does not hold where it landed, which clients can write to, is read again into memory of
  // the store's own; what holds there is copied to the slot, and good. Errors now: no_space (queue
  // full), unavailable (offline); later: io, unavailable, corrupt (header, key or checksum, on
  // disk: the caller forgets the key and has the slot tested).
  virtual Result<void> read(const Read& read, Done<void> done) = 0;

  // Tests a slot that nothing uses, of which a record or a write has failed: a pattern is written
  // over it and read back, behind all else. `done` says that it holds, and can be used again, or
  // that it does not: then it is remembered in the store, durably where that can be had, as one of
  // bad_places(). Errors now: no_space (busy), unavailable; later: io, corrupt (a bad place),
  // unavailable (not known).
  virtual Result<void> test_place(DiskLocation at, std::uint64_t slot_bytes, Done<void> done) = 0;
  // What was found before this process, and is not to be used. Before anything is submitted; of one
  // that comes late, once it is online.
  virtual std::vector<BadPlace> bad_places() const = 0;

  // Removes index entries; `done` after they are gone and any write of them that was under way has
  // ended, when their slots may be written again. Bounded by the caller, who erases what it knows
  // to be indexed. Errors later: unavailable (offline; the entries go before the store is online
  // again, and only then may the slots be written again), io.
  virtual void erase(std::vector<Key> keys, Done<void> done) = 0;

  // What is erased so does not come back either where the index is lost and made anew from the
  // segments, where copies may lie that no index entry names; records that are written later do.
  // Says nothing to the index, whose entries erase() removes. Durable with the next flush();
  // offline, before the store is online again.
  virtual void erase_for_good(std::vector<Erasure> what) = 0;

  // Remembers the last access of indexed records, in batches, so that the LRU order outlives the
  // process. Dropped, uncounted, while 65,536 stamps wait.
  virtual void touch(std::vector<std::pair<Key, std::uint64_t>> stamps) = 0;

  // Encoded namespaces by id, so that a restarted daemon knows the ones its records belong to.
  // Those that come while the store is offline are kept for its return.
  virtual void remember_namespace(const NamespaceId& id, std::vector<std::byte> encoded) = 0;
  // One that has no record here.
  virtual void forget_namespace(const NamespaceId& id) = 0;
  virtual Result<std::vector<std::pair<NamespaceId, std::vector<std::byte>>>> namespaces() = 0;

  // `done` when everything submitted before is on stable storage (power loss included). Errors
  // later: io, unavailable (offline).
  virtual void flush(Done<void> done) = 0;
  // Records that are on disk no more: a sync failed, and whether it lost them is not known. They
  // have left the index, or leave it before the store is online again, and their slots may be
  // written again. `lost` runs on the control thread, before the flush fails. No later flush covers
  // them. Set before the first submission.
  virtual void on_lost(std::function<void(const std::vector<LostRecord>&)> lost) = 0;

  // Health. A store is read-only where its index or several writes or syncs in a row fail, where no
  // space is left and where its file system is read-only: then write() is refused with unavailable,
  // and so fail writes that are queued or in flight, erases and flushes. It is offline where
  // several reads in a row fail at different places and where its device or directory is gone: then
  // read() and scrub() are refused too. It probes by itself and comes back without being asked.
  // `changed` runs on the control thread, before the failures that it explains; `why` says what
  // failed and the mend. Set before the first submission.
  using Changed = std::function<void(DiskState state, const std::string& why)>;
  virtual void on_health(Changed changed) = 0;

  // Reads and verifies a record into memory of the store's own, behind all reads and writes. Errors
  // now: no_space (kScrubsMax under way), unavailable; later: as read().
  struct Scrub {
    NamespaceId ns;
    Key key;
    DiskLocation from;
    std::uint64_t slot_bytes = 0;
    std::uint64_t record_bytes = 0;
  };
  virtual Result<void> scrub(const Scrub& scrub, Done<void> done) = 0;

  virtual RecordStoreStats stats() const = 0;

  // Completes or fails everything in flight, flushes, stops the thread. No completion is posted
  // after it.
  virtual void close() = 0;
};

// Creates or opens the directory. Errors: invalid (settings), io (cannot write there: says which
// path and why), version (another format: nothing is touched), refused (locked by another daemon),
// not_found (may_create is off and there is no store).
Result<std::unique_ptr<RecordStore>> open_record_store(const RecordStoreOptions& options,
                                                       RecordStore::Post post);

// The same over a given device, for tests with a wrapped one.
Result<std::unique_ptr<RecordStore>> open_record_store(const RecordStoreOptions& options,
                                                       RecordStore::Post post,
                                                       std::unique_ptr<BlockDevice> device);

}  // namespace kvtier::storage
