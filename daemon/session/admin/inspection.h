// What the daemon knows of a namespace and of a block, as people are told it.
//
// Only looks: a record that does not hold where it lies is reported and left as it is, but for one
// on disk, which the disk tier forgets. A record in memory is read at once, if it is small enough
// to be read while clients wait; for one on disk the answer waits for the disk, and has then what
// was known before. Owned by the session of an administrator, or of whoever lists what it may see.
#pragma once

#include "daemon/session/connection.h"

namespace kvtier::daemon {

class Inspection {
 public:
  // Both outlive this.
  Inspection(Connection& connection, SessionContext& context)
      : connection_(connection), context_(context) {}

  // Answers with all of the block. Errors: malformed.
  Result<void> inspect(std::uint64_t id, wire::InspectRequest::Reader request);
  void fill_namespace(wire::ListReply::Namespace::Builder out, std::uint16_t ns) const;
  void fill_block(wire::ListReply::Block::Builder out, BlockId id) const;

 private:
  void fill_inspected(wire::Inspected::Builder out, BlockId id, bool verify) const;
  void fill_placement(wire::Inspected::Placement::Builder out, BlockId id, Tier tier,
                      bool verify) const;

  Connection& connection_;
  SessionContext& context_;
};

}  // namespace kvtier::daemon
