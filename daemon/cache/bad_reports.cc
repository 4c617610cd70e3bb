#include "daemon/cache/bad_reports.h"

#include <algorithm>

#include "core/record/private_head.h"

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

constexpr std::uint32_t number_of(BlockId id) noexcept {
  return id.value;
}

}  // namespace

std::uint64_t BadReports::report(SessionId session, std::span<const std::uint16_t> namespaces,
                                 std::span<const Key> keys) {
  const auto reported = known_of(namespaces, keys);
  const auto held_in = held_by(session, reported);
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

// Each block once, by number.
std::vector<BlockId> BadReports::known_of(std::span<const std::uint16_t> namespaces,
                                          std::span<const Key> keys) const {
  std::vector<BlockId> reported;
  for (const Key& key : keys) {
    const BlockId id = catalogue_.find_any(key);
    const bool known = id != kNoBlock && !catalogue_.doomed(id) &&
                       std::ranges::find(namespaces, catalogue_.block(id).ns) != namespaces.end();
    if (known) reported.push_back(id);
  }
  std::ranges::sort(reported, {}, number_of);
  reported.erase(std::unique(reported.begin(), reported.end()), reported.end());
  return reported;
}

// One pass over what the session holds, however many keys it reports. Each record is looked at
// once, however many leases have it: it may have to be read whole.
std::vector<TierSet> BadReports::held_by(SessionId session,
                                         std::span<const BlockId> reported) const {
  std::vector<TierSet> held_in(reported.size());
  if (reported.empty()) return held_in;
  leases_.each_held_by(session, [&](BlockId block, Tier tier) {
    const auto at = std::ranges::lower_bound(reported, block.value, {}, number_of);
    if (at == reported.end() || *at != block) return;
    TierSet& tiers = held_in[static_cast<std::size_t>(at - reported.begin())];
    tiers = tiers.with(tier);
  });
  return held_in;
}

bool BadReports::holds_in(BlockId id, Tier tier) {
  const Block& block = catalogue_.block(id);
  if (!block.tiers.has(tier)) return false;
  const Place at = block.places[index_of(tier)];
  MemoryTier& in = memory_.of(tier, at);
  const auto record = in.slot(at);
  if (record.empty()) return false;
  ++counts_.reported_records_read;
  const Key parent = in.table(at).entry(at.slot).parent;
  return record_holds(record, catalogue_.namespaces()[block.ns], block.key, parent,
                      block.block_index);
}

void BadReports::spoil(BlockId id, TierSet tiers) {
  ++counts_.faults;
  for (const Tier tier : {Tier::device, Tier::host}) {
    if (tiers.has(tier)) (void)pins_.unpin(id, tier);
  }
  catalogue_.spoil(id, tiers);
  placements_.settle(id);
}

}  // namespace kvtier::daemon
