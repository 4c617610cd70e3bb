// The extents that a client has been told of, so that it can map them.
//
// Nothing names a slot to a client before it has been told of the slot's extent: introduce() comes
// first. An extent's id is unique in a lineage, so what a client still has mapped from an earlier
// session counts as told (recall()). A read-only session gets descriptors that cannot be written
// through, and memory of an isolated tenant goes to nobody who has none of its namespaces open.
// Owned by its session.
#pragma once

#include <cstdint>
#include <set>

#include "daemon/session/connection.h"
#include "daemon/session/open_namespaces.h"

namespace kvtier::daemon {

class ToldExtents {
 public:
  // All outlive this.
  ToldExtents(Connection& to, SessionContext& context, const OpenNamespaces& namespaces)
      : to_(to), context_(context), namespaces_(namespaces) {}

  // Before the first introduce().
  void set_read_only(bool read_only) noexcept { read_only_ = read_only; }
  // The extents that hello says the client has from an earlier session, as far as they are still
  // the same. `device`: its GPU. Errors: malformed.
  Result<void> recall(wire::Hello::Reader hello, std::uint32_t device);
  // Tells of the slot's extent, if that has not been done. 0 is no slot. Ends the session where
  // there is no descriptor left.
  void introduce(SlotName slot);
  void gone(ExtentId id);
  const std::set<std::uint32_t>& ids() const noexcept { return ids_; }

 private:
  UniqueFd memory_for_peer(const storage::Extent& extent) const;

  Connection& to_;
  SessionContext& context_;
  const OpenNamespaces& namespaces_;
  bool read_only_ = false;
  std::set<std::uint32_t> ids_;
  std::uint32_t last_ = 0;  // that was told of or found told; 0: none
};

}  // namespace kvtier::daemon
