// Slots between the daemon and the pools: asked for ahead of need, lent, and given back.
//
// Owned by the session, on its thread. It holds:
// - A request for slots ends its pool's expectation once, with slots or without.
// - Slots of an earlier connection go back to the daemon (`letGo`) only when nobody in this process
//   can be writing to any of them: each slot keeps the right that it was granted with.
// - A recall is answered after what it asked for was given back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/session/thread/mapped_extents.h"
#include "client/session/thread/namespaces.h"

namespace kvtier::session {

class SlotExchange {
 public:
  // `changed`: slots have come, or will not come.
  SlotExchange(Conversation& conversation, const MappedExtents& extents,
               const Namespaces& namespaces, std::function<void()> changed)
      : conversation_(conversation),
        extents_(extents),
        namespaces_(namespaces),
        changed_(std::move(changed)) {}

  // A connection has begun: all slots of it are granted with this right, whose end wakes the
  // session thread.
  void begin(std::shared_ptr<const void> right) { right_ = std::move(right); }
  void end();

  void ask(const Namespaces::Entry& ns, Tier tier, std::uint32_t count);
  std::uint32_t asked() const noexcept { return asked_; }

  void abandon(const std::vector<ReservedSlot>& slots);
  void abandon_all(NamespaceEntry& ns);
  void abandon_pools();
  void recall(wire::Recall::Reader recall);
  // Needs a connection: gives back what lies idle, and what earlier connections had.
  void look_after(Clock::time_point now);
  // When slots that lie idle are to be looked for.
  std::optional<Clock::time_point> next_shed() const noexcept { return next_shed_; }

 private:
  Result<void> take(NamespaceEntry& ns, Tier tier, std::uint32_t asked,
                    Result<wire::Message::Reader> reply);
  void let_go_of_old_slots();
  void shed_idle(Clock::time_point now);

  Conversation& conversation_;
  const MappedExtents& extents_;
  const Namespaces& namespaces_;
  const std::function<void()> changed_;
  std::shared_ptr<const void> right_;
  std::vector<std::weak_ptr<const void>> old_rights_;
  bool owes_let_go_ = false;
  std::uint32_t asked_ = 0;  // requests that wait for an answer
  std::optional<Clock::time_point> next_shed_;
};

}  // namespace kvtier::session
