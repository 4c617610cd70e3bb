// What a BlockCache must do, written from its rules for the sake of plainness: vectors, maps and
// loops, no slots, no clock. It is told of each operation after the cache has done it, and says in
// faults() where the two differ.
//
// With records of one size it foretells every eviction. With several it learns from the cache what
// was evicted (how slots fall into extents and segments is not modelled) and checks that it might
// be.
//
// The rules:
//  - a hold takes a placement out of its tier's order; its last hold's end puts it back: behind its
//  parent
//    if that is in the order, as the newest otherwise;
//  - a lease's grant and its end make the prefix's placements the newest, the head newer than the
//  tail;
//  - room is a free slot, or else the oldest placement of the same size, which on disk is never the
//    parent of what comes;
//  - a committed host block is written to disk in the order of commits, holding its host placement;
//  with
//    second_hit, one that is leased or committed again while it is in the host tier; either behind
//    its parents, which go along from the host tier, or not at all;
//  - a block that follows another in the queue may fill it, any other comes while it is half empty;
//  what is
//    left out is offered again when it is used again;
//  - a disk that is offline keeps its blocks, but nobody is told of them; writes that it fails go
//  to another
//    disk once;
//  - a block that was forgotten is found no more and goes with its last hold.
#pragma once

#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {

class CacheModel {
 public:
  CacheModel(TestCache& cache, const CacheSizes& sizes, bool one_size)
      : cache_(cache),
        one_size_(one_size),
        write_queue_max_(sizes.write_queue_max),
        write_queue_bytes_max_(sizes.host_slots * kRecordBytes),
        writes_submitted_max_(sizes.writes_submitted_max),
        second_hit_(sizes.admission == Admission::second_hit),
        disks_(sizes.disks, {sizes.disk_slots}) {
    free_[0] = sizes.device_slots;
    free_[1] = sizes.host_slots;
  }

  struct Reserved {
    SessionId session;  // 0: quarantined
    ProcessId process;
    std::uint16_t ns;
    Tier tier;
  };
  struct Leased {
    std::optional<Key> block;  // none: failed
    Tier tier;
    bool pending;
    SlotName slot;
  };
  struct Lease {
    SessionId session;  // 0: released, waiting for its reads
    std::vector<Leased> blocks;
    SessionId owner;  // whose user holds them, each once
  };

  // Each after the same was done to the cache.
  void lease(SessionId session, std::uint16_t ns, std::span<const TestBlock> prefix,
             const BlockCache::Grant& grant);
  void release(SessionId session, LeaseId lease, bool taken);
  void reserve(SessionId session, ProcessId process, std::uint16_t ns, Tier tier,
               std::uint32_t count, const std::vector<SlotName>& slots);
  // `filled`: whether each slot holds the block's true record; `sound`: whether key, parent and
  // tokens agree.
  void commit(SessionId session, std::uint16_t ns, const TestBlock& block,
              std::span<const SlotName> slots, std::span<const bool> filled, bool sound,
              bool taken);
  void abandon(SessionId session, SlotName slot);
  void remove(std::uint16_t ns, const Key& key);
  // The record in this slot, which a lease of its block has, was damaged and reported.
  void spoil(const Key& key, Tier tier, bool believed);
  void drop(std::optional<std::uint16_t> ns, TierSet tiers, std::uint64_t dropped);
  void end_session(SessionId session);
  void end_process(ProcessId process);
  void completed(const FakeStore::Asked& operation, FakeStore::Fate fate);
  void health(std::uint32_t disk, bool online);

  // Compares everything. Costs a pass over all blocks.
  void check();
  const std::vector<std::string>& faults() const noexcept { return faults_; }

  const std::map<SlotName, Reserved>& reservations() const noexcept { return reservations_; }
  const std::map<LeaseId, Lease>& leases() const noexcept { return leases_; }
  std::uint64_t waiting_writes() const noexcept { return queue_.size() + writing_.size(); }
  bool known(const Key& key) const { return blocks_.contains(key); }
  bool spoilt(const Key& key, Tier tier) const {
    const auto found = blocks_.find(key);
    return found != blocks_.end() && found->second.spoilt.has(tier);
  }
  bool doomed(const Key& key) const { return blocks_.at(key).doomed; }

 private:
  struct Copy {
    Place at;
    std::uint32_t holds = 0;
  };
  struct MBlock {
    TestBlock block;
    std::uint16_t ns;
    std::map<Tier, Copy> copies;
    bool loading = false, writing = false, doomed = false;
    TierSet spoilt{};
    bool left_out = false;
  };
  struct Waiting {
    Key key;
    std::uint64_t ticket;
    std::uint32_t attempts = 0;
    bool failed = false;
  };
  struct Writing {
    Waiting what;
    std::uint32_t disk;
    std::optional<FakeStore::Fate> fate;
    std::optional<Key> replaces;
  };
  struct Disk {
    std::int64_t free;  // slots; one size only
    std::int64_t free_when_online = 0;
    bool online = true;
  };
  struct Load {
    SlotName to;
    std::vector<std::pair<LeaseId, std::uint32_t>> waiters;
  };
  using Order = std::vector<Key>;  // newest first

