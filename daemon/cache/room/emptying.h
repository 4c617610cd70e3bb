// Extents that are being emptied, so that their memory goes back to the system: for records of
// another size that find no room, for a cap that was lowered, or once slots that are lent have come
// home. Owned by the control thread.
//
// Of each part of a tier at most one extent is on its way out. No slot of it is given out
// meanwhile, and what nobody holds in it is evicted from the first slot to the last, a few thousand
// at a time. For another size that goes on in later turns by itself, until the extent has gone or
// something in it must stay; for a cap it goes on with the next shrink(), and takes an easier
// extent where there is one by then. Above its cap a tier is only shrunk: what is emptied is given
// back, not used again.
//
// What somebody holds, or may be writing to, is never touched.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "daemon/cache/room/eviction.h"
#include "daemon/cache/tiers/later.h"

namespace kvtier::daemon {

class Emptying {
 public:
  // All of these outlive this; so does `later`, which may be set after this has been made.
  Emptying(Catalogue& catalogue, MemoryTiers& memory, Eviction& eviction, const Later& later)
      : catalogue_(catalogue),
        memory_(memory),
        eviction_(eviction),
        later_(later),
        extents_(1 + memory.devices()) {}

  // Slots of one class (size and pool) have no room while others fill the tier: an extent of theirs
  // that nobody uses goes, the one of the coldest block if possible. True if one has gone now; a
  // large one takes several turns, and is of use to whoever asks when it has (on_room).
  bool empty_one_for(MemoryTier& tier, TenantId tenant, std::uint64_t record_bytes);

  // Records of another size in the same pool may have been unused for longer than the block that
  // would go, which was last used at `used`: then an extent of theirs goes in its place, as above.
  // Age so decides between sizes as it does within one, up to what an extent holds of different
  // ages.
  bool empty_an_older_one_for(MemoryTier& tier, TenantId tenant, std::uint64_t record_bytes,
                              std::uint64_t used);

  // The extent that goes once the slots that are lent of it have come home. Chooses one, of another
  // class and kept by such slots alone, where none is on its way out; none: no such extent helps.
  std::optional<ExtentId> await_loans_for(MemoryTier& tier, TenantId tenant,
                                          std::uint64_t record_bytes);
  // Nobody waits for slots any more: such extents stay.
  void stop_awaiting_loans();

  // Of each tier that is over its cap one extent is emptied of what nobody holds, as far as one
  // turn goes, and given back once it is empty. False where no tier is over its cap.
  bool shrink();
  // Whether the last call of shrink() evicted or gave back something, so that another one may too.
  bool shrink_goes_on() const noexcept { return shrink_goes_on_; }

  // An extent that was emptied in later turns has gone: there is room.
  std::function<void()> on_room;

 private:
  // Of the extent of a tier that is on its way out.
  struct Leaving {
    std::uint32_t next = 0;           // the first slot that was not looked at
    bool for_cap = false;             // it goes because of the cap
    bool step_waits = false;          // a further step is to be taken in a later turn
    std::uint32_t look_again_in = 0;  // evictions, before an older one is looked for again
  };
  enum class Emptied { gone, more, stays };

  Leaving& leaving(const MemoryTier& tier) noexcept {
    return extents_[tier.tier() == Tier::device ? 1 + tier.device() : 0];
  }
  void drain(MemoryTier& tier, ExtentId id);
  std::optional<ExtentId> extent_to_empty(MemoryTier& tier, TenantId tenant,
                                          std::uint64_t record_bytes);
  std::optional<ExtentId> extent_to_empty(MemoryTier& tier, TenantId tenant,
                                          std::uint64_t record_bytes, bool kept_too);
  std::optional<ExtentId> older_extent(MemoryTier& tier, TenantId tenant,
                                       std::uint64_t record_bytes, std::uint64_t used);
  std::optional<ExtentId> extent_to_await(MemoryTier& tier, TenantId tenant,
                                          std::uint64_t record_bytes) const;
  std::optional<ExtentId> easiest_to_empty(MemoryTier& tier) const;
  Emptied empty_some(MemoryTier& tier, Removal why);
  bool empty_in_steps(MemoryTier& tier);
  void shrink(MemoryTier& tier);

  Catalogue& catalogue_;
  MemoryTiers& memory_;
  Eviction& eviction_;
  const Later& later_;
  std::vector<Leaving> extents_;  // the host tier's, then one a GPU
  bool shrink_goes_on_ = false;
};

}  // namespace kvtier::daemon
