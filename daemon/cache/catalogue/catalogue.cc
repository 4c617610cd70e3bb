#include "daemon/cache/catalogue/catalogue.h"

#include <algorithm>
#include <bit>

#include "core/base/check.h"
#include "core/base/prefetch.h"
#include "core/record/digest.h"
#include "daemon/cache/catalogue/disk_place.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

Catalogue::Catalogue(std::uint32_t blocks_max, DirectoryWriter& directory, Tenants tenants,
                     EvictionPolicy policy)
    : index_(blocks_max, directory), tenants_(std::move(tenants)), namespaces_(tenants_) {
  if (policy == EvictionPolicy::hit_density) hit_density_.emplace(index_, ages_);
}

ClassLists& Catalogue::list(Tier tier, Order order) {
  Recent& recent = recent_[index_of(tier)];
  if (recent.lists != nullptr && recent.order == order) return *recent.lists;
  const std::size_t classes = hit_density_ ? use_class::kCount : 1;
  recent = {order, &lists_[index_of(tier)].try_emplace(order, index_, tier, classes).first->second};
  return *recent.lists;
}

Catalogue::Order Catalogue::order_of(BlockId id, Tier tier) const noexcept {
  const KnownNamespace& known = namespaces_[index_[id].ns];
  return {device(id, tier), known.layout.record_bytes, known.tenant, index_[id].rank(tier)};
}

Result<std::uint16_t> Catalogue::open_namespace(std::span<const std::byte> encoded, UserId owner) {
  // An orphan's blocks are on disk alone, and nobody holds them.
  std::vector<std::vector<BlockId>> moving(limits::kDisksMax);  // oldest first
  const auto known = namespaces_.find(NamespaceId{xxh3_128(encoded)});
  const bool orphans = tenants_.size() > 1 && known && namespaces_[*known].is_orphan() &&
                       namespaces_[*known].blocks != 0;
  const std::uint64_t bytes = orphans ? namespaces_[*known].layout.record_bytes : 0;
  for (std::uint32_t disk = 0; orphans && disk < limits::kDisksMax; ++disk) {
    const auto from = lists_[index_of(Tier::disk)].find({disk, bytes, kDefaultTenant});
    if (from == lists_[index_of(Tier::disk)].end()) continue;
    // Orphans are of one class: nobody has used them.
    for (BlockId id = from->second.oldest(use_class::kUnknown); id != kNoBlock;
         id = evicted_after(id, Tier::disk)) {
      if (index_[id].ns == *known) moving[disk].push_back(id);
    }
  }
  const auto opened = namespaces_.open(encoded, owner);
  if (!opened || !orphans || namespaces_[*opened].tenant == kDefaultTenant) return opened;
  for (std::uint32_t disk = 0; disk < limits::kDisksMax; ++disk) {
    for (auto id = moving[disk].rbegin(); id != moving[disk].rend(); ++id) {
      list(Tier::disk, {disk, bytes, kDefaultTenant}).remove(*id);
      list(*id, Tier::disk).push_oldest(*id);
    }
  }
  return opened;
}

std::uint32_t Catalogue::device(BlockId id, Tier tier) const noexcept {
  return device_of(index_[id].places[index_of(tier)]);
}

void Catalogue::publish(BlockId id) noexcept {
  const TierSet tiers = index_[id].doomed ? TierSet{} : reachable(id);
  index_.publish(id, tiers, tiers.has(Tier::device) ? device(id, Tier::device) : 0);
  if (on_published) on_published(id, tiers);
}

TierSet Catalogue::reachable(BlockId id) const noexcept {
  const Block& block = index_[id];
  const TierSet tiers = remote_hidden_ ? block.tiers.without(Tier::remote) : block.tiers;
  if (hidden_ == 0 || !tiers.has(Tier::disk)) return tiers;
  const bool hidden = (hidden_ >> device_of(block.places[index_of(Tier::disk)]) & 1) != 0;
  return hidden ? tiers.without(Tier::disk) : tiers;
}

// ---- the remote tier

