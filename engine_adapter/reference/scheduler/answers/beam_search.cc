#include "engine_adapter/reference/scheduler/answers/beam_search.h"

#include <algorithm>
#include <cmath>

namespace kvtier::engine {

BeamStep choose_beams(std::span<const double> sums,
                      std::span<const std::span<const TokenLogprob>> likeliest, std::uint32_t width,
                      const std::function<bool(Token)>& is_end) {
  std::vector<BeamChoice> candidates;
  for (std::uint32_t beam = 0; beam < sums.size(); ++beam) {
    const std::size_t count = std::min(likeliest[beam].size(), 2 * std::size_t{width});
    for (const TokenLogprob& next : likeliest[beam].first(count)) {
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
