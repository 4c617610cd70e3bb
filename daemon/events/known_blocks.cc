#include "daemon/events/known_blocks.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace kvtier::daemon::events {

void KnownBlocks::take(const SpaceEntry& entry, std::span<const std::byte> texts) {
  const std::string all(reinterpret_cast<const char*>(texts.data()), texts.size());
  spaces_[entry.ns] = std::make_shared<const Space>(Space{entry.id, entry.block_tokens,
                                                          all.substr(0, entry.model_bytes),
                                                          all.substr(entry.model_bytes)});
}

void KnownBlocks::take(const BlockEntry& entry, std::span<const std::byte> tokens) {
  auto at = known_.find(entry.key);
  if (at == known_.end()) {
    if (entry.tiers.empty()) return;
    at = known_.try_emplace(entry.key).first;
  }
  Known& known = at->second;
  known.now = entry.tiers;
  known.walk = walk_;
  if (!entry.tiers.empty()) {
    known.parent = entry.parent;
    known.block_index = entry.block_index;
    known.space = spaces_[entry.ns];
    if (!tokens.empty() && !known.tokens) {
      known.tokens = std::make_unique<Token[]>(tokens.size() / sizeof(Token));
      std::memcpy(known.tokens.get(), tokens.data(), tokens.size());
    }
  }
  if (differs(known)) list(at);
}

bool KnownBlocks::differs(const Known& known) noexcept {
  return known.now != known.told || (known.told_plain && known.tokens) || known.now.empty();
}

void KnownBlocks::list(Blocks::iterator at) {
  if (walking_ || at->second.listed) return;
  at->second.listed = true;
  changes_.push_back(at->first);
}

void KnownBlocks::begin_walk() {
  walking_ = true;
  ++walk_;
}

void KnownBlocks::end_walk() {
  if (!walking_) return;
  walking_ = false;
  for (auto& [key, known] : known_) {
    if (known.walk != walk_) known.now = {};
  }
  for (const At at : by_prefix([](const Known& known) { return differs(known) && !known.listed; }))
    list(known_.find(at->first));
}

void KnownBlocks::tell(BatchMaker& batch) {
  if (walking_) return;
  for (; next_change_ < changes_.size() && !batch.full(); ++next_change_) {
    const auto at = known_.find(changes_[next_change_]);
    Known& known = at->second;
    known.listed = false;
    const bool again = known.told_plain && known.tokens;
    for (const Tier tier : kAllTiersWithRemote) {
      if (known.told.has(tier) && !known.now.has(tier)) batch.removed(tier, known.space, at->first);
    }
    for (const Tier tier : kAllTiersWithRemote) {
      if (known.now.has(tier) && (again || !known.told.has(tier)))
        put_stored(batch, tier, at->first, known);
    }
    known.told = known.now;
    known.told_plain = !known.tokens;
    if (known.now.empty()) known_.erase(at);
  }
  if (next_change_ < changes_.size()) return;
  changes_.clear();
  next_change_ = 0;
}

void KnownBlocks::put_stored(BatchMaker& batch, Tier tier, const Key& key, const Known& known) {
  batch.stored(tier, known.space, key, known.parent,
               {known.tokens.get(), known.tokens ? known.space->block_tokens : 0});
}

// Parents before children, and a child right behind its parent as far as that is possible: runs of
// a prefix are one event.
std::vector<KnownBlocks::At> KnownBlocks::in_prefix_order(std::vector<At> blocks) {
  const auto by_parent = [](const At at) -> const Key& { return at->second.parent; };
  std::ranges::sort(blocks, {}, by_parent);
  std::vector<Key> keys;
  keys.reserve(blocks.size());
  for (const At at : blocks) keys.push_back(at->first);
  std::ranges::sort(keys);
  std::vector<At> waiting, ordered;
  ordered.reserve(blocks.size());
  for (const At first : blocks) {
    if (std::ranges::binary_search(keys, first->second.parent)) continue;
    waiting.push_back(first);
    while (!waiting.empty()) {
      const At at = waiting.back();
      waiting.pop_back();
      ordered.push_back(at);
      auto child = std::ranges::lower_bound(blocks, at->first, {}, by_parent);
      for (; child != blocks.end() && by_parent(*child) == at->first; ++child)
        waiting.push_back(*child);
    }
  }
  return ordered;
}

}  // namespace kvtier::daemon::events
