#include "daemon/cache/block_cache.h"

#include <spdlog/spdlog.h>

namespace kvtier::daemon {

BlockCache::BlockCache(const Options& options, Ports ports)
    : pinned_percent_max_(options.pinned_percent_max),
      catalogue_(options.blocks_max, *ports.directory, options.tenants, options.policy),
      memory_({options.device, options.host},
              {std::move(ports.devices), ports.host, std::move(ports.next_extent)},
              catalogue_.tenants()),
      disk_(options.disk, ports.disks, catalogue_, memory_.host()),
      remote_(options.remote, ports.remote, catalogue_),
      pins_(catalogue_,
            [this](Tier tier, std::uint32_t device) { return pinned_bytes_max(tier, device); }),
      placements_(catalogue_, memory_, disk_, remote_),
      removal_(catalogue_, disk_, remote_, pins_, placements_),
      namespaces_(catalogue_, memory_.host(), disk_, placements_, removal_, counts_),
      eviction_(catalogue_, placements_),
      emptying_(catalogue_, memory_, eviction_, later),
      room_(catalogue_, memory_, disk_, placements_, eviction_, emptying_),
      shares_(catalogue_, memory_, reservations_),
      loans_(catalogue_, memory_, eviction_, room_, reservations_, shares_),
      recalls_(memory_, emptying_, reservations_, shares_),
      users_(catalogue_, memory_, options.leased_percent),
      loads_(catalogue_, memory_.host(), disk_, remote_, placements_, room_, counts_),
      leases_({options.leases_per_session, options.leases_per_user}, catalogue_, memory_, disk_,
              remote_, placements_, loads_, users_, counts_, later),
      hints_(options.hints, catalogue_, memory_, disk_, loads_, later),
      commits_(catalogue_, memory_, disk_, remote_, placements_, room_, loans_, counts_),
      reports_(catalogue_, memory_, pins_, placements_, leases_, counts_) {
  catalogue_.on_evictable = [this](Tier tier, Place at, TenantId tenant, bool evictable,
                                   std::uint32_t count) {
    if (tier == Tier::disk) return disk_.set_evictable(at, evictable, count);
    memory_.of(tier, at).set_evictable(at, tenant, evictable, count);
  };
  catalogue_.on_raised_gone = [this](BlockId id, Tier tier) { hints_.forget(id, tier); };
  remote_.knowledge().make_entry = [this](TenantId tenant) { return room_.index_entry(tenant); };
  remote_.writes().on_unheld = [this](BlockId id) { placements_.settle(id); };
  disk_.on_unheld = [this](BlockId id) { placements_.settle(id); };
  disk_.on_lost = [this](BlockId id) { pins_.unpin(id, Tier::disk); };
  disk_.recovery().on_late_namespace = [this](std::span<const std::byte> encoded) {
    if (const auto opened = namespaces_.open(encoded); !opened) {
      spdlog::warn("disk tier: a namespace is not understood: {}", opened.error().message);
    }
  };
  disk_.recovery().on_late_stamp = [this](std::uint64_t stamp) { catalogue_.pass_stamp(stamp); };
  placements_.on_namespace = [this](const KnownNamespace& ns) {
    if (on_namespace) on_namespace(ns);
  };
  emptying_.on_room = [this] {
    if (on_room) on_room();
  };
  leases_.on_ready = [this](SessionId session, LeaseId lease, std::span<const Landed> landed) {
    on_ready(session, lease, landed);
  };
}

Result<std::vector<ProcessId>> BlockCache::adopt(Left left) {
  // What the disks know of namespaces first: an orphan's size is only what a slot table says.
  if (auto good = disk_.open_namespaces(); !good) return good.error();
  Adoption adoption(catalogue_, memory_, placements_, namespaces_, reservations_);
  auto adopted = adoption.adopt(std::move(left));
  owed_ = std::move(adopted.owed);
  return std::move(adopted.writers);
}

Result<void> BlockCache::recover() {
  auto newest = disk_.recover();
  if (!newest) return newest.error();
  catalogue_.pass_stamp(*newest);
  for (const auto& [id, parent] : std::exchange(owed_, {})) disk_.owed(id);
  return {};
}

void BlockCache::end_session(SessionId session) {
  leases_.release_all(session);
  users_.end_session(session);
  loans_.end_session(session);
}

bool BlockCache::commit(SessionId session, std::uint16_t ns, const NewBlock& block) {
  const bool fresh = catalogue_.find_any(block.key) == kNoBlock;
  committing_ = &block;
  const bool taken = commits_.commit(session, ns, block);
  committing_ = nullptr;
  if (!taken) return false;
  if (fresh) catalogue_.set_user(catalogue_.find_any(block.key), users_.user_of(session));
  return true;
}

void BlockCache::expire_hints(Hints::Time now) {
  if (expiring_hints_) return;
  while (hints_.expire(now, limits::kVisitStep)) {
    if (!later) continue;
    expiring_hints_ = true;
    return later([this, now] {
      expiring_hints_ = false;
      expire_hints(now);
    });
  }
}

void BlockCache::pass_time(std::uint32_t now) {
  catalogue_.pass_time(now);
  memory_.each([&](MemoryTier& tier) { tier.pass_time(now); });
  disk_.pass_time(now);
  remote_.pass_time();
}

std::uint64_t BlockCache::pinned_bytes_max(Tier tier, std::uint32_t device) const noexcept {
  const std::uint64_t cap = tier == Tier::disk ? disk_.devices()[device]->cap_bytes()
                                               : memory_.of(tier, device).cap_bytes();
  return cap / 100 * pinned_percent_max_ + cap % 100 * pinned_percent_max_ / 100;
}

}  // namespace kvtier::daemon
