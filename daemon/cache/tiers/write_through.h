// Write-through: which blocks of the host tier go to disk, the queue in which they wait for it, and
// what becomes of a write that fails. Owned by the control thread; the I/O is the stores'.
//
// A block in the queue holds its host placement until it is written or given up, so its bytes stay,
// and its slot's table says that it is owed to the disk, so that a daemon after this one knows.
// Writes are settled in the order in which they were queued, which is the order of the blocks in
// their prefixes and so keeps the eviction order right. Each device may fail a block once.
//
// A record is of use only with all that come before it in its prefix, so a block goes to disk
// behind its parent: that is on disk, or goes before it. One whose parents are in memory alone
// takes them along. The queue has a bound, in blocks and in bytes; nobody waits for it. What
// follows a block in the queue may fill it, and else it takes nothing any more from its middle on:
// under overload some prompts are written whole and others not at all. What is left out is counted
// and marked, and offered again when it is used again and the queue is short.
//
// By expected reuse a block is written, at a commit or a later use, if it follows its parent to
// disk and its chance to be used again is worth a part of the budget (WriteBudget).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "daemon/cache/policy/write_budget.h"
#include "daemon/cache/tiers/disk_counts.h"
#include "daemon/cache/tiers/disk_room.h"
#include "daemon/cache/tiers/memory_tier.h"
#include "daemon/config/config.h"

namespace kvtier::daemon {

class WriteThrough {
 public:
  struct Options {
    std::uint32_t queue_max = 0;        // blocks
    std::uint64_t queue_bytes_max = 0;  // of host memory held for them
    std::uint32_t submitted_max = 64;
    Admission admission = Admission::all;
    std::uint64_t bytes_per_day = 0;  // with expected_reuse; 0: no budget
    std::function<DiskDevice::Time()> now;
  };
  // All of these outlive this.
  WriteThrough(Options options, Catalogue& catalogue, MemoryTier& host, DiskDevices& devices,
               DiskRoom& room, DiskCounts& counts);
  WriteThrough(const WriteThrough&) = delete;

  // The block, which has a host placement, was committed: it is written if all are admitted.
  void committed(BlockId id);
  // The block was leased or committed again; those before it in its prefix first.
  void seen_again(BlockId id);
  // Whether seen_again() does anything for any block.
  bool minds_use() const noexcept {
    return options_.admission == Admission::second_hit ||
           options_.admission == Admission::expected_reuse ||
           (options_.admission == Admission::all && catalogue_.left_out() != 0);
  }
  // The block will be needed, but not soon: it is written where the disk tier takes anything.
  void demoted(BlockId id);
  // What the store wrote of the block has been lost again (RecordStore::on_lost): it counts as a
  // write that was cut off, where it is not settled yet.
  void given_up(BlockId id, std::uint32_t device, storage::DiskLocation at);
  // The block, which has a host placement, waited for the disk when an earlier daemon ended.
  void owed(BlockId id);

  // `done` once every block queued before is written or given up, and all of it is on stable
  // storage. Errors: those of the stores; unavailable where a device went offline with writes not
  // yet stable.
  void flush(std::function<void(Result<void>)> done);

  // Blocks that were left out since the start and have not gone to disk since.
  LeftOut left_out() const noexcept { return {left_out_, catalogue_.left_out()}; }

  std::size_t queued() const noexcept { return queue_.size() + writing_.size(); }
  std::uint64_t queued_bytes() const noexcept { return queued_bytes_; }
  void set_admission(Admission admission) noexcept { options_.admission = admission; }
  void set_bytes_per_day(std::uint64_t bytes) noexcept { options_.bytes_per_day = bytes; }
  // About once a second, in seconds.
  void pass_time(std::uint32_t now) noexcept;
  const WriteBudget& budget() const noexcept { return budget_; }
  void set_queue_bytes_max(std::uint64_t bytes) noexcept { options_.queue_bytes_max = bytes; }

  // Called when the hold on a block has ended, which may have been the last.
  std::function<void(BlockId)> on_unheld;

 private:
  struct Waiting {
    BlockId block;
    Key parent;
    std::uint64_t ticket;
    std::uint32_t attempts = 0;  // devices that went offline with it
    bool failed = false;         // a device has failed it
  };
  struct Writing {
    Waiting what;
    DiskRoom::Slot slot;
    std::optional<Result<void>> result;
    DiskDevice::Time began{};
  };
  struct Flush {
    std::uint64_t up_to;  // tickets below are settled
    std::function<void(Result<void>)> done;
  };

  enum class Offered { anew, again };  // again: by a daemon that had room for all it had queued
  void offer(BlockId id, Offered how = Offered::anew);
  bool is_worth_a_write(BlockId id) const noexcept;
  std::optional<WriteDrop> gather(BlockId id, Offered how);
  bool has_room(std::size_t blocks, std::uint64_t bytes, bool to_the_brim) const noexcept;
  bool enqueue(BlockId id);
  BlockId parent_of(BlockId id) const noexcept;
  BlockId last_on_disk_before(BlockId id) const noexcept;
  bool is_behind_its_parent(BlockId id) const noexcept;
  void leave_out(BlockId id, WriteDrop why);
  void mark_left_out(BlockId id);
  void pump();
  bool submit(const Waiting& next);
  Result<void> send(const Waiting& next, const DiskRoom::Slot& slot);
  void written(std::uint64_t ticket, const Result<void>& result);
  void settle(const Writing& done);
  void not_written(const Writing& done);
  void take_back(const Writing& done);
  void write_again(const Waiting& what);
  bool move_elsewhere(const Waiting& what);
  void put_back(const Waiting& what);
  void give_back(const Waiting& what, const DiskRoom::Slot& slot, bool perhaps_written);
  bool on_or_to(std::uint32_t number, const Key& key) const noexcept;
  void drop(WriteDrop why) noexcept;
  void give_up(const Waiting& dropped, WriteDrop why);
  void let_go(const Waiting& what);
  void note_owed(BlockId id, bool owed) noexcept;
  void settle_flushes();
  void flush_devices(std::function<void(Result<void>)> done);

  Options options_;
  Catalogue& catalogue_;
  MemoryTier& host_;
  DiskDevices& devices_;
  DiskRoom& room_;
  DiskCounts& counts_;
  std::deque<Waiting> queue_;                 // by ticket
  std::map<std::uint64_t, Writing> writing_;  // by ticket
  std::uint64_t next_ticket_ = 1;
  bool pumping_ = false;
  std::deque<Flush> flushes_;
  std::uint64_t queued_bytes_ = 0;
  std::vector<BlockId> gathered_;  // what goes with a block, the last of the prefix first
  std::uint64_t left_out_ = 0;
  WriteBudget budget_;
  std::uint32_t passed_ = 0;  // seconds
};

}  // namespace kvtier::daemon
