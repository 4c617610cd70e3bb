// One memory tier (of the device tier, the part on one GPU): its extents, made on demand up to the
// cap, and their free slots by size class.
//
// The cap counts extents, which are what is taken from the system. Which block lies in a slot is
// kept here too, so that an extent can be emptied for another size class. Owned by the control
// thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/cache/catalogue/block_index.h"
#include "daemon/config/tenants.h"
#include "daemon/telemetry.h"
#include "storage/memory/extent.h"

namespace kvtier::daemon {

using storage::ExtentId;

class MemoryTier {
 public:
  struct Options {
    std::uint64_t cap_bytes = 0;
    std::uint64_t extent_bytes = 0;
  };
  using NextId = std::function<ExtentId()>;

  // `maker` may be null when cap_bytes is 0. `device`: the GPU's number in this daemon. `tenants`
  // outlives this; null: there is only one, without limits.
  MemoryTier(Tier tier, Options options, storage::MemoryExtents* maker, NextId next_id,
             std::uint32_t device = 0, const Tenants* tenants = nullptr);

  Tier tier() const noexcept { return tier_; }
  std::uint32_t device() const noexcept { return device_; }

  // A free slot of `slot_bytes` (which must be one record's size) for the tenant, from an extent of
  // its pool that has one or from a new extent within the cap and, for an isolated tenant, within
  // its quota; none otherwise. The slot's table entry is still free. The quota of slots is the
  // caller's to ask about first (see allowance()).
  std::optional<Place> take(std::uint64_t slot_bytes, TenantId tenant = kDefaultTenant);
  // Takes over an extent of an earlier daemon; its slots that are not free are in use, by whom is
  // for the caller to find out (assign()). False if the cap has no room for it, or it belongs to an
  // isolated tenant that there is not any more.
  bool adopt(std::unique_ptr<storage::Extent> extent);
  // The tenant that an adopted slot counts for. False, and nothing changes, if it may have none in
  // that extent.
  bool assign(Place at, TenantId tenant);
  // Records of this size will come: the first extent's memory is made ready in the background.
  void expect(std::uint64_t slot_bytes);
  // `at`'s table entry is set free.
  void give_back(Place at);
  // A taken slot is lent to a client, or is so no more (before it is given back).
  void set_lent(Place at, bool lent);
  // The block in a slot, or in so many of its extent, may be evicted, or may be so no more; of
  // whose it is.
  void set_evictable(Place at, TenantId tenant, bool evictable, std::uint32_t count);

  // The block in a slot is kept by a hint, or is so no more.
  void set_kept(Place at, bool kept) { state_of(ExtentId(at.container)).kept += kept ? 1U : ~0U; }
  std::uint32_t kept_in(ExtentId id) const noexcept { return state_of(id).kept; }

  // Lets go of an extent with no slot in use. False if it has one. Its memory is taken until
  // whoever `dispose` gave it to has given it back; meanwhile one such extent, in bytes, is not
  // held against new ones.
  bool retire_extent(ExtentId id);

  // A cap above what is taken now ends at once; one below it is reached extent by extent, by
  // whoever empties and retires them (Emptying).
  void set_cap(std::uint64_t bytes);
  bool over_cap() const noexcept { return taken_bytes_ - retiring_bytes_ > options_.cap_bytes; }
  // No slot of this extent is given out any more, until it is retired or stop_draining(). One at a
  // time.
  void drain(ExtentId id);
  void stop_draining();
  std::optional<ExtentId> draining() const noexcept { return draining_; }

  // Of an extent's slots, without a look at any.
  struct Use {
    std::uint32_t taken = 0, evictable = 0, lent = 0;
    // Neither free nor to be had by eviction.
    std::uint32_t staying() const noexcept { return taken - evictable; }
  };
  Use use_of(ExtentId id) const noexcept;
  // Bytes of what may be evicted there, by tenant.
  const TenantUsage& evictable_in(ExtentId id) const noexcept { return state_of(id).evictable_of; }
  // An extent in which nothing must stay, of a class for which `of_class(slot_bytes, pool)`, and
  // for which `may(id)`. Looks at a few of each class, and at others of them the next time.
  template <class OfClass, class May>
  std::optional<ExtentId> idle_extent(OfClass&& of_class, May&& may) {
    const std::size_t from = look_from_++;
    for (const auto& [slots, extents] : classes_) {
      const std::size_t count = extents.idle.size();
      if (count == 0 || !of_class(slots.first, slots.second)) continue;
      for (std::size_t i = 0; i < std::min<std::size_t>(count, kIdleLookedAtMax); ++i) {
        const ExtentId id = extents.idle[(from * kIdleLookedAtMax + i) % count];
        if (may(id)) return id;
      }
    }
    return std::nullopt;
  }

  storage::Extent* extent(ExtentId id) noexcept;
  // Empty where the daemon cannot address the memory.
  std::span<std::byte> slot(Place at) noexcept;
  storage::SlotTable& table(Place at) noexcept { return extent(ExtentId(at.container))->table(); }

  std::uint32_t slots_of(ExtentId id) const noexcept {
    return state_of(id).extent->shape().slots();
  }
  void set_block(Place at, BlockId block) noexcept;
  // kNoBlock where the slot holds none.
  BlockId block_at(Place at) const noexcept;

