#include "daemon/events/event_feed.h"

#include <algorithm>

#include "daemon/cache/catalogue/selection.h"
#include "daemon/limits.h"

namespace kvtier::daemon::events {

namespace {

template <class Entry>
std::span<const std::byte> bytes_of(const Entry& entry) {
  return std::as_bytes(std::span(&entry, 1));
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

EventFeed::EventFeed(const Config::Events& config, BlockCache& cache, EventQueue& queue)
    : config_(config), has_tokens_(cache.catalogue().capacity()), cache_(cache), queue_(queue) {
  cache_.catalogue().on_published = [this](BlockId id, TierSet tiers) { say(id, tiers); };
}

EventFeed::~EventFeed() {
  cache_.catalogue().on_published = nullptr;
}

void EventFeed::begin_walk() {
  silent_ = false;
  told_.clear();
  has_tokens_.assign(has_tokens_.size(), false);
  at_ = 0;
  push_walk(EntryKind::walk_begun);
  push_walk(EntryKind::walk_goes_on);
}

void EventFeed::walk_on() {
  if (silent_) return;
  const Catalogue& catalogue = cache_.catalogue();
  const std::uint32_t end = std::min(catalogue.numbers_used(), at_ + limits::kEventWalkStep);
  for (; at_ < end && queue_.room() > queue_.size() / 2 && !silent_; ++at_) {
    const Block& block = catalogue.block(BlockId(at_));
    if (!block.tiers.empty() && !block.doomed) say(BlockId(at_), catalogue.reachable(BlockId(at_)));
  }
  push_walk(at_ < catalogue.numbers_used() ? EntryKind::walk_goes_on : EntryKind::walk_ended);
}

void EventFeed::tick() {
  const Namespaces& known = cache_.catalogue().namespaces();
  const auto found_out = [&](const Told& told) {
    const auto ns = static_cast<std::uint16_t>(&told - told_.data());
    return told.orphan && known[ns].incarnation == told.incarnation && !known[ns].is_orphan();
  };
  if (!silent_ && std::ranges::any_of(told_, found_out)) {
    silent_ = true;
    queue_.lose();
  }
}

void EventFeed::say(BlockId id, TierSet tiers) {
  if (silent_) {
    ++lost_entries_;
    return;
  }
  const Block& block = cache_.catalogue().block(id);
  const Told& space = told(block.ns);
  if (!space.published) return;
  BlockEntry entry;
  entry.tiers = tiers;
  entry.ns = block.ns;
  entry.block_index = block.block_index;
  entry.key = block.key;
  entry.parent = cache_.catalogue().parent(id);
  std::span<const std::byte> tokens;
  if (tiers.empty()) {
    has_tokens_[id.value] = false;
  } else if (space.tokens && !has_tokens_[id.value]) {
    tokens = tokens_of(id, tiers);
    has_tokens_[id.value] = !tokens.empty();
  }
  push({bytes_of(entry), tokens});
}

// Of a block with no more to it than its tokens, where they are at hand: its commit has just
// proven them, or its record lies in memory, where only a proof that makes the key is believed.
std::span<const std::byte> EventFeed::tokens_of(BlockId id, TierSet tiers) {
  const Catalogue& catalogue = cache_.catalogue();
  const Block& block = catalogue.block(id);
  const RecordLayout& layout = catalogue.namespaces()[block.ns].layout;
  const auto plain = [&](std::span<const std::byte> proof) {
    return proof.size() == layout.proof_bytes() ? proof : std::span<const std::byte>();
  };
  if (const auto* fresh = cache_.committing(); fresh != nullptr && fresh->key == block.key)
    return plain(fresh->proof);
  for (const Tier tier : {Tier::host, Tier::device}) {
    if (!tiers.has(tier)) continue;
    const Place at = block.places[index_of(tier)];
    const auto record = cache_.memory(tier, at).slot(at);
    if (record.empty() || !head_.read(record, layout)) continue;
    const BlockIdentity identity{catalogue.namespaces()[block.ns].id, block.key,
                                 catalogue.parent(id), block.block_index};
    if (head_.names(layout, identity) && head_.key_follows()) return plain(head_.proof());
  }
  return {};
}

const EventFeed::Told& EventFeed::told(std::uint16_t ns) {
  const KnownNamespace& known = cache_.catalogue().namespaces()[ns];
  if (ns >= told_.size()) told_.resize(ns + std::size_t{1});
  Told& told = told_[ns];
  if (told.incarnation == known.incarnation) return told;
  told = {known.incarnation, known.is_orphan(), may_publish(known), false};
  if (!told.published) return told;
  told.tokens = config_.tokens && known.ns.digest_bytes == 0;
  SpaceEntry entry;
  entry.ns = ns;
  entry.block_tokens = known.ns.block_tokens;
  entry.model_bytes = static_cast<std::uint32_t>(known.ns.model.size());
  entry.id = known.id;
  push({bytes_of(entry), bytes_of(known.ns.model), bytes_of(known.ns.adapter)});
  return told;
}

// Whose a namespace is that is known by its id alone nobody can say.
bool EventFeed::may_publish(const KnownNamespace& known) const {
  if (known.is_orphan() || known.vacant) return false;
  if (config_.ranks == Config::Ranks::first && known.ns.rank != 0) return false;
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  if (!config_.models.empty() && !has(config_.models, ModelName::of(known.ns.model).name))
    return false;
  const Tenant& tenant = cache_.catalogue().tenants()[known.tenant];
  if (config_.tenants.empty()) return known.ns.tenant.empty() && !tenant.isolated;
  return has(config_.tenants, tenant.name);
}

void EventFeed::push(std::initializer_list<std::span<const std::byte>> pieces) {
  if (!silent_ && queue_.push(pieces)) return;
  ++lost_entries_;
  if (silent_) return;
  silent_ = true;
  queue_.lose();
}

void EventFeed::push_walk(EntryKind kind) {
  WalkEntry entry;
  entry.kind = kind;
  push({bytes_of(entry)});
}

}  // namespace kvtier::daemon::events
