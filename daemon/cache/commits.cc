#include "daemon/cache/commits.h"

#include "core/base/points.h"
#include "core/record/digest.h"
#include "core/record/record.h"

namespace kvtier::daemon {

bool Commits::valid(const NewBlock& block, std::uint16_t ns) const {
  const KnownNamespace& known = catalogue_.namespaces()[ns];
  const RecordLayout& layout = known.layout;
  const std::uint32_t count = layout.digest_bytes != 0 ? layout.digest_bytes : layout.block_tokens;
  return !known.closed && block.proof.size() >= layout.proof_bytes() &&
         block.proof.size() - layout.proof_bytes() <= layout.extra_bytes_max &&
         block.key == chain_key(known.id, block.parent, count, block.proof) &&
         (block.block_index == 0) == block.parent.is_zero();
}

bool Commits::commit(SessionId session, std::uint16_t ns, const NewBlock& block) {
  BlockId id = catalogue_.find_any(block.key);
  const bool there_before = id != kNoBlock;
  bool good = valid(block, ns);
  if (id != kNoBlock && catalogue_.find(ns, block.key) != id) good = false;  // doomed, or not ours
  bool taken = false;
  bool to_host = false;
  bool second_writer = false;
  for (const SlotName name : block.slots) {
    const auto tier = loans_.take_back(name, session);
    if (!tier) continue;
    const Taken slot =
        second_writer ? Taken::there_before : take_slot(name, *tier, id, ns, block, good);
    if (slot != Taken::yes) {
      second_writer = slot == Taken::there_before;
      memory_.of(*tier, place_named(name)).give_back(place_named(name));
      continue;
    }
    KVTIER_POINT("daemon.commit.sealed");
    taken = true;
    to_host = to_host || *tier == Tier::host;
  }
  if (to_host) disk_.committed(id);
  if (to_host) remote_.writes().committed(id);
  if (good && there_before) disk_.seen_again(id);
  if (good && there_before) remote_.writes().seen_again(id);
  return taken;
}

// Puts the block into the slot; `id` is its entry, made if it is kNoBlock.
Commits::Taken Commits::take_slot(SlotName name, Tier tier, BlockId& id, std::uint16_t ns,
                                  const NewBlock& block, bool good) {
  const KnownNamespace& known = catalogue_.namespaces()[ns];
  const Place at = place_named(name);
  MemoryTier& into = memory_.of(tier, at);
  // Of the right size, and taken for the same tenant: what it counts and who sees it follow from
  // that.
  const bool fits =
      into.extent(ExtentId(at.container))->shape().slot_bytes == known.layout.record_bytes &&
      into.tenant_of(at) == known.tenant;
  const auto record = into.slot(at);
  const BlockIdentity identity{known.id, block.key, block.parent, block.block_index};
  // What cannot be read here has been read where the block came from or went to as well; without
  // that it could not go to disk either. What is known to be remote nobody here may have read.
  constexpr TierSet kRead = TierSet{}.with(Tier::host).with(Tier::disk);
  const bool proven =
      good && fits &&
      (record.empty() ? id != kNoBlock && (catalogue_.block(id).tiers.bits & kRead.bits) != 0
                      : verify_header(record, known.layout, identity, block.proof).has_value());
  if (!proven) {
    ++counts_.refused_commits;
    return Taken::no;
  }
  if (id == kNoBlock) {
    id = add(ns, block);
    if (id == kNoBlock) return Taken::no;
  } else if (catalogue_.block(id).tiers.has(tier)) {
    return Taken::there_before;
  }
  placements_.seal(id, into, at, block.parent);
  return Taken::yes;
}

BlockId Commits::add(std::uint16_t ns, const NewBlock& block) {
  if (catalogue_.size() == catalogue_.capacity() &&
      !room_.index_entry(catalogue_.namespaces()[ns].tenant))
    return kNoBlock;
  const BlockId id = catalogue_.add(ns, block.key, block.parent, block.block_index);
  catalogue_.came(
      id, {.blocks = block.prompt_blocks, .block_tokens = 0, .answer_tokens = block.answer_tokens});
  return id;
}

}  // namespace kvtier::daemon
