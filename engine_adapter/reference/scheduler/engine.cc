#include "engine_adapter/reference/scheduler/engine.h"

#include <algorithm>

#include "engine_adapter/reference/scheduler/pages/page_needs.h"
#include "engine_adapter/reference/scheduler/request_check.h"

namespace kvtier::engine {

using State = LiveRequest::State;

Engine::Engine(Model& model, PagePool& pool, LeaseWorker& worker, const SchedulerOptions& options)
    : model_(model),
      pool_(pool),
      worker_(worker),
      options_(options),
      store_(pool, options.earlier.apart),
      loads_(model, pool, store_, worker, costs_, metrics_),
      offers_(model, pool, store_, metrics_),
      parts_{model,  pool,     store_,
             loads_, offers_,  worker,
             costs_, metrics_, options.step_rows(model.rows_max())},
      requests_(metrics_),
      branches_(parts_, requests_),
      exact_(pool, requests_, options.running_max),
      admission_(pool, requests_, exact_, branches_, worker, options_, metrics_),
      parking_(model, pool, requests_, worker, metrics_),
      room_(pool, store_, requests_, parking_),
      answers_(model.config(), requests_, branches_, metrics_),
      speculation_(options.speculation, model.config(), room_, metrics_),
      chooser_(model, pool, requests_, room_, parking_, speculation_, parts_.step_tokens,
               options.tokens_beside_answers),
      steps_(parts_, requests_, parking_, answers_, speculation_) {}

Engine::~Engine() {
  cancel_all();
  model_.wait();
  offers_.wait();
}

void Engine::add(RequestId id, Request request, CacheSpace space,
                 std::shared_ptr<RequestListener> listener) {
  auto live = std::make_unique<LiveRequest>();
  live->id = id;
  live->tokens_most = tokens_most_of(request, model_.config());
  live->pages_most =
      pages_most_of(request, model_.config(), pool_.layout().block_tokens, parts_.step_tokens);
  live->request = std::move(request);
  live->space = std::move(space);
  live->space.answer_tokens = live->request.tokens_max;
  live->listener = std::move(listener);
  live->wait = CacheWait(live->request.cache_deadline);
  live->handoff = CacheWait(live->request.handoff_deadline);
  if (live->request.awaited_tokens > 0) ++metrics_.handoffs;
  live->submitted = Clock::now();
  live->answers_open = live->beams() ? 1 : live->request.samples;
  live->result.usage.prompt_tokens = static_cast<std::uint32_t>(live->request.prompt.size());
  look_up(*live);
  requests_.add(std::move(live));
}

// While it queues: whoever comes next is let in behind it.
void Engine::look_up(LiveRequest& live) {
  if (live.space.cache == nullptr || !live.space.cache->looks_further()) return;
  const std::span<const Token> prompt = live.request.prompt;
  if (live.space.cache->match(prompt).blocks >=
      blocks_matchable(prompt.size(), pool_.layout().block_tokens)) {
    return;
  }
  live.lookup = std::make_shared<LeaseTicket>();
  live.lookup->looks_up = true;
  live.lookup->cache = live.space.cache;
  live.lookup->tokens.assign(prompt.begin(), prompt.end());
  live.lookup->deadline = live.wait.deadline(Clock::now());
  worker_.ask(live.lookup);
}

void Engine::cancel_all() {
  requests_.cancel_all();
  sweep();
}

bool Engine::turn() {
  bool moved = loads_.poll();
  moved = offers_.poll() || moved;
  moved = parking_.advance() || moved;
  moved = admission_.admit() || moved;
  std::vector<BranchInput> inputs = chooser_.choose();
  if (!inputs.empty()) {
    steps_.run(inputs);
    moved = true;
  } else {
    steps_.note_idle();
  }
  sweep();
  return moved;
}

SchedulerMetrics Engine::metrics() const {
  SchedulerMetrics metrics = metrics_;
  metrics.waiting = requests_.waiting();
  for (const auto& [id, live] : requests_.all()) {
    if (live->state == State::parked || live->state == State::parking) ++metrics.parked;
    if (live->state != State::running) continue;
    ++metrics.running;
    metrics.token_places_unused += token_places_unused(*live, pool_.layout().block_tokens);
    for (const auto& branch : live->branches) {
      if (!branch->ended) metrics.tokens_held += branch->sequence->length();
    }
    const bool loading = std::ranges::any_of(live->branches, [](const auto& branch) {
      return !branch->ended && branch->fill && branch->fill->blocked();
    });
    if (loading) ++metrics.loading;
  }
  metrics.pages = pool_.pages();
  metrics.pages_cached = pool_.pages_idle();
  metrics.pages_used = pool_.pages() - pool_.pages_free() - pool_.pages_idle();
  return metrics;
}

void Engine::sweep() {
  if (requests_.sweep()) exact_.trim();
  // What may have to be offered again is still needed.
  if (!options_.keep_pages && !offers_.due()) store_.give_up_unused();
}

void Engine::forget_offers() {
  offers_.forget();
  sweep();
}

}  // namespace kvtier::engine
