// What clients say does not hold. A report is believed only of blocks that the session holds
// leased, and not where the daemon can read the record and finds that it holds.
#include <algorithm>
#include <cstring>
#include <vector>

#include "client/record/digest.h"
#include "client/record/record.h"
#include "daemon/control/block_cache.h"

namespace kvtier::daemon {
namespace {

// Whether the bytes are the record of this block: header and proof, and the payload where its
// checksum is known. They are shared with clients: the header is looked at in a copy.
bool record_holds(std::span<const std::byte> record, const KnownNamespace& known, const Key& key,
                  const Key& parent, std::uint32_t block_index) {
  const RecordLayout& layout = known.layout;
  std::vector<std::byte> head(record.begin(),
                              record.begin() + static_cast<std::ptrdiff_t>(layout.header_bytes));
  const std::span<const Token> proof{
      reinterpret_cast<const Token*>(head.data() + layout.proof_offset), layout.block_tokens};
  const BlockIdentity identity{known.id, key, parent, block_index};
  if (!verify_header(head, layout, identity, proof)) return false;
  if (chain_key(known.id, parent, proof) != key) return false;
  RecordHeader header;
  std::memcpy(&header, head.data(), sizeof header);
  return header.payload_checksum == 0 ||
         header.payload_checksum ==
             xxh3_64(record.subspan(layout.header_bytes, layout.payload_bytes));
}

}  // namespace

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
  std::vector<BlockId> bad;
  for (std::size_t i = 0; i < reported.size(); ++i) {
    const auto fails = [&](Tier tier) {
      return held_in[i].has(tier) && !holds_in(reported[i], tier);
    };
    if (fails(Tier::device) || fails(Tier::host)) bad.push_back(reported[i]);
  }
  for (const BlockId id : bad) {
    ++counts_.faults;
    catalogue_.doom(id);
    settle(id);
  }
  return keys.size() - bad.size();
}

}  // namespace kvtier::daemon