void Catalogue::set_remote(BlockId id) {
  Block& block = index_[id];
  if (block.tiers.has(Tier::remote)) return;
  const bool only = block.tiers.empty();
  block.tiers = block.tiers.with(Tier::remote);
  ++remote_;
  only_remote_count_ += only ? 1 : 0;
  follow_remote(id);
  publish(id);
}

void Catalogue::unset_remote(BlockId id) {
  Block& block = index_[id];
  KVTIER_CHECK(block.tiers.has(Tier::remote));
  const bool only = is_only_remote(id);
  KVTIER_CHECK(!only || !block.loading);
  block.tiers = block.tiers.without(Tier::remote);
  --remote_;
  only_remote_count_ -= only ? 1 : 0;
  follow_remote(id);
  if (only) return forget(id);
  publish(id);
}

void Catalogue::set_loading(BlockId id, bool on) noexcept {
  index_[id].loading = on;
  follow_remote(id);
}

// Puts the block into the order of what is remote alone, or takes it out.
void Catalogue::follow_remote(BlockId id) noexcept {
  const bool wanted = is_only_remote(id) && !index_[id].loading;
  // Where none is listed its link need not be read.
  if (!wanted && only_remote_.empty()) return;
  if (index_.is_listed(id, Tier::remote) == wanted) return;
  wanted ? only_remote_.push_newest(id) : only_remote_.remove({&id, 1});
}

// It is nowhere any more.
void Catalogue::forget(BlockId id) noexcept {
  if (on_published) on_published(id, {});
  --namespaces_[index_[id].ns].blocks;
  index_.erase(id);
}

void Catalogue::hide_device(std::uint32_t device, bool hidden) noexcept {
  hidden_ = hidden ? hidden_ | 1U << device : hidden_ & ~(1U << device);
}

BlockId Catalogue::find(std::uint16_t ns, const Key& key) const noexcept {
  const BlockId id = index_.find(key);
  if (id == kNoBlock || index_[id].ns != ns || index_[id].doomed) return kNoBlock;
  return id;
}

std::size_t Catalogue::find_prefix(std::uint16_t ns, std::span<const Key> keys,
                                   std::span<BlockId> ids) const noexcept {
  // In pieces, so that a prefix of which little is here costs little.
  constexpr std::size_t kPiece = 128;
  for (std::size_t found = 0; found < keys.size();) {
    const std::size_t count = found == 0 ? 1 : std::min(kPiece, keys.size() - found);
    index_.find_many(keys.subspan(found, count), ids.subspan(found, count),
                     found == 0 ? kNoBlock : ids[found - 1]);
    for (const std::size_t end = found + count; found < end; ++found) {
      const BlockId id = ids[found];
      if (id == kNoBlock || index_[id].ns != ns || index_[id].doomed) return found;
    }
  }
  return keys.size();
}

BlockId Catalogue::add(std::uint16_t ns, const Key& key, const Key& parent,
                       std::uint32_t block_index) {
  const BlockId id = index_.insert(key, parent);
  if (id == kNoBlock) return id;
  index_[id].ns = ns;
  index_[id].block_index = block_index;
  if (hit_density_) index_.set_mark(id, {});
  ++namespaces_[ns].blocks;
  return id;
}

void Catalogue::place(BlockId id, Tier tier, Place at, const Key& parent) {
  place_unlisted(id, tier, at);
  put_in_order(id, tier, parent);
}

void Catalogue::place_unlisted(BlockId id, Tier tier, Place at) {
  Block& block = index_[id];
  const std::size_t t = index_of(tier);
  KVTIER_CHECK(!block.tiers.has(tier));
  only_remote_count_ -= is_only_remote(id) ? 1 : 0;
  block.tiers = block.tiers.with(tier);
  follow_remote(id);
  block.places[t] = at;
  const std::uint64_t bytes = record_bytes(id);
  ++counts_[t].blocks;
  ++counts_[t].insertions;
  counts_[t].bytes += bytes;
  counts_[t].inserted_bytes += bytes;
  namespaces_[block.ns].bytes[t] += bytes;
  devices_[t] |= 1U << device_of(at);
  publish(id);
  tell_evictable(id, tier, true);
}

