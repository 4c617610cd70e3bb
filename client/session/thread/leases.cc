#include "client/session/thread/leases.h"

#include <utility>

#include "client/session/thread/wire_values.h"

namespace kvtier::session {

void Leases::ask(std::uint32_t handle, const Hold& hold, const std::shared_ptr<Outcome>& outcome) {
  const auto done = [this, hold, outcome](Result<wire::Message::Reader> reply) -> Result<void> {
    if (!reply) {
      outcome->set(reply.error());
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
        lease.setKeys(data(hold->keys().data(), hold->keys().size() * sizeof(Key)));
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
  std::vector<HeldBlocks::Block> blocks(slots.size());
  for (std::uint32_t i = 0; i < slots.size(); ++i) {
    if (tiers[i] >= kTiers) return malformed("a tier that does not exist");
    blocks[i].source = static_cast<Tier>(tiers[i]);
    if (slots[i] == 0) continue;
    blocks[i].slot = extents_.resolve(slots[i], hold->ns().layout.record_bytes);
    if (!blocks[i].slot && !extents_.lies_in_unmapped(slots[i]))
      return malformed("a slot that is in no extent");
    blocks[i].presence =
        blocks[i].slot ? HeldBlocks::Presence::ready : HeldBlocks::Presence::failed;
  }
  hold->grant(conversation_.connection(), leased.getLease(), std::move(blocks));
  if (leased.getLease() != 0) leases_[leased.getLease()] = hold;
  if (!outcome->set({})) {
    hold->note_usable(0, hold->blocks());
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
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    SlotRef slot = extents_.resolve(slots[i], hold->ns().layout.record_bytes);
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

}  // namespace kvtier::session
