// What clients report of themselves, summed up. Their word is not checked: it is shown to operators
// and decides nothing. Owned by the control thread.
#pragma once

#include <array>
#include <cstdint>

#include "core/wire/kvtier.capnp.h"
#include "daemon/telemetry.h"
#include "kvtier/drop_reason.h"
#include "kvtier/result.h"

namespace kvtier::daemon {

struct Transfers {
  Histogram us;
  std::uint64_t bytes = 0;
};

struct ClientTold {
  std::uint64_t header_faults = 0;
  std::uint64_t proof_faults = 0;
  std::uint64_t checksum_faults = 0;
  std::array<std::uint64_t, kDropReasons> dropped{};
  std::array<Transfers, kTiersWithRemote> loads;  // by the slowest tier that a block came from
  Transfers write_backs;

  // Errors: malformed; nothing is taken then.
  Result<void> take(wire::Report::Reader report);
  std::uint64_t dropped_in_all() const noexcept;
};

}  // namespace kvtier::daemon