// Where all blocks are of one order their entries need not be read.
void Catalogue::enlist_newest(std::span<const BlockId> newest_first, Tier tier) {
  constexpr std::size_t kAhead = 16;
  if (newest_first.empty()) return;
  if (const auto only = only_order_of_all(tier)) return list(tier, *only).push_newest(newest_first);
  for (std::size_t left = newest_first.size(); left > 0; --left) {
    if (left > kAhead) {
      const BlockId soon = newest_first[left - 1 - kAhead];
      prefetch_memory(&index_[soon]);
      prefetch_memory(&index_.link(soon, tier));
    }
    list(newest_first[left - 1], tier).push_newest(newest_first[left - 1]);
  }
}

void Catalogue::enlist_oldest(BlockId id, Tier tier) {
  list(id, tier).push_oldest(id);
}

void Catalogue::tell_evictable(BlockId id, Tier tier, bool evictable) const {
  if (!on_evictable) return;
  on_evictable(tier, index_[id].places[index_of(tier)], tenant(id), evictable, 1);
}

void Catalogue::enlist(BlockId id, Tier tier, const Key& parent) {
  put_in_order(id, tier, parent);
  tell_evictable(id, tier, true);
}

void Catalogue::put_in_order(BlockId id, Tier tier, const Key& parent) {
  const std::size_t t = index_of(tier);
  const BlockId up = parent.is_zero() ? kNoBlock : find(index_[id].ns, parent);
  if (up != kNoBlock && index_[up].tiers.has(tier) && index_[up].holds[t] == 0 &&
      order_of(up, tier) == order_of(id, tier)) {
    list(id, tier).push_behind(up, id);
  } else {
    list(id, tier).push_newest(id);
  }
  if (hit_density_) hit_density_->enlisted(id, tier);
}

void Catalogue::take_from_order(BlockId id, Tier tier) {
  if (hit_density_) hit_density_->delisted(id, tier);
  list(id, tier).remove(id);
}

// A block is in the list of its class: it gets there first, in each tier that it is in.
void Catalogue::relist() {
  if (relisted_.empty()) return;
  for (const Tier tier : kAllTiers) {
    if (const auto only = only_order(relisted_.back().first, tier)) {
      list(tier, *only).move_all(relisted_);
    } else if (devices_[index_of(tier)] != 0) {
      for (const auto& [id, mark] : relisted_) {
        const Block& block = index_[id];
        if (block.tiers.has(tier) && block.holds[index_of(tier)] == 0)
          list(id, tier).move_to(mark.use(), id);
      }
    }
  }
  for (const auto& [id, mark] : relisted_) index_.set_mark(id, mark);
  relisted_.clear();
}

// The order that all blocks of a prefix are in, which this is one of, where there is only one
// device and no rank in use.
std::optional<Catalogue::Order> Catalogue::only_order(BlockId id, Tier tier) const {
  return only_order_of(index_[id].ns, tier);
}
std::optional<Catalogue::Order> Catalogue::only_order_of(std::uint16_t ns, Tier tier) const {
  const std::uint32_t devices = devices_[index_of(tier)];
  const TierCounts& counts = counts_[index_of(tier)];
  if (!std::has_single_bit(devices) || counts.demoted + counts.raised != 0) return std::nullopt;
  return Order{static_cast<std::uint32_t>(std::countr_zero(devices)),
               namespaces_[ns].layout.record_bytes, namespaces_[ns].tenant};
}

// That of all blocks of a tier, where it is one.
std::optional<Catalogue::Order> Catalogue::only_order_of_all(Tier tier) const {
  std::optional<Order> only;
  for (std::uint16_t ns = 0; ns < namespaces_.size(); ++ns) {
    const KnownNamespace& known = namespaces_[ns];
    if (known.bytes[index_of(tier)] == 0) continue;
    const auto order = only_order_of(ns, tier);
    if (!order || (only && *only != *order)) return std::nullopt;
    only = order;
  }
  return only;
}

