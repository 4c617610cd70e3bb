#include "daemon/cache/tiers/memory_tier.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "core/base/check.h"
#include "core/base/units.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

namespace {

// A system that had no memory is asked again after it: GPU memory, for one, is the engines' too.
constexpr std::chrono::seconds kAttemptEvery{1};

}  // namespace

MemoryTier::MemoryTier(Tier tier, Options options, storage::MemoryExtents* maker, NextId next_id,
                       std::uint32_t device, const Tenants* tenants)
    : tier_(tier),
      device_(device),
      options_(options),
      maker_(maker),
      next_id_(std::move(next_id)),
      tenants_(tenants) {
  KVTIER_CHECK(maker != nullptr || options.cap_bytes == 0);
}

TenantLimits MemoryTier::limits(TenantId tenant) const noexcept {
  return tenants_ == nullptr ? TenantLimits{} : tenants_->limits(tenant, tier_);
}

std::uint64_t MemoryTier::allowance(TenantId tenant) const noexcept {
  return std::min(options_.cap_bytes, limits(tenant).quota);
}

std::uint64_t MemoryTier::pool_left(TenantId tenant) const noexcept {
  const Pool pool = pool_of(tenant);
  if (pool == 0) return options_.cap_bytes;
  const auto has = pool_bytes_.find(pool);
  const std::uint64_t taken = has == pool_bytes_.end() ? 0 : has->second;
  const std::uint64_t allowed = allowance(tenant);
  return allowed - std::min(allowed, taken);
}

// A disk's thread may take its time to let go of an extent. Records of another size wait for that
// only where more than one extent is on its way.
std::uint64_t MemoryTier::left_bytes() const noexcept {
  const std::uint64_t waiting = retiring_bytes_ - std::min(retiring_bytes_, options_.extent_bytes);
  const std::uint64_t taken = taken_bytes_ - retiring_bytes_ + waiting;
  return options_.cap_bytes - std::min(options_.cap_bytes, taken);
}

std::uint64_t MemoryTier::room_for_extents(TenantId tenant) const noexcept {
  return std::min(left_bytes(), pool_left(tenant));
}

std::uint64_t MemoryTier::slots_possible(std::uint64_t slot_bytes, TenantId tenant) const noexcept {
  if (options_.cap_bytes == 0) return 0;
  const std::uint64_t unit = maker_->granularity();
  const std::uint64_t extent = extent_bytes(slot_bytes, options_.cap_bytes);
  if (extent == 0) return 0;
  const std::uint64_t whole = options_.cap_bytes / extent;
  const std::uint64_t rest = (options_.cap_bytes - whole * extent) / unit * unit;
  const std::uint64_t by_cap = whole * (extent / slot_bytes) + rest / slot_bytes;
  return std::min(by_cap, allowance(tenant) / slot_bytes);
}

// The size of an extent for such slots where `left` bytes may be taken; 0: none fits.
std::uint64_t MemoryTier::extent_bytes(std::uint64_t slot_bytes,
                                       std::uint64_t left) const noexcept {
  const std::uint64_t unit = maker_->granularity();
  const std::uint64_t wanted = round_up(std::max(options_.extent_bytes, slot_bytes), unit);
  const std::uint64_t slots = std::min(wanted, left / unit * unit) / slot_bytes;
  return round_up(slots * slot_bytes, unit);
}

bool MemoryTier::grow(std::uint64_t slot_bytes, TenantId tenant) {
  if (options_.cap_bytes == 0 || extents_.size() >= daemon::limits::kExtentsMax) return false;
  const std::uint64_t bytes = extent_bytes(slot_bytes, room_for_extents(tenant));
  const auto now = std::chrono::steady_clock::now();
  if (bytes == 0 || now < next_attempt_) return false;
  auto made = maker_->create(
      next_id_(), {bytes, slot_bytes, tenants_ == nullptr ? 0 : tenants_->owner(tenant)});
  if (!made) {
    spdlog::warn("{} tier {}: no further extent of {} bytes: {}", name(tier_), device_, bytes,
                 made.error().message);
    next_attempt_ = now + kAttemptEvery;
    return false;
  }
  State& state = add(std::move(*made), pool_of(tenant), true);
  if (on_created) on_created(*state.extent);
  prepare_next(slot_bytes, room_for_extents(tenant));
  return true;
}

