// The store's own thread: takes commands, keeps the device busy, keeps the index in step.
//
// A turn of the loop: take commands, put their index changes into one batch and commit it, start
// reads, then writes, then scrubs, wait; drain the completions into a list, start what they made
// room for, and only then look at what completed. So no callback runs while the device is being
// walked. Checksums of large records are computed by workers, ahead of a write's turn, so that the
// device never waits for them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "storage/device/block_device.h"
#include "storage/index/index.h"
#include "storage/index/segments.h"
#include "storage/index/store_directory.h"
#include "storage/store/health.h"
#include "storage/store/own_memory.h"
#include "storage/store/record_store.h"
#include "storage/store/workers.h"

namespace kvtier::storage {

// What the loop does for the control thread.
struct ReadCommand {
  RecordStore::Read read;
  RecordStore::Done<void> done;
  // Of the memory for second looks, where it has come to one: what landed in the extent's slot did
  // not hold, and clients may have written there meanwhile.
  std::optional<std::uint32_t> look_part = std::nullopt;
};
struct ScrubCommand {
  RecordStore::Scrub scrub;
  RecordStore::Done<void> done;
  Health::Clock::time_point since = {};
  std::uint32_t part = 0;  // of the memory for scrubs, once it is started
};
// An erase that is done when its commit and every write it overtook are: their slots are the
// caller's then.
struct PendingErase {
  RecordStore::Done<void> done;
  std::uint64_t flushes_before = 0;
  std::size_t parts = 1;
  Result<void> result;
};
struct WriteCommand {
  RecordStore::Write write;
  RecordStore::Done<void> done;
  std::uint64_t flushes_before = 0;
  std::vector<std::shared_ptr<PendingErase>> erased_by;  // not empty: it will not be indexed
};
struct EraseCommand {
  std::vector<Key> keys;
  RecordStore::Done<void> done;
};
struct TouchCommand {
  std::vector<std::pair<Key, std::uint64_t>> stamps;
};
struct NamespaceCommand {
  NamespaceId id;
  std::vector<std::byte> encoded;  // none: it is to be forgotten
};
struct FlushCommand {
  RecordStore::Done<void> done;
};
struct RegisterCommand {
  ExtentId extent;
  std::span<std::byte> memory;
  std::uint64_t slot_bytes = 0;
};
// From a worker: this much of an extent has its pages, from its begin.
struct PopulatedCommand {
  ExtentId extent;
  std::size_t bytes = 0;
};
struct ForgetCommand {
  ExtentId extent;
  std::function<void()> done;
};
using HealthChanged = std::function<void(bool online, const std::string& why)>;
struct HealthCommand {
  HealthChanged changed;
};
// From a worker: the checksums of the command with this tag are set, or were compared.
struct ChecksumCommand {
  std::uint64_t tag = 0;
  Result<void> result;
};
struct CloseCommand {};
using StoreCommand =
    std::variant<ReadCommand, WriteCommand, ScrubCommand, EraseCommand, TouchCommand,
                 NamespaceCommand, FlushCommand, RegisterCommand, PopulatedCommand, ForgetCommand,
                 HealthCommand, ChecksumCommand, CloseCommand>;

// Shared with the control thread.
struct StoreCounters {
  std::atomic<std::uint64_t> records_read = 0, bytes_read = 0, read_failures = 0,
                             checksum_failures = 0, memory_faults = 0;
  std::atomic<std::uint64_t> records_written = 0, bytes_written = 0, write_failures = 0;
  std::atomic<std::uint64_t> reads_pending = 0, writes_pending = 0, stamps_pending = 0;
  std::atomic<std::uint32_t> scrubs_pending = 0;
  std::atomic<std::uint64_t> index_bytes = 0;  // allocated for the index, a moment ago
  std::atomic<bool> online = true;
};

class StoreLoop {
 public:
  // All outlive the loop, and all but the counters are the loop's alone while run() runs.
  StoreLoop(const RecordStoreOptions& options, StoreDirectory& directory, BlockDevice& device,
            Index& index, Segments& segments, StoreCounters& counters, RecordStore::Post post);

  // Any thread.
  void send(StoreCommand command);
  // The thread's main function: until a CloseCommand has been carried out.
  void run();

 private:
  struct ExtentState {
    BufferId buffer;
    std::span<std::byte> memory;
    std::uint64_t slot_bytes = 0;
    std::uint64_t pending = 0;        // reads and writes taken and not done; its populating
    std::function<void()> forgotten;  // told when none is pending
    bool at_fault = false;            // see note_memory_fault()
  };
  // Waits for `waiting` writes and erases that came before it, then syncs file after file.
  struct Flush {
    std::uint64_t number = 0;
    RecordStore::Done<void> done;
    std::uint64_t waiting = 0;
    bool started = false;
    std::vector<std::uint32_t> files;
    Result<void> result;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept { return key.tail(); }
  };

  // store_loop.cc: the turn.
  void take_commands();
  void start_transfers();
  void end_landed();
  void settle(BlockDevice::Completion& completion);
  void commit();
  void finish(RecordStore::Done<void>& done, Result<void> result);
  void post_finished();
  bool is_over() const;
  // Counts a transfer on an extent until release(); not, if it is not registered.
  bool hold(ExtentId extent);
  void release(ExtentId extent);
  Result<BlockDevice::Transfer> transfer_of(ExtentId extent, std::uint32_t slot,
                                            std::uint64_t record_bytes, DiskLocation at,
                                            std::uint64_t slot_bytes) const;
  std::span<std::byte> record_at(ExtentId extent, std::uint32_t slot, std::uint64_t bytes) const;

