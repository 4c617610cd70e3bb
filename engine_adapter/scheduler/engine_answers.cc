// What becomes of a step's logits: tokens, further branches, ends.
#include <algorithm>
#include <cmath>

#include "client/base/check.h"
#include "engine_adapter/scheduler/engine.h"

namespace kvtier::engine {

bool Engine::is_end(const LiveRequest& live, Token token) const noexcept {
  if (std::ranges::find(live.request.stop_tokens, token) != live.request.stop_tokens.end()) {
    return true;
  }
  const auto& ends = model_.config().eos;
  return !live.request.ignore_end && std::ranges::find(ends, token) != ends.end();
}

bool Engine::wants_logits(const LiveRequest& live) const noexcept {
  return live.request.logprobs || live.beams() || (!live.forked && live.request.samples > 1);
}

void Engine::take_choices(std::span<Input> inputs, std::span<const char> good) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = inputs[i];
    if (!input.chooses || good[i] == 0) continue;
    if (!input.live->forked) note_cached(*input.live, false);
    input.live->forked = true;
    input.branch->unit.reset();
    take_token(*input.live, *input.branch, {chosen_[i], 0, {}});
  }
}

void Engine::take_logits(std::span<Input> inputs, std::span<const char> good) {
  const std::size_t vocab = model_.config().vocab_size;
  std::size_t row = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].chooses) continue;
    LiveRequest& live = *inputs[i].live;
    // All beams of a request are next to each other.
    std::vector<std::span<const float>> logits;
    bool all_good = true;
    const std::size_t first = i;
    for (; i < inputs.size() && inputs[i].live == &live && inputs[i].chooses; ++i) {
      logits.push_back(std::span<const float>(logits_).subspan(vocab * row++, vocab));
      all_good = all_good && good[i] != 0;
      if (!live.beams()) break;
    }
    if (live.beams()) --i;
    if (!all_good) continue;
    Branch& branch = *inputs[first].branch;
    const bool is_first = !live.forked;
    if (is_first) {
      note_cached(live, live.width() > 1);
      live.forked = true;
    }
    if (live.beams()) {
      step_beams(live, logits);
    } else if (!is_first || fork_samples(live)) {
      for (std::size_t b = 0; b < (is_first ? live.branches.size() : 1); ++b) {
        Branch& each = is_first ? *live.branches[b] : branch;
        take_token(live, each, choose_by(live, each, logits.front()));
        if (live.result.error) break;
      }
    }
  }
}

ChosenToken Engine::choose_by(LiveRequest& live, Branch& branch, std::span<const float> logits) {
  if (!branch.unit) branch.unit = branch.sampler.draw();
  ChosenToken chosen{choose(logits, branch.sampler.options(), *branch.unit), 0, {}};
  branch.unit.reset();
  if (!live.request.logprobs) return chosen;
  chosen.logprob = static_cast<float>(logits[chosen.token] - log_sum_exp(logits));
  if (live.request.top_logprobs > 0) chosen.top = top_logprobs(logits, live.request.top_logprobs);
  return chosen;
}

void Engine::take_token(LiveRequest& live, Branch& branch, ChosenToken chosen) {
  if (live.result.first_token.count() == 0) {
    live.result.first_token = Clock::now() - live.submitted;
  }
  if (is_end(live, chosen.token)) return end_answer(live, branch, FinishReason::end_token);
  ++metrics_.completion_tokens;
  ++live.result.usage.completion_tokens;
  branch.tokens.push_back(chosen.token);
  live.listener->token(branch.index, chosen);
  branch.answer.tokens.push_back(std::move(chosen));
  if (branch.answer.tokens.size() == live.request.tokens_max) {
    end_answer(live, branch, FinishReason::tokens_max);
  } else if (branch.sequence->length() == model_.config().positions_max) {
    end_answer(live, branch, FinishReason::context_full);
  }
}

void Engine::end_answer(LiveRequest& live, Branch& branch, FinishReason reason) {
  branch.ended = true;
  branch.answer.finish = reason;
  if (branch.index == 0) note_cached(live, true);
  branch.fill.reset();
  branch.sequence.reset();
  live.listener->finished(branch.index, reason);
  if (--live.answers_open == 0) end(live, reason);
}

// The first token is chosen from the same logits in every answer; complete blocks stay common.
bool Engine::fork_samples(LiveRequest& live) {
  for (std::uint32_t i = 1; i < live.request.samples; ++i) {
    auto branch = fork(live, *live.branches.front(), i);
    if (!branch) return false;
    live.branches.push_back(std::move(branch));
  }
  return true;
}

// Null, with the request failed, where memory is missing for the open block.
std::unique_ptr<Branch> Engine::fork(LiveRequest& live, const Branch& from, std::uint32_t index) {
  SamplerOptions sampling = live.request.sampling;
  sampling.seed += index;
  auto branch = std::make_unique<Branch>(index, sampling);
  branch->tokens = from.tokens;
  branch->answer = from.answer;
  branch->known_tokens = from.known_tokens;
  branch->sequence = std::make_unique<Sequence>(pool_, live.space.id, live.tokens_most);
  if (auto copied = branch->sequence->copy_from(*from.sequence, model_.stream()); !copied) {
    fail(live, copied.error());
    return nullptr;
  }
  branch->fill = std::make_unique<PrefixFill>(parts_, live.space, branch->tokens, *branch->sequence,
                                              live.request.cache_deadline);
  branch->fill->copy_from(*from.fill);
  return branch;
}

