#include "tests/protocol/hostile/belongings.h"

#include <unistd.h>

namespace kvtier::protocol {

Belongings::Belongings(const Who& who, const Universe& universe, Tally& tally, Random& random)
    : memory(tally, ::geteuid() == 0),
      who_(who),
      universe_(universe),
      tally_(tally),
      random_(random) {}

void Belongings::clear() {
  read_only = false;
  certain = true;
  opened_.clear();
  held_.clear();
  leases_.clear();
  spent_.clear();
  if (!memory.ids().empty()) earlier_extents_ = memory.ids();
  memory.clear();
}

void Belongings::given_slot(const Held& held) {
  held_.push_back(held);
  tally_.slots[tally_.any_slot++ % tally_.slots.size()] = held.slot;
}

void Belongings::given_lease(std::uint64_t lease) {
  leases_.push_back(lease);
  tally_.leases[tally_.any_lease++ % tally_.leases.size()] = lease;
  constexpr std::size_t kLeasesMax = 512;
  if (leases_.size() > kLeasesMax) leases_.erase(leases_.begin());
}

Belongings::Opened Belongings::pick_opened() {
  Opened opened{0, universe_.pick(random_, who_.user)};
  if (!opened_.empty()) opened = random_.pick(opened_);
  opened.handle = random_.odd(opened.handle, 150);
  return opened;
}

Belongings::Opened Belongings::pick_to_commit() {
  Opened in = pick_opened();
  if (!held_.empty() && !random_.one_in(20)) {
    in.ns = random_.pick(held_).ns;
    for (const Opened& opened : opened_) {
      if (opened.ns == in.ns) in.handle = opened.handle;
    }
  }
  return in;
}

std::optional<Key> Belongings::pick_key() {
  const auto prompt = universe_.prompt(random_, pick_opened().ns);
  Key key = random_.pick(prompt).identity.key;
  if (random_.one_in(20)) key.bytes[random_.below(16U)] ^= std::byte{1};
  return random_.one_in(100) ? std::nullopt : std::optional(key);
}

std::uint64_t Belongings::lease_to_name() {
  if (!leases_.empty() && !random_.one_in(10)) {
    std::uint64_t& last = random_.pick(leases_);
    const std::uint64_t lease = last;
    if (!random_.one_in(8)) {
      last = leases_.back();
      leases_.pop_back();
    }
    return lease;
  }
  return random_.odd(tally_.leases[random_.below(tally_.leases.size())].load(), 4);
}

std::uint64_t Belongings::slot_to_name() {
  const std::uint64_t slot = random_.one_in(3) && !spent_.empty()
                                 ? random_.pick(spent_)
                                 : tally_.slots[random_.below(tally_.slots.size())].load();
  return random_.odd(slot, 4);
}

std::uint64_t Belongings::slot_to_abandon() {
  const std::uint64_t any = slot_to_name();
  if (held_.empty() || random_.one_in(10)) return any;
  std::swap(random_.pick(held_), held_.back());
  const std::uint64_t slot = held_.back().slot;
  held_.pop_back();
  return slot;
}

std::vector<std::uint64_t> Belongings::slots_to_commit(const TestBlock& block, std::size_t ns) {
  std::vector<std::uint64_t> slots;
  std::vector<Held> kept;
  for (const Held& held : held_) {
    const bool other_tier = slots.empty() || (held.slot >> 32) != (slots[0] >> 32);
    const bool take =
        held.ns == ns && slots.size() < 2 && other_tier && (slots.empty() || random_.one_in(2));
    if (take) {
      slots.push_back(held.slot);
    } else {
      kept.push_back(held);
    }
  }
  for (const std::uint64_t slot : slots) {
    const auto record = memory.record(slot);
    const RecordLayout& layout = universe_.namespaces()[ns].layout;
    if (record.size() < layout.record_bytes || random_.one_in(40)) continue;
    daemon::testing::fill_record(record, layout, block);
  }
  // Kept now and then: it is committed again, or abandoned, later.
  if (!random_.one_in(12)) held_ = std::move(kept);
  if (random_.one_in(20)) slots.push_back(slot_to_name());
  if (random_.one_in(60) && !slots.empty()) slots.push_back(slots[0]);
  if (random_.one_in(400)) slots.resize(random_.below(2000U));
  spent_.insert(spent_.end(), slots.begin(), slots.end());
  constexpr std::size_t kSpentMax = 64;
  if (spent_.size() > kSpentMax) spent_.erase(spent_.begin(), spent_.end() - kSpentMax);
  return slots;
}

std::vector<std::uint64_t> Belongings::own_slots() const {
  std::vector<std::uint64_t> slots;
  for (const Held& held : held_) slots.push_back(held.slot);
  return slots;
}

}  // namespace kvtier::protocol
