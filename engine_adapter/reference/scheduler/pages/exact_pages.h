// The exact pages, which hold blocks that are still open: how many there are. Owned by the engine.
//
// Invariant: for every request that has pages the pool has made the exact ones of all answers that
// the request may have at once. They are counted and made as it is let in, so no step and no fork
// finds that they are missing. Which of them a sequence uses is the pool's business.
//
// One thread: the engine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "engine_adapter/reference/model/page_pool.h"
#include "engine_adapter/reference/scheduler/live_requests.h"

namespace kvtier::engine {

class ExactPages {
 public:
  // Both outlive it. `running_max`: SchedulerOptions::running_max.
  ExactPages(PagePool& pool, LiveRequests& requests, std::uint32_t running_max)
      : pool_(pool), requests_(requests), running_max_(running_max) {}

  // Sees to it that the exact pages of `live`, which has none, and of all who have theirs are
  // there. False: it has to wait for others or, alone, it has failed.
  bool provide(LiveRequest& live);
  // After a request has ended: memory of pages that nobody may need goes back, now and then.
  void trim();

 private:
  std::uint32_t promised() const;

  PagePool& pool_;
  LiveRequests& requests_;
  const std::uint32_t running_max_;
  // How many there may be, as far as the memory has told.
  std::size_t limit_ = std::numeric_limits<std::size_t>::max();
};

}  // namespace kvtier::engine