  // Seconds, from 1 up; about once a second.
  void pass_time(std::uint32_t now) noexcept { now_ = now; }
  // How many seconds blocks have been here that are here no more.
  const Histogram& lifetimes() const noexcept { return lifetimes_; }

  std::uint64_t cap_bytes() const noexcept { return options_.cap_bytes; }
  // Extents, those too that are on their way back to the system.
  std::uint64_t taken_bytes() const noexcept { return taken_bytes_; }
  std::uint64_t used_bytes() const noexcept { return used_bytes_; }    // slots not free
  std::uint64_t blocks() const noexcept { return blocks_; }            // in slots
  std::uint64_t block_bytes() const noexcept { return block_bytes_; }  // of their slots
  // Slots of this size that the cap, and the tenant's quota, could hold.
  std::uint64_t slots_possible(std::uint64_t slot_bytes,
                               TenantId tenant = kDefaultTenant) const noexcept;

  // Of slots that are not free.
  std::uint64_t used_by(TenantId tenant) const noexcept { return usage_.of(tenant); }
  // For whom a slot that is not free was taken.
  TenantId tenant_of(Place at) const noexcept;
  std::uint64_t slot_bytes(Place at) const noexcept {
    return state_of(ExtentId(at.container)).extent->shape().slot_bytes;
  }
  // The most that the tenant may use: its quota, where that is less than the cap.
  std::uint64_t allowance(TenantId tenant) const noexcept;
  TenantLimits limits(TenantId tenant) const noexcept;
  Pool pool_of(TenantId tenant) const noexcept {
    return tenants_ == nullptr ? 0 : tenants_->pool(tenant);
  }
  Pool pool_of(ExtentId id) const noexcept { return state_of(id).pool; }
  // Bytes that new extents of the tenant's pool may take by its quota, and by the cap as well.
  std::uint64_t pool_left(TenantId tenant) const noexcept;
  std::uint64_t room_for_extents(TenantId tenant) const noexcept;

  template <class Visit>
  void each_extent(Visit&& visit) {
    for (auto& [id, state] : extents_) visit(*state.extent);
  }

  // Told of every extent as it comes and goes.
  std::function<void(storage::Extent&)> on_created;
  std::function<void(storage::Extent&)> on_retired;
  // Takes an extent that was retired, and calls `gone`, on this thread, when its memory has been
  // given back. Where it is not set, that happens at once.
  std::function<void(std::unique_ptr<storage::Extent>, std::function<void()> gone)> dispose;

 private:
  struct Occupant {
    std::uint32_t block = kNoBlock.value;
    std::uint32_t since = 0;  // seconds; 0: not known
  };
  static constexpr std::size_t kIdleLookedAtMax = 64;
  static constexpr std::uint32_t kNotIdle = ~0U;
  struct State {
    std::unique_ptr<storage::Extent> extent;
    std::vector<std::uint32_t> free_slots;  // a stack
    std::vector<Occupant> blocks;           // of each slot
    std::vector<TenantId> tenants;          // of each slot that is not free
    Pool pool = 0;
    std::uint32_t evictable = 0, lent = 0, kept = 0;  // slots
    TenantUsage evictable_of;
    std::uint32_t idle_at = kNotIdle;  // its place among the idle extents of its class
  };
  using SlotClass = std::pair<std::uint64_t, Pool>;  // slots of one size and one pool
  struct Class {
    std::vector<ExtentId> open;  // with free slots
    std::vector<ExtentId> idle;  // in which nothing must stay
  };
  std::uint64_t extent_bytes(std::uint64_t slot_bytes, std::uint64_t left) const noexcept;
  std::uint64_t left_bytes() const noexcept;
  bool grow(std::uint64_t slot_bytes, TenantId tenant);
  // `fresh`: all its slots are free.
  State& add(std::unique_ptr<storage::Extent> extent, Pool pool, bool fresh);
  const State& state_of(ExtentId id) const noexcept;
  State& state_of(ExtentId id) noexcept {
    return const_cast<State&>(std::as_const(*this).state_of(id));
  }
  Class& class_of(const State& state) {
    return classes_[{state.extent->shape().slot_bytes, state.pool}];
  }
  static std::uint32_t taken(const State& state) noexcept {
    return static_cast<std::uint32_t>(state.blocks.size() - state.free_slots.size());
  }
  void note_idle(State& state);
  void leave_idle(State& state);
  void prepare_next(std::uint64_t slot_bytes, std::uint64_t room);

  Tier tier_;
  std::uint32_t device_;
  Options options_;
  storage::MemoryExtents* maker_;
  NextId next_id_;
  std::map<ExtentId, State> extents_;
  const Tenants* tenants_;
  mutable std::pair<ExtentId, const State*> last_{};  // that was asked for
  std::map<SlotClass, Class> classes_;
  std::size_t look_from_ = 0;
  std::map<Pool, std::uint64_t> pool_bytes_;  // of extents
  TenantUsage usage_;
  std::optional<ExtentId> draining_;
  std::uint64_t taken_bytes_ = 0;
  std::uint64_t retiring_bytes_ = 0;  // of them, what is on its way back
  std::uint64_t used_bytes_ = 0;
  std::uint64_t blocks_ = 0;
  std::uint64_t block_bytes_ = 0;
  std::uint32_t now_ = 0;
  Histogram lifetimes_;
  std::chrono::steady_clock::time_point next_attempt_{};  // after a failed one
};

}  // namespace kvtier::daemon
