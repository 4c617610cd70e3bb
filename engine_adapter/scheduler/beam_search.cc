#include "engine_adapter/scheduler/beam_search.h"

#include <algorithm>
#include <cmath>

namespace kvtier::engine {

double log_sum_exp(std::span<const float> logits) noexcept {
  const double most = *std::ranges::max_element(logits);
  double total = 0;
  for (const float logit : logits) total += std::exp(logit - most);
  return most + std::log(total);
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, std::uint32_t count) {
  const double all = log_sum_exp(logits);
  std::vector<Token> tokens(logits.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<Token>(i);
  const auto kept = static_cast<std::ptrdiff_t>(std::min<std::size_t>(count, tokens.size()));
  std::partial_sort(tokens.begin(), tokens.begin() + kept, tokens.end(), [&](Token a, Token b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  std::vector<TokenLogprob> top;
  for (std::ptrdiff_t i = 0; i < kept; ++i) {
    const Token token = tokens[static_cast<std::size_t>(i)];
    top.push_back({token, static_cast<float>(logits[token] - all)});
  }
  return top;
}

BeamStep choose_beams(std::span<const double> sums, std::span<const std::span<const float>> logits,
                      std::uint32_t width, const std::function<bool(Token)>& is_end) {
  std::vector<BeamChoice> candidates;
  for (std::uint32_t beam = 0; beam < sums.size(); ++beam) {
    for (const TokenLogprob& next : top_logprobs(logits[beam], 2 * width)) {
      candidates.push_back({beam, next.token, sums[beam] + next.logprob});
    }
  }
  std::ranges::stable_sort(candidates, [](const BeamChoice& a, const BeamChoice& b) {
    return a.logprob_sum > b.logprob_sum;
  });
  if (candidates.size() > 2 * std::size_t{width}) candidates.resize(2 * std::size_t{width});
  BeamStep step;
  for (const BeamChoice& candidate : candidates) {
    if (is_end(candidate.token)) {
      step.finished.push_back(candidate);
    } else if (step.live.size() < width) {
      step.live.push_back(candidate);
    }
  }
  return step;
}

double beam_score(double logprob_sum, std::size_t tokens, double length_penalty) noexcept {
  return logprob_sum /
         std::pow(static_cast<double>(std::max<std::size_t>(tokens, 1)), length_penalty);
}

void keep_best(std::vector<Answer>& hypotheses, std::uint32_t width) {
  std::ranges::stable_sort(hypotheses,
                           [](const Answer& a, const Answer& b) { return a.score > b.score; });
  if (hypotheses.size() > width) hypotheses.resize(width);
}

}  // namespace kvtier::engine
