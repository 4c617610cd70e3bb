// Ranges of blocks on their way from the cache into pages, each once, whoever waits for them.
//
// One thread: the engine's. Nothing here waits, but settle().
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/model/page_pool.h"
#include "engine_adapter/reference/scheduler/prefix/block_store.h"
#include "engine_adapter/reference/scheduler/prefix/cost_model.h"
#include "engine_adapter/reference/scheduler/prefix/lease_worker.h"
#include "engine_adapter/reference/scheduler/scheduler_metrics.h"

namespace kvtier::engine {

struct LoadTask {
  enum class Stage : std::uint8_t {
    leasing,   // asked for
    arriving,  // leased; blocks on disk are being read to memory
    copying,   // to the pages
    ended,
  };

  Stage stage = Stage::leasing;
  BlockRange range;  // of the prefix
  NamespaceId ns;
  Key parent;                        // of the first of its blocks
  std::vector<Key> keys;             // of its blocks
  bool announced = false;            // the store has them
  std::vector<PageId> pages;         // referred to until it is tidied up
  std::vector<Tier> sources;         // of the blocks that are being copied, or were
  std::vector<std::byte*> in_place;  // of those, where the cache has it; null: in its page
  std::uint32_t good = 0;            // once ended: how many leading blocks are there
  bool late = false;                 // not all of it was there by its deadline
  std::uint32_t users = 0;           // who wait for it

  std::shared_ptr<LeaseTicket> ticket;
  Clock::time_point begun;
  Clock::time_point seen_copying;  // last
  std::optional<Lease> lease;      // kept after the end for blocks in place
  std::optional<Load> load;        // after the lease, so that the copies end before it does

  std::uint32_t blocks() const noexcept { return range.end - range.first; }
  bool ended() const noexcept { return stage == Stage::ended; }
  // Whether what lies in place is still what it was.
  bool intact() const noexcept { return lease && lease->held(); }
};

class Loads {
 public:
  // All outlive it.
  Loads(Model& model, PagePool& pool, BlockStore& store, LeaseWorker& worker, CostModel& costs,
        SchedulerMetrics& metrics)
      : model_(model),
        pool_(pool),
        store_(store),
        worker_(worker),
        costs_(costs),
        metrics_(metrics) {}
  ~Loads();
  Loads(const Loads&) = delete;
  Loads& operator=(const Loads&) = delete;

  // Starts to bring the blocks that `names` names, which begin at block `range.first` of the prefix
  // `tokens`, into `pages`. The store has them from the next announce(), or poll(), on. The caller
  // is its first user.
  std::shared_ptr<LoadTask> start(const std::shared_ptr<Cache>& cache,
                                  std::span<const Token> tokens, BlockRange range,
                                  std::span<const BlockName> names, std::vector<PageId> pages,
                                  Deadline deadline);
  // To be called before another request looks for blocks in the store.
  void announce();
  void use(LoadTask& task) noexcept { ++task.users; }
  // With the last user it is given up as soon as that can be.
  void leave(LoadTask& task) noexcept { --task.users; }

  // Takes every task as far as it goes. Whether any has moved. Copies are under way before the
  // store hears of them; what has ended is tidied up by the next poll, so that whoever waited for
  // it is served first; at once where pages are short.
  bool poll();
  // Waits for the copies of a task that is copying, and ends it.
  void settle(LoadTask& task);
  bool busy() const noexcept { return !tasks_.empty(); }

 private:
  bool advance(LoadTask& task);
  bool take_lease(LoadTask& task);
  bool start_copies(LoadTask& task, Clock::time_point now);
  bool finish_copies(LoadTask& task, Clock::time_point now);
  void note_arrival(const LoadTask& task, const std::array<double, kTiersWithRemote>& from,
                    Clock::time_point settled);
  void end(LoadTask& task, std::uint32_t good);
  void tidy_ended(std::uint32_t blocks_min);
  void tidy(LoadTask& task);
  BlockName name_of(const LoadTask& task, std::uint32_t index) const;

  Model& model_;
  PagePool& pool_;
  BlockStore& store_;
  LeaseWorker& worker_;
  CostModel& costs_;
  SchedulerMetrics& metrics_;
  std::vector<std::shared_ptr<LoadTask>> tasks_;
  std::vector<std::shared_ptr<LoadTask>> unannounced_;      // of those
  std::array<Clock::time_point, kTiersWithRemote> free_{};  // when the last range had arrived
};

}  // namespace kvtier::engine
