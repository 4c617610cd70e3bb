#include "bench/serve/serve_engine.h"

#include <stdexcept>
#include <thread>

#include "engine_adapter/reference/model/weights/capacity.h"

namespace kvtier::bench {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 60s;
// All of a workload may wait at once.
constexpr std::uint32_t kWaitingMax = 1U << 16;

}  // namespace

ServeEngine::ServeEngine(const ServeEngineOptions& options)
    : options_(options),
      model_(options.model, options.shape, options.device,
             {.device = {},
              .format = need(engine::parse_engine_format(options.format)),
              .pool_tokens = options.pool_tokens,
              .chunk_tokens = options.chunk_tokens,
              .batch_invariant = options.batch_invariant}) {}

// On a GPU a step completes thousands of blocks.
ServeEngine::Running::Running(const ServeEngine& engine)
    : scratch(engine.options_.directory),
      daemon(engine.options_.kvtierd, scratch.path(), engine.options_.tiers),
      client(need(Client::start({.cuda_device = engine.model_.device.cuda,
                                 .socket = daemon.socket(),
                                 .name = "kvtier-serve-bench",
                                 .slots_ahead = engine.on_gpu() ? 1024U : 128U,
                                 .write_backs_queued_max = 8192}))) {
  need(client->wait_connected(Clock::now() + kPatience));
  cache = need(client->open(engine.model_.instance.ns));
}

engine::SchedulerOptions ServeEngine::scheduler_options() const {
  engine::SchedulerOptions options;
  options.waiting_max = kWaitingMax;
  options.running_max = options_.running_max;
  options.keep_pages = options_.own_pages;
  options.tokens_beside_answers = options_.chunk_tokens_beside_answers;
  return options;
}

std::unique_ptr<ServeEngine::Lane> ServeEngine::lane(const engine::SchedulerOptions& options) {
  return std::make_unique<Lane>(model_.instance, nullptr, options);
}

std::unique_ptr<ServeEngine::Lane> ServeEngine::with_cache() {
  if (!running_) running_.emplace(*this);
  return std::make_unique<Lane>(model_.instance, running_->client, scheduler_options());
}

void ServeEngine::flush() {
  if (running_) need(running_->client->flush(Clock::now() + kPatience));
}

// What a request has just let go of may be held for a moment.
void ServeEngine::empty_cache(std::span<const Token> probe) {
  const auto give_up = Clock::now() + kPatience;
  do {
    flush();
    running_->daemon.drop({});
    flush();
    if (blocks_cached(probe) == 0) return;
    std::this_thread::sleep_for(10ms);
  } while (Clock::now() < give_up);
  throw std::runtime_error("the cache could not be emptied");
}

std::uint32_t ServeEngine::blocks_cached(std::span<const Token> prompt) const {
  return running_ ? running_->cache->match(prompt).blocks : 0;
}

}  // namespace kvtier::bench
