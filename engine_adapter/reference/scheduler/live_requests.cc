#include "engine_adapter/reference/scheduler/live_requests.h"

#include <algorithm>

namespace kvtier::engine {

using State = LiveRequest::State;

namespace {

void collect_hypotheses(LiveRequest& live) {
  RequestResult& result = live.result;
  if (live.hypotheses.size() > live.request.samples) live.hypotheses.resize(live.request.samples);
  result.answers = std::move(live.hypotheses);
  for (const Answer& answer : result.answers) {
    result.usage.completion_tokens += static_cast<std::uint32_t>(answer.tokens.size());
  }
}

void collect_answers(LiveRequest& live, FinishReason of_open_answers) {
  RequestResult& result = live.result;
  result.answers.resize(live.request.samples);
  for (const auto& branch : live.branches) result.answers[branch->index] = branch->answer;
  for (std::uint32_t i = 0; i < live.request.samples; ++i) {
    if (i < live.branches.size() && live.branches[i]->ended) continue;
    result.answers[i].finish = of_open_answers;
  }
}

}  // namespace

void LiveRequests::add(std::unique_ptr<LiveRequest> live) {
  queue_.push(live->request.client, {live->id, live->request.priority});
  ++metrics_.submitted;
  const std::uint64_t id = live->id.value;
  live_.emplace(id, std::move(live));
}

void LiveRequests::cancel(RequestId id) {
  const auto at = live_.find(id.value);
  if (at == live_.end()) return;
  ++metrics_.cancelled;
  end(*at->second, FinishReason::cancelled);
}

void LiveRequests::cancel_all() {
  while (!live_.empty()) cancel(RequestId(live_.begin()->first));
}

bool LiveRequests::sweep() {
  const bool any = !ended_.empty();
  ended_.clear();
  return any;
}

LiveRequest* LiveRequests::first_waiting() const {
  const auto front = queue_.front();
  return front ? live_.at(front->id.value).get() : nullptr;
}

void LiveRequests::take_from_queue(LiveRequest& live) {
  const Request& request = live.request;
  queue_.remove(request.client, {live.id, request.priority});
  live.state = State::running;
  live.expected_tokens = static_cast<std::uint32_t>(request.prompt.size());
  queue_.expect(request.client, live.expected_tokens);
  live.rank = next_rank_++;
}

std::vector<LiveRequest*> LiveRequests::running() const {
  std::vector<LiveRequest*> running;
  for (const auto& [id, live] : live_) {
    if (live->state == State::running) running.push_back(live.get());
  }
  std::ranges::sort(running,
                    [](const LiveRequest* a, const LiveRequest* b) { return a->goes_before(*b); });
  return running;
}

std::vector<LiveRequest*> LiveRequests::running_in_turn() const {
  auto order = running();
  std::ranges::stable_sort(
      order, {}, [&](const LiveRequest* live) { return queue_.served(live->request.client); });
  return order;
}

void LiveRequests::charge(LiveRequest& live, std::uint32_t tokens) {
  queue_.charge(live.request.client, tokens);
  const std::uint32_t expected = std::min(live.expected_tokens, tokens);
  live.expected_tokens -= expected;
  queue_.expect(live.request.client, -std::int64_t{expected});
}

void LiveRequests::note_cached(LiveRequest& live, bool settled) {
  if (live.usage_settled || live.branches.empty() || !live.branches.front()->fill) return;
  const PrefixFill& fill = *live.branches.front()->fill;
  live.result.usage.cached_local = fill.taken_local();
  live.result.usage.cached_tiers = fill.taken();
  if (!settled) return;
  live.usage_settled = true;
  for (std::size_t i = 0; i < kTiersWithRemote; ++i) metrics_.cache_hits[i] += fill.taken()[i];
}

void LiveRequests::end(LiveRequest& live, FinishReason of_open_answers) {
  const auto at = live_.find(live.id.value);
  if (at == live_.end()) return;
  note_cached(live, true);
  const Request& request = live.request;
  if (live.state == State::waiting) queue_.remove(request.client, {live.id, request.priority});
  queue_.expect(request.client, -std::int64_t{live.expected_tokens});
  queue_.leave(request.client);
  live.state = State::ended;
  if (live.beams()) {
    collect_hypotheses(live);
  } else {
    collect_answers(live, of_open_answers);
  }
  live.result.total = Clock::now() - live.submitted;
  for (const auto& branch : live.branches) {
    branch->ended = true;
    branch->fill.reset();
    branch->sequence.reset();
    branch->proposals.drafted.reset();
    branch->hold.reset();
  }
  live.writes.clear();
  if (of_open_answers != FinishReason::cancelled && of_open_answers != FinishReason::failed) {
    ++metrics_.finished;
  }
  ended_.push_back(std::move(at->second));
  live_.erase(at);
  ended_.back()->listener->done(std::move(ended_.back()->result));
}

void LiveRequests::fail(LiveRequest& live, Error error) {
  if (live.state == State::ended) return;
  live.result.error = std::move(error);
  ++metrics_.failed;
  end(live, FinishReason::failed);
}

}  // namespace kvtier::engine