const MemoryTier::State& MemoryTier::state_of(ExtentId id) const noexcept {
  if (last_.second == nullptr || last_.first != id) last_ = {id, &extents_.at(id)};
  return *last_.second;
}

// A fresh extent's slots are all free: its table, which has no pages yet, is not looked at.
MemoryTier::State& MemoryTier::add(std::unique_ptr<storage::Extent> extent, Pool pool, bool fresh) {
  const ExtentId id = extent->id();
  const storage::Extent::Shape shape = extent->shape();
  State& state = extents_[id];
  KVTIER_CHECK(state.extent == nullptr);
  state.extent = std::move(extent);
  state.blocks.resize(shape.slots());
  state.pool = pool;
  // Of an earlier daemon's slots nobody has said yet whose they are, but in an isolated pool.
  state.tenants.assign(shape.slots(), pool == 0 ? kDefaultTenant : static_cast<TenantId>(pool - 1));
  state.free_slots.reserve(shape.slots());
  for (std::uint32_t slot = shape.slots(); slot-- > 0;) {
    if (fresh || state.extent->table().entry(slot).state == storage::SlotState::free)
      state.free_slots.push_back(slot);
  }
  taken_bytes_ += shape.bytes;
  pool_bytes_[pool] += shape.bytes;
  const std::uint64_t used = taken(state) * shape.slot_bytes;
  used_bytes_ += used;
  usage_.add(state.tenants.front(), used);
  if (!state.free_slots.empty()) class_of(state).open.push_back(id);
  note_idle(state);
  return state;
}

// After every change to what is taken or evictable.
void MemoryTier::note_idle(State& state) {
  const bool idle = taken(state) == state.evictable;
  if (idle == (state.idle_at != kNotIdle)) return;
  auto& all = class_of(state).idle;
  if (!idle) return leave_idle(state);
  state.idle_at = static_cast<std::uint32_t>(all.size());
  all.push_back(state.extent->id());
}

// The last one takes its place.
void MemoryTier::leave_idle(State& state) {
  auto& all = class_of(state).idle;
  const ExtentId last = all.back();
  all[state.idle_at] = last;
  extents_.at(last).idle_at = state.idle_at;
  all.pop_back();
  state.idle_at = kNotIdle;
}

void MemoryTier::set_lent(Place at, bool lent) {
  State& state = state_of(ExtentId(at.container));
  state.lent += lent ? 1U : ~0U;
}

void MemoryTier::set_evictable(Place at, TenantId tenant, bool evictable, std::uint32_t count) {
  State& state = state_of(ExtentId(at.container));
  const std::uint64_t bytes = count * state.extent->shape().slot_bytes;
  if (evictable) {
    state.evictable += count;
    state.evictable_of.add(tenant, bytes);
  } else {
    state.evictable -= count;
    state.evictable_of.subtract(tenant, bytes);
  }
  note_idle(state);
}

MemoryTier::Use MemoryTier::use_of(ExtentId id) const noexcept {
  const State& state = state_of(id);
  return {taken(state), state.evictable, state.lent};
}

bool MemoryTier::adopt(std::unique_ptr<storage::Extent> extent) {
  if (extents_.size() >= limits::kExtentsMax || extent->shape().bytes > left_bytes()) {
    return false;
  }
  const auto pool = tenants_ == nullptr ? Pool{0} : tenants_->pool_of_owner(extent->shape().owner);
  if (!pool) return false;
  add(std::move(extent), *pool, false);
  return true;
}

bool MemoryTier::assign(Place at, TenantId tenant) {
  State& state = state_of(ExtentId(at.container));
  if (pool_of(tenant) != state.pool) return false;
  const std::uint64_t slot_bytes = state.extent->shape().slot_bytes;
  usage_.subtract(state.tenants[at.slot], slot_bytes);
  usage_.add(tenant, slot_bytes);
  state.tenants[at.slot] = tenant;
  return true;
}

void MemoryTier::expect(std::uint64_t slot_bytes) {
  if (extents_.empty() && options_.cap_bytes != 0) prepare_next(slot_bytes, options_.cap_bytes);
}

