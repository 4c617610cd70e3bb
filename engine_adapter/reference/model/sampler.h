// Chooses the next token from logits. With a seed the choices are the same on every machine whose
// logits are: the generator (SplitMix64) is ours, not the standard library's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvtier/key.h"
#include "kvtier/result.h"

namespace kvtier::engine {

struct SamplerOptions {
  double temperature = 0;   // 0: the most likely token, the lowest id among equals
  std::uint32_t top_k = 0;  // choose among this many most likely tokens; 0: all
  double top_p = 1;         // and among the fewest of them that hold this much probability
  std::uint64_t seed = 0;

  // Errors: invalid, naming the option and its range.
  Result<void> validate() const;
};

struct TokenLogprob {
  Token token = 0;
  float logprob = 0;  // at temperature 1, before top_k and top_p

  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) noexcept : state_(seed) {}
  std::uint64_t next() noexcept;
  // Uniform in [0, 1), 53 bits.
  double next_unit() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

// The token that `unit` in [0, 1) falls on; it counts for nothing where the temperature is 0.
// `options` has passed validate(); `logits` is not empty. In time that is linear in the vocabulary.
Token choose(std::span<const float> logits, const SamplerOptions& options, double unit);

// The draws of one answer: one a token, whatever the options keep of the logits.
class Sampler {
 public:
  // `options` has passed validate().
  explicit Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {}

  const SamplerOptions& options() const noexcept { return options_; }
  // 0 where the temperature is 0.
  double draw() noexcept { return options_.temperature == 0 ? 0 : random_.next_unit(); }
  Token choose(std::span<const float> logits) { return engine::choose(logits, options_, draw()); }

 private:
  SamplerOptions options_;
  SplitMix64 random_;
};

// The `count` likeliest tokens, likeliest first, the lower id among equals; NaN is none of them.
// `log_sum` is the logarithm of the sum of all exp(logit).
std::vector<TokenLogprob> likeliest_tokens(std::span<const float> logits, std::size_t count,
                                           double log_sum);

// The index of the largest value, the lowest among equals; NaN never wins over a number.
Token argmax(std::span<const float> logits) noexcept;

}  // namespace kvtier::engine
