// Pages for requests that run: from the pool, from blocks that nobody uses, and from requests that
// must give theirs up. Owned by the engine.
//
// Invariant: nobody is parked for a request that goes before none of those that run. So the first
// of them can get all pages there are, and always gets on.
//
// One thread: the engine's.
#pragma once

#include <cstdint>

#include "engine_adapter/reference/scheduler/live_requests.h"
#include "engine_adapter/reference/scheduler/pages/parking.h"
#include "engine_adapter/reference/scheduler/prefix/block_store.h"

namespace kvtier::engine {

class PageRoom {
 public:
  // All outlive it.
  PageRoom(PagePool& pool, BlockStore& store, LiveRequests& requests, Parking& parking)
      : pool_(pool), store_(store), requests_(requests), parking_(parking) {}
  PageRoom(const PageRoom&) = delete;
  PageRoom& operator=(const PageRoom&) = delete;

  // Sees to it that `pages` are free for `live`: if not now (false) then soon, by parking others
  // that come after it; or there is nobody to park.
  bool make(std::uint32_t pages, const LiveRequest& live);
  // The same for the branch's next `tokens` tokens, and takes the pages: the sequence has them when
  // this returns true, each to itself. False, too, where `live` has failed.
  bool reserve(LiveRequest& live, Branch& branch, std::uint32_t tokens);
  // The same with pages that nobody uses; parks nobody.
  bool reserve_idle(LiveRequest& live, Branch& branch, std::uint32_t tokens);

 private:
  LiveRequest* victim_of(const LiveRequest& live) const;

  PagePool& pool_;
  BlockStore& store_;
  LiveRequests& requests_;
  Parking& parking_;
};

}  // namespace kvtier::engine
