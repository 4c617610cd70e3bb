#include "client/session/thread/leases.h"

#include <algorithm>
#include <utility>

#include "client/session/thread/wire_values.h"

namespace kvtier::session {
namespace {

// False if nobody will use the lease any more.
bool tell(const Leases::Hold& hold, const std::shared_ptr<Outcome>& outcome,
          const Result<void>& answer) {
  return outcome ? outcome->set(answer) : hold->answered(narrowed(answer, Errc::refused));
}

}  // namespace

void Leases::ask(std::uint32_t handle, const Hold& hold, const std::shared_ptr<Outcome>& outcome) {
  const auto done = [this, hold, outcome](Result<wire::Message::Reader> reply) -> Result<void> {
    if (!reply) {
      tell(hold, outcome, reply.error());
      return {};
    }
    if (!reply->isLeased()) return malformed("something else than a lease");
    return take(reply->getLeased(), hold, outcome);
  };
  conversation_.ask(
      [&](wire::Message::Builder m) {
        auto lease = m.initLease();
        lease.setNs(handle);
        lease.setLookedUp(hold->looked_up());
        lease.setAhead(hold->looked_up() == 0);
        lease.setFirst(hold->position(0) + 1);
        lease.setKeys(data(hold->keys().data(), hold->keys().size() * sizeof(Key)));
      },
      done);
}

void Leases::look_up(std::uint32_t handle, const std::vector<Key>& keys,
                     const std::shared_ptr<Outcome>& outcome) {
  const auto done = [outcome](Result<wire::Message::Reader> reply) -> Result<void> {
    if (!reply) {
      outcome->set(reply.error());
      return {};
    }
    if (!reply->isLookedUp()) return malformed("something else than a lookup");
    outcome->set({});
    return {};
  };
  conversation_.ask(
      [&](wire::Message::Builder m) {
        auto lookup = m.initLookUp();
        lookup.setNs(handle);
        lookup.setKeys(data(keys.data(), keys.size() * sizeof(Key)));
        lookup.setFirst(1);
      },
      done);
}

Result<void> Leases::take(wire::Leased::Reader leased, const Hold& hold,
                          const std::shared_ptr<Outcome>& outcome) {
  const auto slots = leased.getSlots();
  const auto tiers = leased.getTiers();
  if (slots.size() != tiers.size() || slots.size() > hold->keys().size() ||
      (slots.size() > 0 && leased.getLease() == 0)) {
    return malformed("a lease of another shape than asked for");
  }
  MappedExtents::Resolver resolve(extents_, hold->ns().layout.record_bytes);
  std::vector<HeldBlocks::Block> blocks(slots.size());
  for (std::uint32_t i = 0; i < slots.size(); ++i) {
    if (tiers[i] >= kTiersWithRemote) return malformed("a tier that does not exist");
    blocks[i].source = static_cast<Tier>(tiers[i]);
    if (slots[i] == 0) continue;
    blocks[i].slot = resolve(slots[i]);
    if (!blocks[i].slot && !extents_.lies_in_unmapped(slots[i]))
      return malformed("a slot that is in no extent");
    blocks[i].presence =
        blocks[i].slot ? HeldBlocks::Presence::ready : HeldBlocks::Presence::failed;
  }
  const auto granted = static_cast<std::uint32_t>(blocks.size());
  hold->grant(conversation_.connection(), leased.getLease(), std::move(blocks));
  if (leased.getLease() != 0) leases_[leased.getLease()] = hold;
  if (!tell(hold, outcome, {})) {
    hold->note_usable(0, granted);
    hold->release();
  }
  return {};
}

Result<void> Leases::land(wire::Ready::Reader ready) {
  const auto blocks = ready.getBlocks();
  const auto slots = ready.getSlots();
  if (blocks.size() != slots.size()) return malformed("a ready event with blocks but no slots");
  const auto lease = leases_.find(ready.getLease());
  // Released while the event was on its way.
  const auto hold = lease == leases_.end() ? nullptr : lease->second.lock();
  if (!hold) return {};
  if (blocks.size() > hold->keys().size()) return malformed("a block that was not leased");
  MappedExtents::Resolver resolve(extents_, hold->ns().layout.record_bytes);
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    SlotRef slot = resolve(slots[i]);
    if (!slot && slots[i] != 0 && !extents_.lies_in_unmapped(slots[i]))
      return malformed("a slot that is in no extent");
    if (!hold->land(blocks[i], std::move(slot))) return malformed("a block that was not leased");
  }
  return {};
}

void Leases::release(std::uint64_t lease, std::optional<std::uint32_t> usable) {
  leases_.erase(lease);
  conversation_.tell([&](wire::Message::Builder m) {
    if (!usable) return m.initRelease(1).set(0, lease);
    auto partly = m.initReleasePartly(1)[0];
    partly.setLease(lease);
    partly.setUsable(*usable);
  });
}

void Leases::end() {
  for (auto& [id, weak] : std::exchange(leases_, {})) {
    if (const auto hold = weak.lock()) hold->wake();
  }
}

void Leases::watch(Deadline deadline, const Hold& hold) {
  if (due_.size() >= prune_at_) {
    std::erase_if(due_, [](const auto& due) { return due.second.expired(); });
    prune_at_ = std::max<std::size_t>(64, 2 * due_.size());
  }
  due_.emplace(deadline, hold);
}

void Leases::expire(Clock::time_point now) {
  while (!due_.empty() && due_.begin()->first <= now) {
    const auto hold = due_.begin()->second.lock();
    due_.erase(due_.begin());
    if (hold) hold->expire();
  }
}

std::optional<Clock::time_point> Leases::next_due() const {
  if (due_.empty()) return std::nullopt;
  return due_.begin()->first;
}

}  // namespace kvtier::session
