// Sequences for requests: begun, begun again after parking, and forked. Owned by the engine.
//
// A branch that is made here has a sequence and the fill that goes with it; both or neither.
//
// One thread: the engine's.
#pragma once

#include <cstdint>
#include <memory>

#include "engine_adapter/reference/scheduler/live_requests.h"
#include "engine_adapter/reference/scheduler/prefix/prefix_fill.h"

namespace kvtier::engine {

class BranchMaker {
 public:
  // Both outlive it.
  BranchMaker(const FillParts& parts, LiveRequests& requests)
      : parts_(parts), requests_(requests) {}
  BranchMaker(const BranchMaker&) = delete;
  BranchMaker& operator=(const BranchMaker&) = delete;

  // Gives `branch` an empty sequence, and plans where its tokens' blocks come from.
  void begin(LiveRequest& live, Branch& branch, LoadPolicy policy);
  // Answer `index` as `from` is now; complete blocks stay common. Null, with the request failed,
  // where memory is missing for the open block.
  std::unique_ptr<Branch> fork(LiveRequest& live, const Branch& from, std::uint32_t index);

 private:
  const FillParts& parts_;
  LiveRequests& requests_;
};

}  // namespace kvtier::engine
