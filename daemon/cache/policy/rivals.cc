#include "daemon/cache/policy/rivals.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace kvtier::daemon {
namespace {

// Hits that only one has fall on both by chance alone within about so many deviations of their
// number: more than the usual 3, for the blocks of a prompt hit and miss together.
constexpr double kDeviations = 8;
constexpr std::uint32_t kUsesToHalf = 64 * Rivals::kKeys;

}  // namespace

// ---- a game

RivalCache::RivalCache(const HitRates* rates, std::uint32_t keys_max)
    : rates_(rates), nodes_(keys_max), buckets_(std::bit_ceil(keys_max), kNone) {
  clear();
}

void RivalCache::clear() noexcept {
  std::ranges::fill(buckets_, kNone);
  ends_ = {};
  size_ = 0;
  free_ = kNone;
  for (std::uint32_t at = 0; at < nodes_.size(); ++at) {
    nodes_[at].next = free_;
    free_ = at;
  }
}

std::uint32_t RivalCache::find(std::uint64_t key) noexcept {
  std::uint32_t at = bucket(key);
  while (at != kNone && nodes_[at].key != key) at = nodes_[at].next;
  return at;
}

void RivalCache::push(std::uint32_t at, UseClass use) noexcept {
  Node& node = nodes_[at];
  Ends& ends = ends_[use];
  node.use = use;
  node.newer = kNone;
  node.older = ends.newest;
  (ends.newest == kNone ? ends.oldest : nodes_[ends.newest].newer) = at;
  ends.newest = at;
}

void RivalCache::pull(std::uint32_t at) noexcept {
  const Node& node = nodes_[at];
  Ends& ends = ends_[node.use];
  (node.newer == kNone ? ends.newest : nodes_[node.newer].older) = node.older;
  (node.older == kNone ? ends.oldest : nodes_[node.older].newer) = node.newer;
}

std::uint32_t RivalCache::victim(std::uint32_t now) const noexcept {
  if (rates_ == nullptr) return ends_[use_class::kUnknown].oldest;
  std::uint32_t least = kNone;
  double density = std::numeric_limits<double>::infinity();
  for (const Ends& ends : ends_) {
    if (ends.oldest == kNone) continue;
    const Node& node = nodes_[ends.oldest];
    const double of = rates_->density(node.use, now - node.at);
    if (of >= density) continue;
    least = ends.oldest;
    density = of;
  }
  return least;
}

void RivalCache::remove(std::uint32_t at) noexcept {
  pull(at);
  std::uint32_t* link = &bucket(nodes_[at].key);
  while (*link != at) link = &nodes_[*link].next;
  *link = nodes_[at].next;
  nodes_[at].next = free_;
  free_ = at;
  --size_;
}

bool RivalCache::use(std::uint64_t key, UseClass use, std::uint32_t now, std::uint32_t capacity) {
  capacity = std::min(capacity, static_cast<std::uint32_t>(nodes_.size()));
  std::uint32_t at = find(key);
  const bool there = at != kNone;
  if (there) {
    pull(at);
  } else {
    while (size_ >= capacity) remove(victim(now));
    at = free_;
    free_ = nodes_[at].next;
    std::uint32_t& first = bucket(key);
    nodes_[at].key = key;
    nodes_[at].next = first;
    first = at;
    ++size_;
  }
  nodes_[at].at = now;
  push(at, rates_ == nullptr ? use_class::kUnknown : use);
  return there;
}

// ---- both

Rivals::Rivals(const HitRates& rates) : oldest_(nullptr, kKeys), density_(&rates, kKeys) {}

void Rivals::set_blocks(std::uint64_t blocks) {
  const std::uint64_t parts = std::bit_ceil((blocks + kKeys - 1) / kKeys);
  const std::uint64_t skipped = blocks <= kKeys ? 0 : parts - 1;
  if (skipped != skipped_) {
    skipped_ = skipped;
    oldest_.clear();
    density_.clear();
  }
  capacity_ = static_cast<std::uint32_t>(blocks / (skipped_ + 1));
}

void Rivals::use(const Key& key, UseClass use, std::uint32_t now) {
  if (!samples(key)) return;
  const bool oldest = oldest_.use(key.tail(), use, now, capacity_);
  const bool density = density_.use(key.tail(), use, now, capacity_);
  if (++uses_ == kUsesToHalf) {
    uses_ = 0;
    only_oldest_ /= 2;
    only_density_ /= 2;
  }
  if (oldest == density) return;
  (oldest ? only_oldest_ : only_density_) += 1;
  judge();
}

void Rivals::judge() noexcept {
  const double chance = kDeviations * std::sqrt(only_oldest_ + only_density_);
  if (only_oldest_ > only_density_ + chance) {
    oldest_is_better_ = true;
  } else if (only_density_ >= only_oldest_) {
    oldest_is_better_ = false;
  }
}

std::uint64_t Rivals::bytes() const noexcept {
  return sizeof *this +
         2 * std::uint64_t{kKeys} * (sizeof(std::uint64_t) * 4 + sizeof(std::uint32_t));
}

}  // namespace kvtier::daemon
