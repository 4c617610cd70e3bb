#include "engine_adapter/reference/scheduler/answers/beam_answers.h"

#include <algorithm>

namespace kvtier::engine {

void BeamAnswers::step(LiveRequest& live, std::span<RowAnswer* const> rows) {
  if (live.result.first_token.count() == 0) {
    live.result.first_token = Clock::now() - live.submitted;
  }
  const BeamOptions& options = live.request.beam;
  std::vector<double> sums;
  std::vector<std::span<const TokenLogprob>> likeliest;
  for (const auto& branch : live.branches) sums.push_back(branch->answer.logprob_sum);
  for (const RowAnswer* row : rows) likeliest.emplace_back(row->likeliest);
  const BeamStep step = choose_beams(sums, likeliest, options.width, [&](Token token) {
    return ends_answer(live.request, config_.eos, token);
  });
  for (const BeamChoice& choice : step.finished) {
    Answer answer = live.branches[choice.parent]->answer;
    answer.finish = FinishReason::end_token;
    answer.logprob_sum = choice.logprob_sum;
    answer.score = beam_score(choice.logprob_sum, answer.tokens.size() + 1, options.length_penalty);
    live.hypotheses.push_back(std::move(answer));
  }
  keep_best(live.hypotheses, options.width);
  if (!go_on(live, step.live, likeliest)) return;
  metrics_.completion_tokens += live.branches.size();
  if (done(live)) finish(live);
}

// Makes the next beams of the present ones. False: the request has failed.
bool BeamAnswers::go_on(LiveRequest& live, std::span<const BeamChoice> choices,
                        std::span<const std::span<const TokenLogprob>> likeliest) {
  std::vector<std::unique_ptr<Branch>> beams;
  for (const BeamChoice& choice : choices) {
    const Branch& parent = *live.branches[choice.parent];
    auto beam = branches_.fork(live, parent, static_cast<std::uint32_t>(beams.size()));
    if (!beam) return false;
    ChosenToken chosen{
        choice.token, static_cast<float>(choice.logprob_sum - parent.answer.logprob_sum), {}};
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
  return true;
}

// A sum only falls; with a length penalty above 0 its score is best at the greatest length.
bool BeamAnswers::done(const LiveRequest& live) const {
  if (live.branches.empty()) return true;
  const std::size_t tokens = live.branches.front()->answer.tokens.size();
  if (tokens == live.request.tokens_max) return true;
  if (live.branches.front()->tokens.size() >= config_.positions_max) return true;
  const BeamOptions& options = live.request.beam;
  if (live.hypotheses.size() < options.width) return false;
  if (options.early_stopping) return true;
  const std::size_t length =
      options.length_penalty > 0 ? std::size_t{live.request.tokens_max} : tokens;
  const double best =
      beam_score(live.branches.front()->answer.logprob_sum, length, options.length_penalty);
  return best <= live.hypotheses.back().score;
}

// The beams that are left are hypotheses, too.
void BeamAnswers::finish(LiveRequest& live) {
  const BeamOptions& options = live.request.beam;
  const bool all_tokens = !live.branches.empty() &&
                          live.branches.front()->answer.tokens.size() == live.request.tokens_max;
  for (const auto& branch : live.branches) {
    Answer answer = branch->answer;
    answer.finish = all_tokens ? FinishReason::tokens_max : FinishReason::context_full;
    answer.score = beam_score(answer.logprob_sum, answer.tokens.size(), options.length_penalty);
    live.hypotheses.push_back(std::move(answer));
  }
  keep_best(live.hypotheses, options.width);
  requests_.end(live, FinishReason::end_token);
}

}  // namespace kvtier::engine
