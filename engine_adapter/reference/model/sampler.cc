#include "engine_adapter/reference/model/sampler.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/check.h"

namespace kvtier::engine {
namespace {

struct Candidate {
  float logit;
  Token token;
  double weight;
};

bool likelier(const Candidate& a, const Candidate& b) noexcept {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// exp() of less adds nothing to a sum that is at least 1.
constexpr double kExponentMin = -45;
// Looked at together: almost none has a token that is likelier than the likeliest so far.
constexpr std::size_t kRun = 64;

bool any_above(std::span<const float> logits, float bound) noexcept {
  int above = 0;
  for (const float logit : logits) above |= static_cast<int>(logit > bound);
  return above != 0;
}

// Few enough to sort.
constexpr std::size_t kSortedMax = 64;

struct Fewest {
  std::size_t count;
  double weight;
};

// The fewest likeliest candidates whose weight is `enough`, or all: moved to the front, the last of
// them in its place. The likeliest eighth is told from the rest, the side on which the weight
// becomes enough is cut again, and so on: nothing is sorted but the last few.
template <class Enough>
Fewest move_fewest(std::vector<Candidate>& candidates, const Enough& enough) {
  const auto at = [&](std::size_t i) {
    return candidates.begin() + static_cast<std::ptrdiff_t>(i);
  };
  double before = 0;
  std::size_t begin = 0;
  std::size_t end = candidates.size();
  while (end - begin > kSortedMax) {
    const std::size_t middle = begin + (end - begin) / 8;
    std::nth_element(at(begin), at(middle), at(end), likelier);
    double through = before;
    for (std::size_t i = begin; i < middle; ++i) through += candidates[i].weight;
    if (enough(through)) {
      end = middle;
    } else {
      before = through;
      begin = middle;
    }
  }
  std::sort(at(begin), at(end), likelier);
  for (std::size_t i = begin; i < end; ++i) {
    before += candidates[i].weight;
    if (enough(before)) return {i + 1, before};
  }
  return {end, before};  // rounding
}

}  // namespace

Result<void> SamplerOptions::validate() const {
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    return make_error(Errc::invalid, "temperature must be 0 or above");
  }
  if (!(top_p > 0 && top_p <= 1)) {
    return make_error(Errc::invalid, "top_p must be above 0 and at most 1");
  }
  return {};
}

// Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014).
std::uint64_t SplitMix64::next() noexcept {
  std::uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ z >> 27) * 0x94D049BB133111EBULL;
  return z ^ z >> 31;
}

Token argmax(std::span<const float> logits) noexcept {
  std::size_t best = 0;
  while (best < logits.size() && std::isnan(logits[best])) ++best;
  if (best == logits.size()) return 0;
  for (std::size_t run = best + 1; run < logits.size(); run += kRun) {
    const std::size_t end = std::min(run + kRun, logits.size());
    if (!any_above(logits.subspan(run, end - run), logits[best])) continue;
    for (std::size_t i = run; i < end; ++i) {
      if (logits[i] > logits[best]) best = i;
    }
  }
  return static_cast<Token>(best);
}

Token choose(std::span<const float> logits, const SamplerOptions& options, double unit) {
  KVTIER_CHECK(!logits.empty());
  const Token likeliest = argmax(logits);
  if (options.temperature == 0) return likeliest;

  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) candidates.push_back({logits[i], static_cast<Token>(i), 0});
  }
  if (candidates.empty()) return likeliest;
  if (options.top_k != 0 && options.top_k < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + options.top_k - 1, candidates.end(),
                     likelier);
    candidates.resize(options.top_k);
  }
  double total = 0;
  for (Candidate& candidate : candidates) {
    const double exponent =
        (static_cast<double>(candidate.logit) - logits[likeliest]) / options.temperature;
    candidate.weight = exponent < kExponentMin ? 0 : std::exp(exponent);
    total += candidate.weight;
  }
  double kept = total;
  if (options.top_p < 1) {
    const double wanted = options.top_p * total;
    const Fewest fewest =
        move_fewest(candidates, [wanted](double weight) { return weight >= wanted; });
    candidates.resize(fewest.count);
    kept = fewest.weight;
  }
  const double drawn = unit * kept;
  const Fewest through = move_fewest(candidates, [drawn](double weight) { return weight > drawn; });
  return candidates[through.count - 1].token;
}

std::vector<TokenLogprob> likeliest_tokens(std::span<const float> logits, std::size_t count,
                                           double log_sum) {
  std::vector<Candidate> kept;  // a heap, the least likely on top
  if (count == 0) return {};
  kept.reserve(count + 1);
  std::size_t i = 0;
  for (; i < logits.size() && kept.size() < count; ++i) {
    if (std::isnan(logits[i])) continue;
    kept.push_back({logits[i], static_cast<Token>(i), 0});
    std::push_heap(kept.begin(), kept.end(), likelier);
  }
  // Ids rise, so an equal one stays out.
  while (i < logits.size()) {
    const std::size_t end = std::min(i + kRun, logits.size());
    const bool above = any_above(logits.subspan(i, end - i), kept.front().logit);
    for (; above && i < end; ++i) {
      if (!(logits[i] > kept.front().logit)) continue;
      std::pop_heap(kept.begin(), kept.end(), likelier);
      kept.back() = {logits[i], static_cast<Token>(i), 0};
      std::push_heap(kept.begin(), kept.end(), likelier);
    }
    i = end;
  }
  std::sort_heap(kept.begin(), kept.end(), likelier);
  std::vector<TokenLogprob> found;
  found.reserve(kept.size());
  for (const Candidate& each : kept) {
    found.push_back({each.token, static_cast<float>(each.logit - log_sum)});
  }
  return found;
}

}  // namespace kvtier::engine
