#include "engine_adapter/reference/scheduler/engine.h"

#include <algorithm>
#include <string>

#include "core/base/check.h"
#include "engine_adapter/reference/scheduler/limits.h"

namespace kvtier::engine {
namespace {

static_assert(2 * kBeamsMax <= kLikeliestMax && kTopLogprobsMax <= kLikeliestMax);

Error invalid(const std::string& what) {
  return make_error(Errc::invalid, what);
}

Result<void> check_prompt(const Request& request, const ModelConfig& config) {
  if (request.prompt.empty()) return invalid("the prompt is empty");
  const std::size_t prompt = request.prompt.size();
  if (prompt + (request.tokens_max == 0 ? 0 : 1) > config.positions_max) {
    return invalid("the prompt has " + std::to_string(prompt) + " tokens, the model takes " +
                   std::to_string(config.positions_max) +
                   " (max_position_embeddings), those of the answer included");
  }
  for (const Token token : request.prompt) {
    if (token < config.vocab_size) continue;
    return invalid("the prompt has token " + std::to_string(token) +
                   ", which the model does not have: its tokens are those below vocab_size " +
                   std::to_string(config.vocab_size));
  }
  return {};
}

Result<void> check_answers(const Request& request) {
  if (auto valid = request.sampling.validate(); !valid) return valid;
  if (request.samples == 0 || request.samples > kSamplesMax) {
    return invalid("n must be from 1 to " + std::to_string(kSamplesMax));
  }
  if (request.beam.width > kBeamsMax) {
    return invalid("the beam width must be at most " + std::to_string(kBeamsMax));
  }
  if (request.beam.width > 0) {
    if (request.sampling.temperature != 0) {
      return invalid("beam search chooses the likeliest: temperature must be 0");
    }
    if (request.samples > request.beam.width) {
      return invalid("n must be at most the beam width " + std::to_string(request.beam.width));
    }
  }
  if (request.top_logprobs > kTopLogprobsMax) {
    return invalid("top logprobs must be at most " + std::to_string(kTopLogprobsMax));
  }
  if (request.top_logprobs > 0 && !request.logprobs) {
    return invalid("top logprobs need logprobs");
  }
  if (request.prompt_logprobs && !request.logprobs) {
    return invalid("logprobs of the prompt need logprobs");
  }
  if (request.stop_tokens.size() > kStopTokensMax) {
    return invalid("at most " + std::to_string(kStopTokensMax) + " stop tokens");
  }
  return {};
}

// The last token chosen is never fed.
std::uint32_t tokens_most_of(const Request& request, const ModelConfig& config) {
  const std::uint64_t prompt = request.prompt.size();
  const std::uint64_t fed = prompt + std::max(request.tokens_max, 1U) - 1;
  const std::uint64_t most = std::max<std::uint64_t>(prompt, config.positions_max - 1);
  return static_cast<std::uint32_t>(std::min(fed, most));
}

}  // namespace

const char* name(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::end_token:
      return "end_token";
    case FinishReason::tokens_max:
      return "tokens_max";
    case FinishReason::context_full:
      return "context_full";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::failed:
      return "failed";
  }
  return "?";
}

const char* name(LoadMode mode) noexcept {
  switch (mode) {
    case LoadMode::none:
      return "none";
    case LoadMode::load:
      return "load";
    case LoadMode::compute:
      return "compute";
    case LoadMode::both:
      return "both";
  }
  return "?";
}

const char* name(LoadReason reason) noexcept {
  switch (reason) {
    case LoadReason::nothing_cached:
      return "nothing_cached";
    case LoadReason::load_is_faster:
      return "load_is_faster";
    case LoadReason::compute_is_faster:
      return "compute_is_faster";
    case LoadReason::both_is_faster:
      return "both_is_faster";
    case LoadReason::tier_not_measured:
      return "tier_not_measured";
    case LoadReason::compute_not_measured:
      return "compute_not_measured";
    case LoadReason::forced:
      return "forced";
  }
  return "?";
}

Result<void> SchedulerOptions::validate() const {
  if (waiting_max == 0 || waiting_max > kWaitingMax) {
    return invalid("waiting_max must be from 1 to " + std::to_string(kWaitingMax));
  }
  if (running_max == 0 || running_max > kRunningMax) {
    return invalid("running_max must be from 1 to " + std::to_string(kRunningMax));
  }
  return {};
}

