// What clients say does not hold. A report is believed only of blocks that the session holds
// leased, and not where the daemon can read the record and finds that it holds.
#include <algorithm>
#include <vector>

#include "core/record/private_head.h"
#include "daemon/cache/block_cache.h"

namespace kvtier::daemon {
namespace {

// Whether the bytes are the record of this block: header and proof, and the payload where its
// checksum is known.
bool record_holds(std::span<const std::byte> record, const KnownNamespace& known, const Key& key,
                  const Key& parent, std::uint32_t block_index) {
  PrivateHead head;
  return head.read(record, known.layout) &&
         head.names(known.layout, {known.id, key, parent, block_index}) && head.key_follows() &&
         head.payload_holds(record, known.layout);
}

}  // namespace

// Memory that clients write to is no reason to forget a copy that they cannot reach.
void BlockCache::spoil(BlockId id, TierSet tiers) {
  ++counts_.faults;
  for (const Tier tier : {Tier::device, Tier::host}) {
    if (tiers.has(tier)) (void)pins_.unpin(id, tier);
  }
  catalogue_.spoil(id, tiers);
  settle(id);
}

bool BlockCache::holds_in(BlockId id, Tier tier) {
  const Block& block = catalogue_.block(id);
  if (!block.tiers.has(tier)) return false;
  const Place at = block.places[index_of(tier)];
  const auto record = memory(tier, at).slot(at);
  if (record.empty()) return false;
  ++counts_.reported_records_read;
  const Key parent = memory(tier, at).table(at).entry(at.slot).parent;
  return record_holds(record, catalogue_.namespaces()[block.ns], block.key, parent,
                      block.block_index);
}

std::uint64_t BlockCache::report_bad(SessionId session, std::span<const std::uint16_t> namespaces,
                                     std::span<const Key> keys) {
  std::vector<BlockId> reported;
  for (const Key& key : keys) {
    const BlockId id = catalogue_.find_any(key);
    const bool known = id != kNoBlock && !catalogue_.doomed(id) &&
                       std::ranges::find(namespaces, catalogue_.block(id).ns) != namespaces.end();
    if (known) reported.push_back(id);
  }
  const auto by_number = [](BlockId id) { return id.value; };
  std::ranges::sort(reported, {}, by_number);
  reported.erase(std::ranges::unique(reported).begin(), reported.end());
  // Each record is looked at once, however many leases have it: it may have to be read whole.
  std::vector<TierSet> held_in(reported.size());
  // One pass over what the session holds, however many keys it reports.
  const auto of = leases_of_.find(session);
  for (std::size_t i = 0; of != leases_of_.end() && !reported.empty() && i < of->second.ids.size();
       ++i) {
    for (const Leased& leased : leases_.at(of->second.ids[i]).blocks) {
      if (leased.block == kNoBlock || leased.pending) continue;
      const auto at = std::ranges::lower_bound(reported, leased.block.value, {}, by_number);
      if (at == reported.end() || *at != leased.block) continue;
      TierSet& tiers = held_in[static_cast<std::size_t>(at - reported.begin())];
      tiers = tiers.with(leased.tier);
    }
  }
  std::size_t bad = 0;
  for (std::size_t i = 0; i < reported.size(); ++i) {
    TierSet spoilt;
    for (const Tier tier : {Tier::device, Tier::host}) {
      if (held_in[i].has(tier) && !holds_in(reported[i], tier)) spoilt = spoilt.with(tier);
    }
    if (spoilt.empty()) continue;
    ++bad;
    spoil(reported[i], spoilt);
  }
  return keys.size() - bad;
}

}  // namespace kvtier::daemon