  template <class... Parts>
  void fault(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    if (faults_.size() < 20) faults_.push_back(text.str());
  }
  std::string name(const Key& key) const { return to_hex(key).substr(0, 8); }
  std::uint64_t size_of(const Key& key) const { return size_of(blocks_.at(key)); }
  std::uint64_t size_of(const MBlock& block) const {
    return cache_.known(block.ns).layout.record_bytes;
  }
  Order& order(const Key& key, Tier tier) {
    const MBlock& block = blocks_.at(key);
    return orders_[{tier, tier == Tier::disk ? disk_of(block) : 0, size_of(block)}];
  }
  static std::uint32_t disk_of(const MBlock& block) {
    return device_of(block.copies.at(Tier::disk).at);
  }
  bool any_online() const { return std::ranges::any_of(disks_, &Disk::online); }
  TierSet reachable(const MBlock& block) const;
  MBlock* find(std::uint16_t ns, const Key& key);

  void enlist(const Key& key, Tier tier, const Key& parent);
  void place(const Key& key, Tier tier, Place at, const Key& parent);
  void unplace(const Key& key, Tier tier);
  void hold(const Key& key, Tier tier);
  // A user is one hold of a block; here each session is a user.
  void hold_for(SessionId owner, const Key& key, Tier tier) {
    if (held_[{owner, key, tier}]++ == 0) hold(key, tier);
  }
  void unhold_for(SessionId owner, const Key& key, Tier tier) {
    if (--held_.at({owner, key, tier}) == 0) unhold(key, tier);
  }
  void unhold(const Key& key, Tier tier, const Key& parent = {});
  void touch(const std::vector<Key>& prefix);
  void settle(const Key& key);
  bool drop_copies(const Key& key, TierSet tiers, std::vector<std::vector<Key>>& on_disk);
  void end_lease(const Lease& lease);
  void end_or_wait(LeaseId id);

  void begin();
  void take_asked();
  void learn_evictions();
  bool room(Tier tier, std::uint64_t bytes, bool granted);
  void give_back(Tier tier) { ++free_[index_of(tier)]; }
  bool start_load(const Key& key);
  void landed(const Key& key, FakeStore::Fate fate);
  void write_through(const Key& key);
  std::vector<Key> what_goes_with(const Key& key) const;
  bool fits_the_queue(std::size_t blocks, std::uint64_t bytes, bool follows) const;
  std::uint64_t waiting_bytes() const;
  bool is_behind_its_parent(const Key& key) const;
  void leave_out(const Key& key);
  void put_back(const Waiting& what);
  void free_slot_of(const Writing& done, bool perhaps_written);
  void seen_again(const Key& key);
  void pump();
  bool submit(const Waiting& next);
  std::optional<Key> victim_in(const Order& order, const Key& comes) const;
  void not_written(const Writing& done);
  void settle_writes();
  void let_go(const Key& key);
  bool on_or_to_disk(std::uint32_t disk, const Key& key) const {
    const auto found = blocks_.find(key);
    if (found == blocks_.end()) return false;
    if (found->second.copies.contains(Tier::disk)) return disk_of(found->second) == disk;
    return std::ranges::any_of(writing_, [&](const auto& writing) {
      return writing.second.what.key == key && writing.second.disk == disk;
    });
  }
  void erase_on_disk(std::uint32_t disk, std::vector<Key> keys, std::uint32_t slots_back);
  void erase_on_disks(std::vector<std::vector<Key>> keys);
  void finish();
  void check_block(const Key& key, const MBlock& block);
  void check_slots(Tier tier);
  void check_totals();
  void check_orders();

  TestCache& cache_;
  const bool one_size_;
  const std::uint32_t write_queue_max_;
  const std::uint64_t write_queue_bytes_max_;
  const std::uint32_t writes_submitted_max_;
  const bool second_hit_;
  std::vector<Disk> disks_;
  std::array<std::int64_t, 2> free_{};  // slots of memory; one size only
  std::map<Key, MBlock> blocks_;
  std::set<Key> ever_;
  std::map<std::tuple<Tier, std::uint32_t, std::uint64_t>, Order> orders_;  // tier, disk, size
  std::map<LeaseId, Lease> leases_;
  std::map<std::tuple<SessionId, Key, Tier>, std::uint32_t> held_;
  std::map<SlotName, Reserved> reservations_;
  std::map<Key, Load> loads_;
  std::deque<Waiting> queue_;
  std::map<std::uint64_t, Writing> writing_;
  std::uint64_t next_ticket_ = 1;
  // Asked of the store in this operation and not accounted for yet.
  std::deque<FakeStore::Asked> transfers_;
  std::vector<FakeStore::Asked> erases_;
  struct Erasing {
    std::uint32_t disk;
    std::vector<Key> keys;
    std::uint32_t slots_back;
  };
  std::vector<Erasing> erases_expected_;            // in this operation
  std::map<std::uint64_t, std::uint32_t> erasing_;  // operation -> slots it gives back
  std::vector<Ready> ready_;                        // expected events in this operation
  std::uint64_t retired_ = 0, dropped_writes_ = 0;
  std::vector<std::string> faults_;
};

}  // namespace kvtier::daemon::testing
