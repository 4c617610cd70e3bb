#include "client/session/thread/slot_exchange.h"

#include <algorithm>

#include "client/session/limits.h"
#include "client/session/thread/wire_values.h"

namespace kvtier::session {

void SlotExchange::end() {
  old_rights_.push_back(std::exchange(right_, nullptr));
  owes_let_go_ = true;
  next_shed_.reset();
}

void SlotExchange::ask(const Namespaces::Entry& ns, Tier tier, std::uint32_t count) {
  if (!conversation_.connection() || ns->state != NamespaceEntry::State::open) {
    ns->pool(tier).give_up();
    return changed_();
  }
  ++asked_;
  const auto done = [this, ns, tier, count](Result<wire::Message::Reader> reply) {
    --asked_;
    const auto taken = take(*ns, tier, count, std::move(reply));
    changed_();
    return taken;
  };
  conversation_.ask(
      [&](wire::Message::Builder m) {
        auto reserve = m.initReserve();
        reserve.setNs(ns->handle);
        reserve.setTier(static_cast<std::uint8_t>(tier));
        reserve.setCount(count);
      },
      done);
}

Result<void> SlotExchange::take(NamespaceEntry& ns, Tier tier, std::uint32_t asked,
                                Result<wire::Message::Reader> reply) {
  std::vector<ReservedSlot> slots, useless;
  if (reply) {
    if (!reply->isReserved()) return malformed("something else than reserved slots");
    const auto names = reply->getReserved().getSlots();
    if (names.size() > asked) return malformed("more slots than were asked for");
    MappedExtents::Resolver resolve(extents_, ns.layout.record_bytes);
    for (const std::uint64_t name : names) {
      SlotRef ref = resolve(name);
      if (!ref && extents_.lies_in_unmapped(name)) {
        useless.push_back({{name, nullptr}, conversation_.connection(), right_});
        continue;
      }
      if (!ref || ref.extent->tier != tier)
        return malformed("a reserved slot that is in no extent");
      slots.push_back({std::move(ref), conversation_.connection(), right_});
    }
  }
  if (ns.invalidated || ns.users == 0) {
    abandon(slots);
    slots.clear();
  }
  if (!slots.empty() && !next_shed_) next_shed_ = Clock::now() + kSlotsIdleMax;
  abandon(useless);
  ns.pool(tier).arrive(std::move(slots), Clock::now());
  return {};
}

void SlotExchange::abandon(const std::vector<ReservedSlot>& slots) {
  for (std::size_t at = 0; at < slots.size(); at += wire::kReserveMax) {
    const auto count = std::min<std::size_t>(slots.size() - at, wire::kReserveMax);
    conversation_.tell([&](wire::Message::Builder m) {
      auto list = m.initAbandon(static_cast<unsigned>(count));
      for (unsigned i = 0; i < list.size(); ++i) list.set(i, slots[at + i].ref.name);
    });
  }
}

void SlotExchange::abandon_all(NamespaceEntry& ns) {
  for (SlotPool& pool : ns.pools) abandon(pool.clear());
}

void SlotExchange::abandon_pools() {
  for (const auto& ns : namespaces_.all()) abandon_all(*ns);
}

// What the daemon wants back and nobody is filling.
void SlotExchange::recall(wire::Recall::Reader recall) {
  // Each asking for a list counts against what of a frame may be read.
  const auto extents = recall.getExtents();
  const auto keeps = recall.getKeeps();
  for (const auto& ns : namespaces_.all()) {
    for (const std::uint32_t extent : extents) {
      for (SlotPool& pool : ns->pools) abandon(pool.shed_extent(extent));
    }
    if (ns->state != NamespaceEntry::State::open) continue;
    for (const auto keep : keeps) {
      if (keep.getNs() != ns->handle || keep.getTier() >= ns->pools.size()) continue;
      abandon(ns->pools[keep.getTier()].shed(keep.getSlots()));
    }
  }
  conversation_.tell([&](wire::Message::Builder m) { m.setReturned(recall.getNumber()); });
}

void SlotExchange::look_after(Clock::time_point now) {
  if (owes_let_go_) let_go_of_old_slots();
  if (next_shed_ && now >= *next_shed_) shed_idle(now);
}

void SlotExchange::let_go_of_old_slots() {
  std::erase_if(old_rights_, [](const auto& right) { return right.expired(); });
  if (!old_rights_.empty()) return;
  owes_let_go_ = false;
  conversation_.tell([](wire::Message::Builder m) { m.setLetGo(); });
}

void SlotExchange::shed_idle(Clock::time_point now) {
  bool more = false;
  for (const auto& ns : namespaces_.all()) {
    for (SlotPool& pool : ns->pools) {
      abandon(pool.shed_idle(now));
      more = more || pool.has_surplus();
    }
  }
  next_shed_.reset();
  if (more) next_shed_ = now + kSlotsIdleMax / 2;
}

}  // namespace kvtier::session