void MemoryTier::prepare_next(std::uint64_t slot_bytes, std::uint64_t room) {
  maker_->prepare(extent_bytes(slot_bytes, room), room);
}

std::optional<Place> MemoryTier::take(std::uint64_t slot_bytes, TenantId tenant) {
  auto& open = classes_[{slot_bytes, pool_of(tenant)}].open;
  if (open.empty() && !grow(slot_bytes, tenant)) return std::nullopt;
  const ExtentId id = open.back();
  State& state = state_of(id);
  const std::uint32_t slot = state.free_slots.back();
  state.free_slots.pop_back();
  if (state.free_slots.empty()) open.pop_back();
  state.tenants[slot] = tenant;
  usage_.add(tenant, slot_bytes);
  used_bytes_ += slot_bytes;
  note_idle(state);
  return Place{id.value, slot};
}

void MemoryTier::give_back(Place at) {
  const ExtentId id(at.container);
  State& state = state_of(id);
  KVTIER_CHECK(state.blocks[at.slot].block == kNoBlock.value);
  state.extent->table().set_free(at.slot);
  const std::uint64_t slot_bytes = state.extent->shape().slot_bytes;
  if (state.free_slots.empty() && id != draining_) class_of(state).open.push_back(id);
  state.free_slots.push_back(at.slot);
  usage_.subtract(state.tenants[at.slot], slot_bytes);
  used_bytes_ -= slot_bytes;
  note_idle(state);
}

bool MemoryTier::retire_extent(ExtentId id) {
  const auto found = extents_.find(id);
  if (found == extents_.end() || taken(found->second) != 0) return false;
  if (on_retired) on_retired(*found->second.extent);
  std::erase(class_of(found->second).open, id);
  leave_idle(found->second);
  last_ = {};
  State state = std::move(found->second);
  extents_.erase(found);
  const storage::Extent::Shape shape = state.extent->shape();
  if (id == draining_) draining_.reset();
  pool_bytes_[state.pool] -= shape.bytes;
  retiring_bytes_ += shape.bytes;
  auto gone = [this, bytes = shape.bytes] {
    retiring_bytes_ -= bytes;
    taken_bytes_ -= bytes;
  };
  if (dispose) {
    dispose(std::move(state.extent), std::move(gone));
  } else {
    gone();
  }
  return true;
}

void MemoryTier::set_cap(std::uint64_t bytes) {
  if (bytes < options_.cap_bytes) maker_->forget_prepared();
  options_.cap_bytes = bytes;
}

void MemoryTier::drain(ExtentId id) {
  if (id == draining_) return;
  stop_draining();
  draining_ = id;
  std::erase(class_of(state_of(id)).open, id);
}

void MemoryTier::stop_draining() {
  if (!draining_) return;
  const State& state = state_of(*draining_);
  if (!state.free_slots.empty()) class_of(state).open.push_back(*draining_);
  draining_.reset();
}

storage::Extent* MemoryTier::extent(ExtentId id) noexcept {
  if (last_.second != nullptr && last_.first == id) return last_.second->extent.get();
  const auto found = extents_.find(id);
  return found == extents_.end() ? nullptr : found->second.extent.get();
}

TenantId MemoryTier::tenant_of(Place at) const noexcept {
  return state_of(ExtentId(at.container)).tenants[at.slot];
}

std::span<std::byte> MemoryTier::slot(Place at) noexcept {
  return state_of(ExtentId(at.container)).extent->slot(at.slot);
}

void MemoryTier::set_block(Place at, BlockId block) noexcept {
  State& state = state_of(ExtentId(at.container));
  Occupant& occupant = state.blocks[at.slot];
  const bool was = occupant.block != kNoBlock.value;
  const bool is = block != kNoBlock;
  if (was && occupant.since != 0) lifetimes_.add(now_ - occupant.since);
  const std::uint64_t slot_bytes = state.extent->shape().slot_bytes;
  occupant = {block.value, now_};
  blocks_ += std::uint64_t{is} - std::uint64_t{was};
  block_bytes_ += (std::uint64_t{is} - std::uint64_t{was}) * slot_bytes;
}

BlockId MemoryTier::block_at(Place at) const noexcept {
  return BlockId(state_of(ExtentId(at.container)).blocks[at.slot].block);
}

}  // namespace kvtier::daemon