Result<void> check_request(const Request& request, const Model& model, const PagePool& pool,
                           const SchedulerOptions& options) {
  if (auto good = check_prompt(request, model.config()); !good) return good;
  if (auto good = check_answers(request); !good) return good;
  const std::uint32_t block_tokens = pool.layout().block_tokens;
  const std::uint32_t tokens = tokens_most_of(request, model.config());
  const std::uint64_t shared = request.prompt.size() / block_tokens;
  const std::uint64_t each = (tokens + block_tokens - 1) / block_tokens - shared;
  const std::uint64_t width = std::max(request.samples, request.beam.width);
  const std::uint64_t pages = shared + width * each;
  if (pages > pool.pages()) {
    return make_error(Errc::no_space,
                      "prompt and answers may take " + std::to_string(pages * block_tokens) +
                          " tokens, the page pool has room for " +
                          std::to_string(std::uint64_t{pool.pages()} * block_tokens) +
                          ": enlarge it (--pool-tokens)");
  }
  const std::uint32_t step =
      options.step_tokens != 0 ? std::min(options.step_tokens, model.rows_max()) : model.rows_max();
  if (request.beam.width > step) {
    return invalid("the beam width " + std::to_string(request.beam.width) +
                   " does not fit into a step of " + std::to_string(step) + " tokens");
  }
  return {};
}

Engine::Engine(Model& model, PagePool& pool, LeaseWorker& worker, const SchedulerOptions& options)
    : model_(model),
      pool_(pool),
      worker_(worker),
      options_(options),
      step_tokens_(options.step_tokens != 0 ? std::min(options.step_tokens, model.rows_max())
                                            : model.rows_max()),
      store_(pool),
      loads_(model, pool, store_, worker, costs_, metrics_),
      offers_(model, pool, store_, metrics_),
      parts_{model, pool, store_, loads_, offers_, worker, costs_, metrics_, step_tokens_},
      told_rows_max_(static_cast<std::uint32_t>(
          std::clamp<std::size_t>(kToldBytesMax / (model.config().vocab_size * sizeof(float)), 1,
                                  std::min(step_tokens_, kToldRowsMax)))) {}

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
  live->request = std::move(request);
  live->space = std::move(space);
  live->listener = std::move(listener);
  live->wait = CacheWait(live->request.cache_deadline);
  live->submitted = Clock::now();
  live->answers_open = live->beams() ? 1 : live->request.samples;
  live->result.usage.prompt_tokens = static_cast<std::uint32_t>(live->request.prompt.size());
  queue_.push(live->request.client, {id, live->request.priority});
  ++metrics_.submitted;
  live_.emplace(id.value, std::move(live));
}

void Engine::cancel(RequestId id) {
  const auto at = live_.find(id.value);
  if (at == live_.end()) return;
  ++metrics_.cancelled;
  end(*at->second, FinishReason::cancelled);
}

void Engine::cancel_all() {
  while (!live_.empty()) cancel(RequestId(live_.begin()->first));
  sweep();
}

bool Engine::turn() {
  bool moved = loads_.poll();
  moved = offers_.poll() || moved;
  for (const auto& [id, live] : live_) {
    if (live->state == LiveRequest::State::parking) moved = advance_parking(*live) || moved;
  }
  moved = admit() || moved;
  std::vector<Input> inputs = choose_inputs();
  if (inputs.empty()) inputs = trusting_input();
  if (!inputs.empty()) {
    run(inputs);
    moved = true;
  } else if (unmeasured_.steps > 0 && !model_.computing()) {
    note_measured();  // what comes now is time in which nothing is computed
  }
  sweep();
  return moved;
}

SchedulerMetrics Engine::metrics() const {
  SchedulerMetrics metrics = metrics_;
  metrics.waiting = queue_.size();
  for (const auto& [id, live] : live_) {
    if (live->state == LiveRequest::State::parked || live->state == LiveRequest::State::parking) {
      ++metrics.parked;
    }
    if (live->state != LiveRequest::State::running) continue;
    ++metrics.running;
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

// A request may end in the middle of a step that is for others, too.
void Engine::sweep() {
  const bool any = !ended_.empty();
  ended_.clear();
  if (any) trim_exact();
  // What may have to be offered again is still needed.
  if (!options_.keep_pages && !offers_.due()) store_.give_up_unused();
}

void Engine::forget_offers() {
  offers_.forget();
  sweep();
}

}  // namespace kvtier::engine