// `logits` are those of the beams, in their order.
void Engine::step_beams(LiveRequest& live, std::span<const std::span<const float>> logits) {
  if (live.result.first_token.count() == 0) {
    live.result.first_token = Clock::now() - live.submitted;
  }
  const BeamOptions& options = live.request.beam;
  std::vector<double> sums;
  for (const auto& branch : live.branches) sums.push_back(branch->answer.logprob_sum);
  const BeamStep step =
      choose_beams(sums, logits, options.width, [&](Token token) { return is_end(live, token); });
  for (const BeamChoice& choice : step.finished) {
    Answer answer = live.branches[choice.parent]->answer;
    answer.finish = FinishReason::end_token;
    answer.logprob_sum = choice.logprob_sum;
    answer.score = beam_score(choice.logprob_sum, answer.tokens.size() + 1, options.length_penalty);
    live.hypotheses.push_back(std::move(answer));
  }
  keep_best(live.hypotheses, options.width);

  std::vector<std::unique_ptr<Branch>> beams;
  for (const BeamChoice& choice : step.live) {
    const Branch& parent = *live.branches[choice.parent];
    auto beam = fork(live, parent, static_cast<std::uint32_t>(beams.size()));
    if (!beam) return;
    ChosenToken chosen{
        choice.token, static_cast<float>(choice.logprob_sum - sums[choice.parent]), {}};
    if (live.request.top_logprobs > 0) {
      chosen.top = top_logprobs(logits[choice.parent], live.request.top_logprobs);
    }
    beam->tokens.push_back(choice.token);
    beam->answer.tokens.push_back(std::move(chosen));
    beam->answer.logprob_sum = choice.logprob_sum;
    beams.push_back(std::move(beam));
  }
  live.branches = std::move(beams);
  metrics_.completion_tokens += live.branches.size();
  if (!beams_are_done(live)) return;
  const bool all_tokens = !live.branches.empty() &&
                          live.branches.front()->answer.tokens.size() == live.request.tokens_max;
  for (const auto& branch : live.branches) {
    Answer answer = branch->answer;
    answer.finish = all_tokens ? FinishReason::tokens_max : FinishReason::context_full;
    answer.score = beam_score(answer.logprob_sum, answer.tokens.size(), options.length_penalty);
    live.hypotheses.push_back(std::move(answer));
  }
  keep_best(live.hypotheses, options.width);
  end(live, FinishReason::end_token);
}

// A sum only falls; with a length penalty above 0 its score is best at the greatest length.
bool Engine::beams_are_done(const LiveRequest& live) const {
  if (live.branches.empty()) return true;
  const std::size_t tokens = live.branches.front()->answer.tokens.size();
  if (tokens == live.request.tokens_max) return true;
  if (live.branches.front()->sequence->length() == model_.config().positions_max) return true;
  const BeamOptions& options = live.request.beam;
  if (live.hypotheses.size() < options.width) return false;
  if (options.early_stopping) return true;
  const std::size_t length =
      options.length_penalty > 0 ? std::size_t{live.request.tokens_max} : tokens;
  const double best =
      beam_score(live.branches.front()->answer.logprob_sum, length, options.length_penalty);
  return best <= live.hypotheses.back().score;
}

// `settled`: what comes later counts no more.
void Engine::note_cached(LiveRequest& live, bool settled) {
  if (live.usage_settled || live.branches.empty() || !live.branches.front()->fill) return;
  const PrefixFill& fill = *live.branches.front()->fill;
  live.result.usage.cached_local = fill.taken_local();
  live.result.usage.cached_tiers = fill.taken();
  if (!settled) return;
  live.usage_settled = true;
  for (std::size_t i = 0; i < kTiers; ++i) metrics_.cache_hits[i] += fill.taken()[i];
}

// The request is told, and gone but for its memory, which the step at hand may still name.
void Engine::end(LiveRequest& live, FinishReason of_open_answers) {
  const auto at = live_.find(live.id.value);
  if (at == live_.end()) return;
  note_cached(live, true);
  Request& request = live.request;
  if (live.state == LiveRequest::State::waiting) {
    queue_.remove(request.client, {live.id, request.priority});
  }
  queue_.expect(request.client, -std::int64_t{live.expected_tokens});
  queue_.leave(request.client);
  live.state = LiveRequest::State::ended;
  RequestResult& result = live.result;
  if (live.beams()) {
    if (live.hypotheses.size() > request.samples) live.hypotheses.resize(request.samples);
    result.answers = std::move(live.hypotheses);
    for (const Answer& answer : result.answers) {
      result.usage.completion_tokens += static_cast<std::uint32_t>(answer.tokens.size());
    }
  } else {
    result.answers.resize(request.samples);
    for (const auto& branch : live.branches) result.answers[branch->index] = branch->answer;
    for (std::uint32_t i = 0; i < request.samples; ++i) {
      if (i < live.branches.size() && live.branches[i]->ended) continue;
      result.answers[i].finish = of_open_answers;
    }
  }
  result.total = Clock::now() - live.submitted;
  for (const auto& branch : live.branches) {
    branch->ended = true;
    branch->fill.reset();
    branch->sequence.reset();
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

void Engine::fail(LiveRequest& live, Error error) {
  if (live.result.error) return;
  live.result.error = std::move(error);
  ++metrics_.failed;
  end(live, FinishReason::failed);
}

}  // namespace kvtier::engine
