// The engine that is measured, and the kvtierd that it is measured with.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "bench/serve/bench_model.h"
#include "bench/support/daemon_child.h"
#include "bench/support/records.h"
#include "engine_adapter/reference/scheduler/scheduler.h"

namespace kvtier::bench {

struct ServeEngineOptions {
  std::string model, shape;  // a directory, or as kvtier-engine --random-weights
  std::string device = "cpu";
  std::string format = "fp8_e4m3";  // of the KV
  std::string kvtierd;
  std::filesystem::path directory;
  std::uint32_t pool_tokens = 0;    // as kvtier-engine
  std::uint32_t chunk_tokens = 0;   // likewise
  bool batch_invariant = false;     // likewise
  std::uint32_t running_max = 256;  // likewise
  std::uint32_t chunk_tokens_beside_answers = engine::SchedulerOptions().tokens_beside_answers;
  bool own_pages = true;  // a request finds what others left in the engine's pages
  DaemonChild::Options tiers;
};

class ServeEngine {
 public:
  // Throws std::runtime_error, as all of it does.
  explicit ServeEngine(const ServeEngineOptions& options);

  // A scheduler with nothing in its pages. There is one at a time.
  struct Lane {
    Lane(engine::Instance& instance, const std::shared_ptr<Client>& client,
         const engine::SchedulerOptions& options)
        : spaces(instance.ns, client),
          scheduler(*instance.model, *instance.pool, spaces, options) {}

    engine::CacheSpaces spaces;
    engine::Scheduler scheduler;
  };
  std::unique_ptr<Lane> without_cache() { return lane(scheduler_options()); }
  // Without a cache, scheduled in another way.
  std::unique_ptr<Lane> lane(const engine::SchedulerOptions& options);
  // Starts the daemon where it does not run yet.
  std::unique_ptr<Lane> with_cache();

  // Waits until what was written back is in the cache.
  void flush();
  // Until nothing of `probe`, a prompt, is cached. No lane is there.
  void empty_cache(std::span<const Token> probe);
  // Leading blocks of a prompt that are cached.
  std::uint32_t blocks_cached(std::span<const Token> prompt) const;

  engine::SchedulerOptions scheduler_options() const;
  std::uint32_t pool_tokens() const noexcept {
    return model_.instance.pool->pages() * kBlockTokens;
  }
  std::uint32_t vocabulary() const noexcept { return model_.loaded->config.vocab_size; }
  std::uint32_t positions_max() const noexcept { return model_.loaded->config.positions_max; }
  // Whether an answer has the same tokens whatever else is in the engine's steps.
  bool answers_are_fixed() const noexcept { return model_.instance.model->batch_invariant(); }
  bool on_gpu() const noexcept { return model_.device.cuda.has_value(); }

 private:
  // The client ends before the daemon.
  struct Running {
    explicit Running(const ServeEngine& engine);
    ScratchDirectory scratch;
    DaemonChild daemon;
    std::shared_ptr<Client> client;
    std::shared_ptr<Cache> cache;
  };
  const ServeEngineOptions options_;
  BenchModel model_;
  std::optional<Running> running_;
};

}  // namespace kvtier::bench
