#include "engine_adapter/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "client/base/check.h"

namespace kvtier::engine {
namespace {

struct Candidate {
  float logit;
  Token token;
  double weight;
};

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
  for (std::size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best] || (std::isnan(logits[best]) && !std::isnan(logits[i]))) best = i;
  }
  return static_cast<Token>(best);
}

Token choose(std::span<const float> logits, const SamplerOptions& options, double unit) {
  KVTIER_CHECK(!logits.empty());
  const Token likeliest = argmax(logits);
  if (options.temperature == 0) return likeliest;

  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) candidates.push_back({logits[i], static_cast<Token>(i), 0});
  }
  if (candidates.empty()) return likeliest;
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  if (options.top_k != 0 && options.top_k < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + options.top_k - 1, candidates.end(),
                     likelier);
    candidates.resize(options.top_k);
  }
  std::sort(candidates.begin(), candidates.end(), likelier);

  double total = 0;
  for (Candidate& candidate : candidates) {
    candidate.weight =
        std::exp((static_cast<double>(candidate.logit) - logits[likeliest]) / options.temperature);
    total += candidate.weight;
  }
  double kept = 0;
  std::size_t count = 0;
  while (count < candidates.size() && (count == 0 || kept < options.top_p * total)) {
    kept += candidates[count++].weight;
  }
  double left = unit * kept;
  for (std::size_t i = 0; i < count; ++i) {
    left -= candidates[i].weight;
    if (left < 0) return candidates[i].token;
  }
  return candidates[count - 1].token;  // rounding
}

}  // namespace kvtier::engine