void Catalogue::came(BlockId id, Prompt prompt) {
  const Key& before = index_.parent(id);
  const BlockId parent = before.is_zero() ? kNoBlock : find(index_[id].ns, before);
  index_[id].last_access = parent == kNoBlock ? tick() : index_[parent].last_access;
  if (!hit_density_) return;
  prompt.block_tokens = namespaces_[index_[id].ns].layout.block_tokens;
  hit_density_->came(id, parent, prompt);
}

BlockId Catalogue::first_to_go(Tier tier, const ClassLists& lists) const {
  if (!hit_density_) return lists.oldest();
  return hit_density_->first_to_go(lists, tier, [&](BlockId id) {
    const Order order = order_of(id, tier);
    const Recent& recent = recent_[index_of(tier)];
    if (recent.lists == &lists && recent.order == order) return true;
    const auto of = lists_[index_of(tier)].find(order);
    return of != lists_[index_of(tier)].end() && &of->second == &lists;
  });
}

void Catalogue::pass_time(std::uint32_t now) {
  ages_.pass(now, clock_);
  if (!hit_density_) return;
  std::array<std::uint64_t, kTiers> room{};
  for (std::size_t t = 0; t < kTiers; ++t) {
    if (counts_[t].evictions() != 0) room[t] = counts_[t].blocks;
  }
  hit_density_->pass_time(now, room);
}

void Catalogue::change_rank(Block& block, Tier tier, Rank rank) noexcept {
  TierCounts& counts = counts_[index_of(tier)];
  const Rank before = block.rank(tier);
  counts.demoted += std::uint64_t{rank == Rank::spent} - std::uint64_t{before == Rank::spent};
  counts.raised += std::uint64_t{is_raised(rank)} - std::uint64_t{is_raised(before)};
  block.set_rank(tier, rank);
}

void Catalogue::set_rank(BlockId id, Tier tier, Rank rank) {
  Block& block = index_[id];
  KVTIER_CHECK(tier != Tier::disk && block.tiers.has(tier));
  if (block.rank(tier) == rank) return;
  const bool in_order = block.holds[index_of(tier)] == 0;
  if (in_order) take_from_order(id, tier);
  change_rank(block, tier, rank);
  if (in_order) put_in_order(id, tier, index_.parent(id));
}

// A block of the prefix that was used later than its last one was used without it. Returns whether
// each is there once: a client may name what it likes.
bool Catalogue::note_use(std::span<const BlockId> prefix, UserId user, std::uint64_t stamp) {
  if (prefix.empty()) return true;
  bool once = true;
  const std::uint32_t mark = mark_of(user);
  const std::uint64_t last = index_[prefix.back()].last_access;
  for (const BlockId id : prefix) {
    Block& block = index_[id];
    if (hit_density_) hit_density_->prefetch(id);
    once = once && block.last_access != stamp;
    block.forked = block.forked || block.last_access > last;
    block.last_access = stamp;
    const std::uint32_t before = index_.user(id);
    block.shared = block.shared || (before != 0 && before != mark);
    if (before != mark) index_.set_user(id, mark);
    for (const Tier tier : {Tier::device, Tier::host}) {
      if (block.tiers.has(tier) && block.rank(tier) == Rank::spent)
        set_rank(id, tier, Rank::normal);
    }
  }
  return once;
}

void Catalogue::use(std::span<const BlockId> prefix, UserId user, std::uint64_t stamp,
                    const std::optional<Prompt>& prompt) {
  const bool once = note_use(prefix, user, stamp);
  if (!hit_density_ || !prompt || !once) touch(prefix);
  // What names a block twice is no prefix, of which nothing can be learnt.
  if (!hit_density_ || !once) return;
  hit_density_->used(prefix, stamp, prompt.value_or(Prompt{}), prompt.has_value(),
                     [this](BlockId id, PackedMark mark) { relisted_.emplace_back(id, mark); });
  relist();
}

