// The store's own thread: takes commands, keeps the device busy, keeps the index in step.
//
// A turn of the loop: take commands, put their index changes into one batch and commit it, start
// reads and then writes, wait; drain the completions into a list, start what they made room for,
// and only then look at what completed. So no callback runs while the device is being walked, and
// checksums are computed while the next transfers run.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "storage/disk/block_device.h"
#include "storage/disk/index.h"
#include "storage/disk/record_store.h"
#include "storage/disk/segments.h"

namespace kvtier::storage {

// What the loop does for the control thread.
struct ReadCommand {
  RecordStore::Read read;
  RecordStore::Done<void> done;
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
  std::vector<std::byte> encoded;
};
struct FlushCommand {
  RecordStore::Done<void> done;
};
struct RegisterCommand {
  ExtentId extent;
  std::span<std::byte> memory;
  std::uint64_t slot_bytes = 0;
  std::promise<Result<void>>* answer = nullptr;
};
struct ForgetCommand {
  ExtentId extent;
  std::promise<void>* answer = nullptr;
};
struct CloseCommand {};
using StoreCommand =
    std::variant<ReadCommand, WriteCommand, EraseCommand, TouchCommand, NamespaceCommand,
                 FlushCommand, RegisterCommand, ForgetCommand, CloseCommand>;

// Shared with the control thread.
struct StoreCounters {
  std::atomic<std::uint64_t> records_read = 0, bytes_read = 0, read_failures = 0,
                             checksum_failures = 0;
  std::atomic<std::uint64_t> records_written = 0, bytes_written = 0, write_failures = 0;
  std::atomic<std::uint64_t> reads_pending = 0, writes_pending = 0, stamps_pending = 0;
};

class StoreLoop {
 public:
  // All outlive the loop, and the device, index and segments are the loop's alone while run() runs.
  StoreLoop(const RecordStoreOptions& options, BlockDevice& device, Index& index,
            Segments& segments, StoreCounters& counters, RecordStore::Post post);

  // Any thread.
  void send(StoreCommand command);
  // The thread's main function: until a CloseCommand has been carried out.
  void run();

 private:
  struct ExtentState {
    BufferId buffer;
    std::span<std::byte> memory;
    std::uint64_t slot_bytes = 0;
    std::uint64_t pending = 0;                // reads and writes taken and not done
    std::promise<void>* forgotten = nullptr;  // answered when none is pending
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
    std::size_t operator()(const Key& key) const noexcept { return key.head(); }
  };

  // store_loop.cc: commands and the turn.
  void take_commands();
  void take(ReadCommand&& command);
  void take(WriteCommand&& command);
  void take(EraseCommand&& command);
  void take(TouchCommand&& command);
  void take(NamespaceCommand&& command);
  void take(FlushCommand&& command);
  void take(RegisterCommand&& command);
  void take(ForgetCommand&& command);
  void take(CloseCommand&& command);
  void commit();
  void settle(BlockDevice::Completion& completion);
  void post_finished();
  bool is_over() const;

  void finish(RecordStore::Done<void>& done, Result<void> result);
  void overtake_writes(const Key& key, const std::shared_ptr<PendingErase>& erase);
  void end_part(PendingErase& erase);
  // Counts a transfer on an extent until release(); not, if it is not registered.
  bool hold(ExtentId extent);
  void release(ExtentId extent);
  void end_before_flush(std::uint64_t flushes_before);
  void advance_flushes();
  void start_flush(Flush& flush);
  void sync_next_file(Flush& flush);

  // store_transfers.cc: reads and writes.
  void start_reads();
  void start_writes();
  Result<BlockDevice::Transfer> transfer_of(ExtentId extent, std::uint32_t slot,
                                            std::uint64_t record_bytes, DiskLocation at,
                                            std::uint64_t slot_bytes) const;
  Result<BlockDevice::Transfer> prepare_read(const RecordStore::Read& read);
  Result<BlockDevice::Transfer> prepare_write(const RecordStore::Write& write);
  Result<void> open_segment(std::uint32_t segment);
  Result<void> erase_replaced(const RecordStore::Write& write);
  bool index_has_room();
  void end_read(ReadCommand& command, const Result<void>& transferred);
  void end_write(WriteCommand& command, const Result<void>& transferred);
  void finish_read(ReadCommand& command, Result<void> result);
  void finish_write(WriteCommand& command, Result<void> result);
  std::span<std::byte> record_at(ExtentId extent, std::uint32_t slot, std::uint64_t bytes) const;

  const RecordStoreOptions options_;
  BlockDevice& device_;
  Index& index_;
  Segments& segments_;
  StoreCounters& counters_;
  RecordStore::Post post_;

  std::mutex inbox_mutex_;
  std::deque<StoreCommand> inbox_;

  std::unordered_map<ExtentId, ExtentState> extents_;
  std::set<std::uint32_t> buffers_used_;
  std::deque<ReadCommand> reads_queued_;
  std::deque<WriteCommand> writes_queued_;
  std::unordered_map<std::uint64_t, ReadCommand> reads_;  // in flight, by tag
  std::unordered_map<std::uint64_t, WriteCommand> writes_;
  std::uint64_t next_tag_ = 1;
  std::vector<std::pair<ReadCommand, Result<void>>> reads_landed_;
  std::vector<std::pair<WriteCommand, Result<void>>> writes_landed_;

  std::unordered_map<Key, std::uint32_t, KeyHash> keys_being_written_;
  std::size_t erases_pending_ = 0;
  // Changes of this turn, and what to do when they are committed or could not be.
  Index::Batch batch_;
  std::vector<std::function<void(const Result<void>&)>> on_commit_;
  std::uint64_t records_until_size_check_ = 0;
  bool index_full_ = false;

  std::set<std::uint32_t> files_written_;  // since their last sync
  std::deque<Flush> flushes_;
  std::uint64_t flushes_seen_ = 0;

  std::vector<std::function<void()>> finished_;
  bool closing_ = false;
};

}  // namespace kvtier::storage
