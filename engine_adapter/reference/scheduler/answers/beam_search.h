// One step of beam search over log probabilities.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine_adapter/reference/scheduler/request.h"

namespace kvtier::engine {

struct BeamChoice {
  std::uint32_t parent = 0;  // index of the beam it goes on from
  Token token = 0;
  double logprob_sum = 0;  // with the token
};
struct BeamStep {
  std::vector<BeamChoice> live;      // at most the width, likeliest first
  std::vector<BeamChoice> finished;  // by an end token, among the likeliest
};

// Of all beams with every next token, the 2 * width likeliest sums, equal ones in the order of
// beam and token, are looked at in turn: those with an end token finish, of the others `width` go
// on.
// `likeliest`: of each beam, its 2 * width likeliest next tokens or more.
BeamStep choose_beams(std::span<const double> sums,
                      std::span<const std::span<const TokenLogprob>> likeliest, std::uint32_t width,
                      const std::function<bool(Token)>& is_end);

// Of a hypothesis of `tokens` tokens.
double beam_score(double logprob_sum, std::size_t tokens, double length_penalty) noexcept;

// Keeps the `width` best of `hypotheses`, best first; equal ones as they came.
void keep_best(std::vector<Answer>& hypotheses, std::uint32_t width);

}  // namespace kvtier::engine
