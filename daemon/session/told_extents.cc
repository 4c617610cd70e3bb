#include "daemon/session/told_extents.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

Result<void> ToldExtents::recall(wire::Hello::Reader hello, std::uint32_t device) {
  if (hello.getLineage().size() == 0) return {};
  Lineage lineage;
  if (hello.getLineage().size() != lineage.size() ||
      hello.getExtents().size() > limits::kExtentsMax) {
    return make_error(Errc::malformed, "request: a lineage of the wrong size, or too many extents");
  }
  std::memcpy(lineage.data(), hello.getLineage().begin(), lineage.size());
  // A mapping goes on to be what it is: one for reading alone is of no use to a writer.
  if (lineage != context_.welcomed.lineage || hello.getExtentsReadOnly() != read_only_) return {};
  for (const std::uint32_t extent : hello.getExtents()) {
    const std::uint32_t of = extent >> limits::kExtentBits;
    const auto in = [&](Tier tier) {
      return context_.cache.memory(tier, of).extent(ExtentId(extent)) != nullptr;
    };
    if (of >= context_.cache.devices()) continue;
    if (in(Tier::host) || (of == device && in(Tier::device))) ids_.insert(extent);
  }
  return {};
}

void ToldExtents::introduce(SlotName slot) {
  const Place at = place_named(slot);
  // Slots of a prefix lie side by side.
  if (slot == 0 || !to_.open() || at.container == last_) return;
  last_ = at.container;
  if (!ids_.insert(at.container).second) return;
  for (const Tier tier : {Tier::device, Tier::host}) {
    const storage::Extent* extent = context_.cache.memory(tier, at).extent(ExtentId(at.container));
    if (extent == nullptr) continue;
    // Slots are granted in a tenant's pool alone, so whoever is told of one may use it.
    const Pool pool = context_.cache.memory(tier, at).pool_of(ExtentId(at.container));
    KVTIER_CHECK(pool == 0 || std::ranges::any_of(namespaces_.numbers(), [&](std::uint16_t ns) {
                   const auto& catalogue = context_.cache.catalogue();
                   return ns != OpenNamespaces::kNotKnown &&
                          catalogue.tenants().pool(catalogue.namespaces()[ns].tenant) == pool;
                 }));
    UniqueFd copy = memory_for_peer(*extent);
    if (!copy) {
      return to_.refuse(make_error(Errc::no_space,
                                   "kvtierd has no file descriptor left for an extent of memory: "
                                   "raise its limit of open files"));
    }
    to_.reply(
        0,
        [&](Connection::Builder root) {
          auto event = root.initExtent();
          event.setId(at.container);
          event.setTier(static_cast<std::uint8_t>(tier));
          event.setBytes(extent->shape().bytes);
          event.setSlotBytes(extent->shape().slot_bytes);
          event.setKind(static_cast<std::uint8_t>(extent->kind()));
        },
        std::move(copy));
    return;
  }
  KVTIER_CHECK(false && "a slot of no extent");
}

// A read-only session's descriptor is of an opening of its own, for reading; that of a GPU's memory
// cannot be (see Welcomed::device_for_readers).
UniqueFd ToldExtents::memory_for_peer(const storage::Extent& extent) const {
  const int fd = extent.memory_fd();
  if (!read_only_ || extent.kind() != storage::Extent::Kind::memfd)
    return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

void ToldExtents::gone(ExtentId id) {
  if (ids_.erase(id.value) == 0) return;
  last_ = 0;
  to_.reply(0, [&](Connection::Builder root) { root.setExtentGone(id.value); });
}

}  // namespace kvtier::daemon
