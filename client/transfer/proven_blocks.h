// The check before any copy out of leased blocks: header and proof of each.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "client/session/held_blocks.h"
#include "core/record/private_head.h"

namespace kvtier::transfer {

// The leading blocks that may be copied, and the one that ended them, if any did not hold.
struct ProvenBlocks {
  std::vector<session::SlotRef> slots;  // keep the records mapped
  std::vector<BlockFault> faults;       // at most one
};

// Where the CPU finds the header and proof of block `i` (layout.header_bytes or more).
using HeaderOf = std::function<std::span<const std::byte>(std::uint32_t i)>;

// Whether the payload of block `i`, whose header this is and holds, has the checksum that it gives.
using PayloadHolds = std::function<bool(std::uint32_t i, const PrivateHead& head)>;

// Looks at the first `count` blocks of the lease as `blocks` (a snapshot of it) shows them, up to
// the first that is still on its way or does not hold. Counts faults, reports bad keys and tells
// the lease how much of it is of use.
ProvenBlocks prove(session::HeldBlocks& hold, const std::vector<session::HeldBlocks::Block>& blocks,
                   std::size_t count, const HeaderOf& header_of,
                   const PayloadHolds& payload_of = {});

}  // namespace kvtier::transfer
