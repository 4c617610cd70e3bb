#include "daemon/cache/leases/loads.h"

#include <unistd.h>

#include <utility>

#include "core/base/points.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

bool Loads::start(BlockId id) {
  if (waiting_.size() >= limits::kReadsWaitingMax) return false;
  const auto to = room_.slot(host_, catalogue_.tenant(id), catalogue_.record_bytes(id));
  if (!to) return false;
  host_.table(*to).set_reserved(to->slot, {static_cast<std::uint32_t>(::getpid())});
  catalogue_.set_loading(id, true);
  const auto sent = disk_.read(
      id, *to, [this, id, to = *to](const Result<void>& result) { landed(id, to, result); });
  if (!sent) {
    catalogue_.set_loading(id, false);
    host_.give_back(*to);
    return false;
  }
  KVTIER_POINT("daemon.load.started");
  return true;
}

void Loads::landed(BlockId id, Place to, const Result<void>& result) {
  catalogue_.set_loading(id, false);
  std::vector<Waiter> waiters;
  if (auto node = waiting_.extract(id.value)) waiters = std::move(node.mapped());
  const bool good = result.has_value() && !catalogue_.doomed(id);
  if (good && !catalogue_.block(id).tiers.has(Tier::host)) {
    placements_.seal(id, host_, to, catalogue_.parent(id));
  } else {
    host_.give_back(to);  // it failed, or a client has written the block meanwhile
  }
  on_landed(id, waiters, good);
  KVTIER_POINT("daemon.load.landed");
  // What cannot be reached now may be good later; all else did not hold.
  if (!result && result.error().code != Errc::unavailable) {
    ++counts_.faults;
    (void)disk_.retire(id, result.error());
  }
  placements_.settle(id);  // does nothing where retire() has removed the entry
  on_settled(id, waiters);
  if (on_read) on_read(id, good);
}

}  // namespace kvtier::daemon