  // store_commands.cc: what is taken from the control thread.
  void take(ReadCommand&& command);
  void take(WriteCommand&& command);
  void take(ScrubCommand&& command);
  void take(EraseCommand&& command);
  void take(TouchCommand&& command);
  void take(NamespaceCommand&& command);
  void take(FlushCommand&& command);
  void take(RegisterCommand&& command);
  void take(PopulatedCommand&& command);
  void take(ForgetCommand&& command);
  void take(HealthCommand&& command);
  void take(ChecksumCommand&& command);
  void take(CloseCommand&& command);
  void populate_next(ExtentId extent, ExtentState& state, std::size_t from);
  void overtake_writes(const Key& key, const std::shared_ptr<PendingErase>& erase);
  void end_part(PendingErase& erase);

  // store_reads.cc: reads and scrubs.
  void start_reads();
  void start_second_looks();
  void submit_read(ReadCommand command, Result<BlockDevice::Transfer> transfer);
  void start_scrubs();
  bool may_scrub() const;
  Result<void> check_segment(DiskLocation at, std::uint64_t slot_bytes);
  Result<BlockDevice::Transfer> prepare_read(const RecordStore::Read& read);
  Result<BlockDevice::Transfer> prepare_second_look(ReadCommand& command);
  Result<BlockDevice::Transfer> prepare_scrub(ScrubCommand& command);
  Result<BlockDevice::Transfer> to_own_memory(OwnMemory& memory, BufferId buffer, DiskLocation from,
                                              std::uint64_t slot_bytes, std::uint64_t record_bytes);
  void end_read(ReadCommand& command, const Result<void>& transferred);
  void end_scrub(ScrubCommand& command, const Result<void>& transferred);
  void read_verified(ReadCommand& command, Result<void> intact);
  void note_memory_fault(ExtentId extent);
  void scrub_verified(ScrubCommand& command, Result<void> intact);
  void finish_read(ReadCommand& command, Result<void> result);
  void finish_scrub(ScrubCommand& command, Result<void> result);

  // store_writes.cc: a write is sealed, what it replaces leaves the index, it waits for its turn,
  // is written and then indexed.
  void seal_ahead();
  void sealed(WriteCommand& command, const Result<void>& result);
  void clear_places();
  void start_writes();
  Result<void> erase_replaced(const std::deque<WriteCommand>& commands);
  Result<BlockDevice::Transfer> prepare_write(const RecordStore::Write& write);
  Result<void> open_segment(std::uint32_t segment);
  void end_write(WriteCommand& command, const Result<void>& transferred);
  void finish_write(WriteCommand& command, Result<void> result);

  // store_flush.cc
  void end_before_flush(std::uint64_t flushes_before);
  void advance_flushes();
  void start_flush(Flush& flush);
  void sync_next_file(Flush& flush);
  void settle_sync(BlockDevice::Completion& completion);

  // store_offline.cc: leaving and coming back.
  Error offline() const;
  void go_offline(const std::string& what, int code);
  void index_failed(const Error& error);
  void look_after_health();
  Result<void> probe();
  void announce(bool online, const std::string& why);
  BlockDevice::Duration until_next_look() const;

  const RecordStoreOptions options_;
  StoreDirectory& directory_;
  BlockDevice& device_;
  Index& index_;
  Segments& segments_;
  StoreCounters& counters_;
  RecordStore::Post post_;

  std::mutex inbox_mutex_;
  std::deque<StoreCommand> inbox_;

  std::unordered_map<ExtentId, ExtentState> extents_;
  std::set<std::uint32_t> buffers_used_;
  std::uint32_t extents_populating_ = 0;
  std::uint64_t next_tag_ = 1;
  // A read: queued, in flight, landed, then being verified; where it did not hold, all of that once
  // more into memory of our own. Each map is by tag.
  std::deque<ReadCommand> reads_queued_, looks_queued_;
  std::unordered_map<std::uint64_t, ReadCommand> reads_, reads_verifying_;
  std::vector<std::pair<ReadCommand, Result<void>>> reads_landed_;
  std::deque<ScrubCommand> scrubs_queued_;
  std::unordered_map<std::uint64_t, ScrubCommand> scrubs_, scrubs_verifying_;
  std::vector<std::pair<ScrubCommand, Result<void>>> scrubs_landed_;
  OwnMemory scrub_memory_, look_memory_;
  // A write: queued, being sealed, sealed, its place cleared, in flight, landed.
  std::deque<WriteCommand> writes_queued_, writes_sealed_, writes_cleared_;
  std::unordered_map<std::uint64_t, WriteCommand> writes_sealing_, writes_;
  std::vector<std::pair<WriteCommand, Result<void>>> writes_landed_;

  std::unordered_map<Key, std::uint32_t, KeyHash> keys_being_written_;
  std::size_t erases_pending_ = 0;
  // Changes of this turn, and what to do when they are committed or could not be.
  Index::Batch batch_;
  std::vector<std::function<void(const Result<void>&)>> on_commit_;
  std::vector<NamespaceCommand> namespaces_unsaved_;
  // Keys that the index may hold although it should not, since a commit failed or could not be
  // made.
  std::vector<Key> keys_to_erase_;

  std::set<std::uint32_t> files_written_;  // since their last sync
  std::set<std::uint32_t> files_open_;
  std::deque<Flush> flushes_;
  std::uint64_t flushes_seen_ = 0;

  Health health_;
  std::string offline_why_;
  HealthChanged health_changed_;
  Health::Clock::time_point next_look_;

  std::vector<std::function<void()>> finished_;
  bool closing_ = false;
  Workers workers_;  // last: they end before what they report to
};

}  // namespace kvtier::storage
