// Leases: asked for, granted, their blocks landing.
//
// Owned by the session, on its thread. It holds:
// - A lease is here from its grant until it is released or the connection ends; what lands for one
//   that is not here any more is nobody's.
// - A grant that nobody waits for any more is released at once: the daemon must not keep what
//   nobody will use.
// - A lease that was asked for without waiting is told of its answer, and of its deadline once that
//   has passed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

#include "client/session/held_blocks.h"
#include "client/session/outcome.h"
#include "client/session/thread/conversation.h"
#include "client/session/thread/mapped_extents.h"

namespace kvtier::session {

class Leases {
 public:
  using Hold = std::shared_ptr<HeldBlocks>;

  Leases(Conversation& conversation, const MappedExtents& extents)
      : conversation_(conversation), extents_(extents) {}

  // `outcome`: whoever waits; null: the lease is told.
  void ask(std::uint32_t handle, const Hold& hold, const std::shared_ptr<Outcome>& outcome);
  // Has the daemon ask its remote tier, which it has, for what it does not know of these blocks,
  // from the prefix's first.
  void look_up(std::uint32_t handle, const std::vector<Key>& keys,
               const std::shared_ptr<Outcome>& outcome);
  // Errors: malformed.
  Result<void> land(wire::Ready::Reader ready);
  // `usable`: how many of the leading blocks were of use; none given: all.
  void release(std::uint64_t lease, std::optional<std::uint32_t> usable);
  // The connection has ended.
  void end();

  void watch(Deadline deadline, const Hold& hold);
  void expire(Clock::time_point now);
  std::optional<Clock::time_point> next_due() const;

 private:
  Result<void> take(wire::Leased::Reader leased, const Hold& hold,
                    const std::shared_ptr<Outcome>& outcome);

  Conversation& conversation_;
  const MappedExtents& extents_;
  std::unordered_map<std::uint64_t, std::weak_ptr<HeldBlocks>> leases_;
  std::multimap<Deadline, std::weak_ptr<HeldBlocks>> due_;
  std::size_t prune_at_ = 64;
};

}  // namespace kvtier::session
