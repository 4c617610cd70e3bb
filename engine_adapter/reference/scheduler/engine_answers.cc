// What becomes of a step's logits: tokens, further branches, ends.
#include <algorithm>

#include "core/base/check.h"
#include "engine_adapter/reference/scheduler/engine.h"

namespace kvtier::engine {

bool Engine::is_end(const LiveRequest& live, Token token) const noexcept {
  if (std::ranges::find(live.request.stop_tokens, token) != live.request.stop_tokens.end()) {
    return true;
  }
  const auto& ends = model_.config().eos;
  return !live.request.ignore_end && std::ranges::find(ends, token) != ends.end();
}

// Whether more is to be told of the input's logits than one token that is chosen.
bool Engine::is_told(const Input& input) const noexcept {
  const LiveRequest& live = *input.live;
  if (live.tells_prompt()) return true;
  return input.chooses &&
         (live.request.logprobs || live.beams() || (!live.forked && live.request.samples > 1));
}

// The questions about the rows of an input of the step at hand.
void Engine::ask(Input& input) {
  const LiveRequest& live = *input.live;
  const Request& request = live.request;
  input.told = live.tells_prompt() ? input.tokens : input.chooses ? 1 : 0;
  const std::uint32_t end = input.branch->sequence->length() + input.tokens;
  for (std::uint32_t position = end - input.told; position < end; ++position) {
    RowQuestion question{.logprobs = request.logprobs, .likeliest = request.top_logprobs};
    if (!input.chooses || position + 1 < end) {
      question.known = request.prompt[position + 1];
    } else if (live.beams()) {
      question.likeliest = std::max(2 * request.beam.width, request.top_logprobs);
    } else if (request.tokens_max > 0) {
      question.choices = asked_choices_.emplace_back(choices_of(live, *input.branch));
    }
    questions_.push_back(question);
  }
}

// Those of all answers, where their first tokens come from the same logits.
std::vector<Choice> Engine::choices_of(const LiveRequest& live, const Branch& branch) const {
  std::vector<Choice> choices{{branch.sampler.options(), *branch.unit}};
  for (std::uint32_t i = 1; !live.forked && i < live.request.samples; ++i) {
    SamplerOptions options = live.request.sampling;
    options.seed += i;
    choices.push_back({options, Sampler(options).draw()});
  }
  return choices;
}

void Engine::take_choices(std::span<Input> inputs, std::span<const char> good) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = inputs[i];
    if (!input.chooses || good[i] == 0) continue;
    if (!input.live->forked) note_cached(*input.live, false);
    input.live->forked = true;
    input.branch->unit.reset();
    if (input.live->request.tokens_max == 0) {
      end_without_tokens(*input.live);
      continue;
    }
    take_token(*input.live, *input.branch, {chosen_[i], 0, {}});
  }
}

void Engine::take_told(std::span<Input> inputs, std::span<const char> good) {
  std::size_t row = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].told == 0) continue;
    LiveRequest& live = *inputs[i].live;
    Branch& branch = *inputs[i].branch;
    const bool chooses = inputs[i].chooses;
    // All beams of a request are next to each other.
    std::vector<RowAnswer*> rows;
    bool all_good = true;
    const auto take = [&](std::size_t input) {
      const auto answers = std::span(told_).subspan(row, inputs[input].told);
      row += inputs[input].told;
      all_good = all_good && good[input] != 0;
      if (all_good && live.tells_prompt()) take_prompt(live, *inputs[input].branch, answers);
      rows.push_back(&answers.back());
    };
    take(i);
    while (live.beams() && i + 1 < inputs.size() && inputs[i + 1].live == &live &&
           inputs[i + 1].told > 0) {
      take(++i);
    }
    if (all_good && chooses) take_rows(live, branch, rows);
  }
}

// What is told of the rows that end the branch's sequence. Rows that are computed again tell
// nothing new.
void Engine::take_prompt(LiveRequest& live, const Branch& branch, std::span<RowAnswer> answers) {
  const auto& prompt = live.request.prompt;
  std::size_t position = branch.sequence->length() - answers.size();
  for (RowAnswer& answer : answers) {
    const std::size_t next = ++position;
    if (next == prompt.size() || next != live.told.size() + 1) continue;
    live.told.push_back({prompt[next], answer.known, std::move(answer.likeliest)});
  }
}

// `rows`: of the tokens that come next, of all beams or of one answer.
void Engine::take_rows(LiveRequest& live, Branch& branch, std::span<RowAnswer* const> rows) {
  const bool is_first = !live.forked;
  if (is_first) {
    if (live.request.prompt_logprobs) live.listener->prompt(std::move(live.told));
    note_cached(live, live.width() > 1);
    live.forked = true;
  }
  if (live.request.tokens_max == 0) return end_without_tokens(live);
  if (live.beams()) return step_beams(live, rows);
  if (is_first && !fork_samples(live)) return;
  RowAnswer& row = *rows.front();
  for (std::size_t i = 0; i < row.chosen.size(); ++i) {
    Branch& each = is_first ? *live.branches[i] : branch;
    if (i > 0) each.sampler.draw();  // as choices_of() did
    each.unit.reset();
    ChosenToken chosen{row.chosen[i].token, row.chosen[i].logprob, {}};
    if (live.request.top_logprobs > 0) chosen.top = row.likeliest;
    take_token(live, each, std::move(chosen));
    if (live.result.error) break;
  }
}

// The prompt is all that was to be computed.
void Engine::end_without_tokens(LiveRequest& live) {
  if (live.beams()) {
    live.hypotheses.resize(live.request.samples);
    for (Answer& answer : live.hypotheses) answer.finish = FinishReason::tokens_max;
    return end(live, FinishReason::tokens_max);
  }
  for (std::uint32_t i = 1; i < live.request.samples; ++i) {
    live.branches.push_back(std::make_unique<Branch>(i, live.request.sampling));
  }
  for (std::size_t i = 0; i < live.branches.size(); ++i) {
    end_answer(live, *live.branches[i], FinishReason::tokens_max);
  }
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
  } else if (branch.tokens.size() >= model_.config().positions_max) {
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
                                              live.wait);
  branch->fill->copy_from(*from.fill);
  return branch;
}

// `rows` are those of the beams, in their order.
void Engine::step_beams(LiveRequest& live, std::span<RowAnswer* const> rows) {
  if (live.result.first_token.count() == 0) {
    live.result.first_token = Clock::now() - live.submitted;
  }
  const BeamOptions& options = live.request.beam;
  std::vector<double> sums;
  std::vector<std::span<const TokenLogprob>> likeliest;
  for (const auto& branch : live.branches) sums.push_back(branch->answer.logprob_sum);
  for (const RowAnswer* row : rows) likeliest.emplace_back(row->likeliest);
  const BeamStep step = choose_beams(sums, likeliest, options.width,
                                     [&](Token token) { return is_end(live, token); });
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
      const auto top = likeliest[choice.parent].first(
          std::min<std::size_t>(live.request.top_logprobs, likeliest[choice.parent].size()));
      chosen.top.assign(top.begin(), top.end());
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
  if (live.branches.front()->tokens.size() >= model_.config().positions_max) return true;
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
