#include "daemon/cache/leases/loads.h"

#include <unistd.h>

#include <utility>

#include "core/base/points.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

bool Loads::start(BlockId id) {
  if (waiting_.size() >= limits::kReadsWaitingMax) return false;
  const auto from = source(catalogue_.reachable(id));
  if (!from) return false;
  const auto to = room_.slot(host_, catalogue_.tenant(id), catalogue_.record_bytes(id));
  if (!to) return false;
  host_.table(*to).set_reserved(to->slot, {static_cast<std::uint32_t>(::getpid())});
  catalogue_.set_loading(id, true);
  const bool remote = *from == Tier::remote;
  const auto done = [this, id, to = *to, remote](const Result<void>& result) {
    landed(id, to, remote, result);
  };
  const auto sent = remote ? remote_.read(id, *to, done) : disk_.read(id, *to, done);
  if (!sent) {
    catalogue_.set_loading(id, false);
    host_.give_back(*to);
    return false;
  }
  KVTIER_POINT("daemon.load.started");
  return true;
}

void Loads::landed(BlockId id, Place to, bool from_remote, Result<void> result) {
  if (result && from_remote && !is_the_block(id, to))
    result = make_error(Errc::corrupt, "it is not the block that a client took it for");
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
  if (!result && from_remote) {
    if (remote_.read_failed(id, result.error())) ++counts_.faults;
  } else if (!result && result.error().code != Errc::unavailable) {
    ++counts_.faults;
    (void)disk_.retire(id, result.error());
  }
  placements_.settle(id);  // does nothing where its entry has been removed
  on_settled(id, waiters);
  if (on_read) on_read(id, good);
}

// What a lookup learnt of a block's place in its prefix was a client's word.
bool Loads::is_the_block(BlockId id, Place at) {
  const Block& block = catalogue_.block(id);
  const KnownNamespace& known = catalogue_.namespaces()[block.ns];
  const BlockIdentity identity{known.id, block.key, catalogue_.parent(id), block.block_index};
  return head_.read(host_.slot(at), known.layout) && head_.names(known.layout, identity) &&
         head_.key_follows();
}

}  // namespace kvtier::daemon