Place Catalogue::unplace(BlockId id, Tier tier, Removal why) {
  Block& block = index_[id];
  const std::size_t t = index_of(tier);
  KVTIER_CHECK(block.tiers.has(tier) && block.holds[t] == 0);
  if (is_raised(block.rank(tier)) && on_raised_gone) on_raised_gone(id, tier);
  take_from_order(id, tier);
  if (block.rank(tier) != Rank::normal) change_rank(block, tier, Rank::normal);
  if (tier == Tier::host && block.left_out) set_left_out(id, false);
  tell_evictable(id, tier, false);
  block.tiers = block.tiers.without(tier);
  if (block.spoilt().has(tier)) {
    block.set_spoilt(block.spoilt().without(tier));
    block.doomed = !block.spoilt().empty();
  }
  const Place at = block.places[t];
  const std::uint64_t bytes = record_bytes(id);
  --counts_[t].blocks;
  counts_[t].bytes -= bytes;
  namespaces_[block.ns].bytes[t] -= bytes;
  ++counts_[t].removals[static_cast<std::size_t>(why)];
  if (why <= Removal::quota) {
    ++namespaces_[block.ns].evictions[t];
    if (const auto age = ages_.of(block.last_access); age.known) counts_[t].idle.add(age.seconds);
  }
  if (block.tiers.empty()) {
    forget(id);
  } else {
    only_remote_count_ += is_only_remote(id) ? 1 : 0;
    follow_remote(id);
    publish(id);
  }
  return at;
}

bool Catalogue::hold(BlockId id, Tier tier) {
  if (!hold_in_order(id, tier)) return false;
  if (index_[id].holds[index_of(tier)] != 1) return true;
  take_from_order(id, tier);
  tell_evictable(id, tier, false);
  return true;
}

void Catalogue::unhold(BlockId id, Tier tier, const Key& parent) {
  unhold_out_of_order(id, tier);
  if (index_[id].holds[index_of(tier)] == 0) enlist(id, tier, parent);
}

void Catalogue::touch(std::span<const BlockId> prefix) {
  if (prefix.empty()) return;
  for (const Tier tier : kAllTiers) touch(prefix, tier);
}

void Catalogue::touch(std::span<const BlockId> prefix, Tier tier) {
  if (devices_[index_of(tier)] == 0) return;
  const auto only = only_order(prefix.front(), tier);
  if (!only) return touch_by_order(prefix, tier);
  ClassLists& order = list(tier, *only);
  if (!order.empty()) order.touch(prefix);
}

void Catalogue::touch_by_order(std::span<const BlockId> prefix, Tier tier) {
  for (const BlockId id : prefix) {
    if (index_[id].tiers.has(tier))
      touched_[bucket_of(device(id, tier), index_[id].rank(tier))].push_back(id);
  }
  for (auto& of_order : touched_) {
    if (of_order.empty()) continue;
    list(of_order.front(), tier).touch(of_order);
    of_order.clear();
  }
}

void Catalogue::doom(BlockId id) {
  index_[id].doomed = true;
  index_[id].set_spoilt({});
  publish(id);
}

void Catalogue::spoil(BlockId id, TierSet tiers) {
  Block& block = index_[id];
  if (block.doomed && block.spoilt().empty()) return;
  block.doomed = true;
  block.set_spoilt({static_cast<std::uint8_t>(block.spoilt_bits | tiers.bits)});
  publish(id);
}

// The entries of the piece after this one are asked for as well, so that its keys can be read when
// it is that piece's turn.
void EvictionAhead::look_ahead_from(BlockId id) const noexcept {
  std::array<BlockId, kPiece> now;
  std::size_t count = 0;
  for (std::size_t i = 0; i < 2 * kPiece && id != kNoBlock; ++i) {
    catalogue_.prefetch_entry(id);
    if (i < kPiece) now[count++] = id;
    id = catalogue_.evicted_after(id, tier_);
  }
  std::array<Key, kPiece> keys;
  for (std::size_t i = 0; i < count; ++i) keys[i] = catalogue_.block(now[i]).key;
  catalogue_.prefetch({keys.data(), count});
}

}  // namespace kvtier::daemon
