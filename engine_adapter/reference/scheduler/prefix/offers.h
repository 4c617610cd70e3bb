// Blocks on their way from the engine's pages to the cache. A write-back that finds no slot in time
// is dropped, so that nobody waits; what was dropped is offered again a few times, for as long as
// the engine has it anyway. No page is kept for that.
//
// One thread: the engine's.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/model/page_pool.h"
#include "engine_adapter/reference/scheduler/prefix/block_store.h"
#include "engine_adapter/reference/scheduler/prefix/cache_spaces.h"
#include "engine_adapter/reference/scheduler/scheduler_metrics.h"

namespace kvtier::engine {

class Offers {
 public:
  // All outlive it.
  Offers(Model& model, PagePool& pool, BlockStore& store, SchedulerMetrics& metrics)
      : model_(model), pool_(pool), store_(store), metrics_(metrics) {}
  // Waits until no page is read any more.
  ~Offers() { wait(); }
  Offers(const Offers&) = delete;
  Offers& operator=(const Offers&) = delete;

  // Offers complete blocks `range` of `tokens`, which lie in `pages`. Nothing without a cache.
  void add(const CacheSpace& space, std::span<const Token> tokens, BlockRange range,
           const std::vector<PageId>& pages);
  // The cache does not seem to have these blocks, which the store has: they are offered soon, once,
  // if it still has not. `last` is the key of the last of them.
  void owe(const CacheSpace& space, std::span<const Token> tokens, BlockRange range,
           const Key& last);

  // Lets go of pages that have been read, and offers again what is due. Whether there was any.
  bool poll();
  // Pages are being read.
  bool busy() const noexcept { return !writes_.empty(); }
  // When poll() next has something to offer; none: nothing is owed.
  std::optional<Clock::time_point> due() const noexcept;
  // What is owed stays so.
  void forget() noexcept { owed_.clear(); }
  void wait();

 private:
  struct Blocks {
    CacheSpace space;
    std::vector<Token> tokens;  // of the prefix up to the last block
    BlockRange range;
    Key last;
    int times = 0;  // offered
  };
  struct Write {
    WriteBack write;
    std::vector<PageId> pages;
    Blocks blocks;
  };
  struct Owed {
    Blocks blocks;
    Clock::time_point due;
  };

  void start(Blocks blocks, const std::vector<PageId>& pages);
  void owe(Blocks blocks);
  bool end_writes();
  bool offer_due();
  void offer_again(const Blocks& blocks);
  static bool cached(const Blocks& blocks);

  Model& model_;
  PagePool& pool_;
  BlockStore& store_;
  SchedulerMetrics& metrics_;
  std::deque<Write> writes_;
  std::deque<Owed> owed_;
};

}  // namespace kvtier::engine
