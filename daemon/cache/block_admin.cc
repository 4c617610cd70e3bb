// What administrators do to blocks: removal, the end of a namespace, verification.
#include <algorithm>

#include "daemon/cache/block_cache.h"

namespace kvtier::daemon {

void BlockCache::remove(std::span<const BlockId> blocks, TierSet tiers, bool force,
                        Removed& removed, Removal why) {
  std::vector<BlockId> on_disk;
  for (const BlockId id : blocks) {
    if (force) {
      pins_.unpin_everywhere(id);
      catalogue_.doom(id);
    }
    const Block block = catalogue_.block(id);
    bool any = false;
    bool in_use = false;
    bool pinned = false;
    for (const Tier tier : kAllTiers) {
      if (!tiers.has(tier) || !block.tiers.has(tier)) continue;
      const unsigned holds = block.holds[index_of(tier)];
      const unsigned pins = block.pinned.has(tier) ? 1 : 0;
      in_use = in_use || holds > pins;
      pinned = pinned || (pins != 0 && holds == pins);
      if (holds != 0) continue;
      any = true;
      if (tier == Tier::disk) {
        on_disk.push_back(id);
      } else {
        remove_from(id, tier, why);
      }
    }
    removed.blocks += any ? 1 : 0;
    removed.in_use += in_use ? 1 : 0;
    removed.pinned += pinned && !in_use ? 1 : 0;
  }
  disk_.forget(on_disk, why);
}

std::vector<std::uint16_t> BlockCache::close_namespaces(const NamespaceFilter& filter) {
  std::vector<std::uint16_t> numbers;
  Namespaces& known = catalogue_.namespaces();
  for (std::uint16_t ns = 0; ns < known.size(); ++ns) {
    if (known[ns].closed || !filter.matches(known[ns])) continue;
    known.close(ns);
    numbers.push_back(ns);
  }
  return numbers;
}

Result<void> BlockCache::verify_on_disk(BlockId id, std::function<void(Result<void>)> done) {
  const Block& block = catalogue_.block(id);
  if (!block.tiers.has(Tier::disk)) return make_error(Errc::not_found, "it is not on disk");
  if (!catalogue_.hold(id, Tier::disk))
    return make_error(Errc::no_space, "too many readers of one block");
  const Place at = block.places[index_of(Tier::disk)];
  const std::uint64_t bytes = catalogue_.record_bytes(id);
  const NamespaceId ns = catalogue_.namespaces()[block.ns].id;
  auto sent = disk_.devices()[device_of(at)]->store().scrub(
      {ns, block.key, location_of(at), bytes, bytes},
      [this, id, done = std::move(done)](const Result<void>& result) {
        catalogue_.unhold(id, Tier::disk, catalogue_.parent(id));
        if (!result && result.error().code != Errc::unavailable) {
          (void)disk_.retire(id,
                             result.error().code == Errc::corrupt ? Removal::corrupt : Removal::io);
        }
        settle(id);
        done(result);
      });
  if (!sent) catalogue_.unhold(id, Tier::disk, catalogue_.parent(id));
  return sent;
}

std::uint64_t BlockCache::pinned_bytes_max(Tier tier, std::uint32_t device) const noexcept {
  std::uint64_t cap = host_.cap_bytes();
  if (tier == Tier::device) cap = devices_[device]->cap_bytes();
  if (tier == Tier::disk) cap = disk_.devices()[device]->cap_bytes();
  const std::uint64_t percent = options_.pinned_percent_max;
  return cap / 100 * percent + cap % 100 * percent / 100;
}

std::pair<std::size_t, std::size_t> BlockCache::leased_by(SessionId session) const {
  const auto found = leases_of_.find(session);
  if (found == leases_of_.end()) return {};
  return {found->second.ids.size(), found->second.blocks};
}

}  // namespace kvtier::daemon
