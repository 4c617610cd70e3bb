// What is asked of the scheduler, and what it answers.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/strong.h"
#include "engine_adapter/reference/model/sampler.h"
#include "engine_adapter/reference/scheduler/prefix/load_plan.h"
#include "kvtier/key.h"
#include "kvtier/result.h"
#include "kvtier/tier.h"

namespace kvtier::engine {

using RequestId = Strong<struct RequestTag, std::uint64_t>;

struct BeamOptions {
  std::uint32_t width = 0;  // 0: no beam search
  // A finished hypothesis of n tokens, its end token included, scores (sum of log probabilities) /
  // n ^ length_penalty.
  double length_penalty = 1;
  // End as soon as `width` hypotheses have finished, not only when no live one can beat them.
  bool early_stopping = false;
};

struct Request {
  std::vector<Token> prompt;
  std::uint32_t tokens_max = 0;    // of each answer; 0: the prompt is computed, no token chosen
  SamplerOptions sampling{};       // answer i draws with the seed sampling.seed + i
  std::uint32_t samples = 1;       // answers; with beam search, of the best hypotheses
  BeamOptions beam{};              // with temperature 0
  std::vector<Token> stop_tokens;  // end an answer as the model's own end tokens do
  bool ignore_end = false;         // the model's own end tokens are tokens like others

  bool logprobs = false;           // of the chosen tokens, at temperature 1, before top_k and top_p
  std::uint32_t top_logprobs = 0;  // and of so many likeliest tokens; needs `logprobs`
  // The same of the prompt's tokens but the first; needs `logprobs`. Nothing of the prompt is taken
  // from the cache: what was not computed has no logits.
  bool prompt_logprobs = false;

  // KV is shared among requests with the same salt only.
  std::string cache_salt;
  // Served in turns with the other clients, by tokens.
  std::string client;
  // Among a client's requests the higher go first, and among all the lowest is parked first.
  std::int32_t priority = 0;
  // The longest that the request waits for the cache while nothing comes: over all that it asks,
  // not for each answer (CacheWait).
  std::chrono::milliseconds cache_deadline{1000};

  // Another engine is computing the prompt, and its blocks come to the cache: those of the first so
  // many tokens are waited for and taken as they come, and computed where none has come for
  // `handoff_deadline`, or for `cache_deadline` without a daemon. 0: nobody is.
  std::uint32_t awaited_tokens = 0;
  std::chrono::milliseconds handoff_deadline{30'000};
};
// Whether `token` ends an answer; `model_ends` are the model's own end tokens.
bool ends_answer(const Request& request, std::span<const Token> model_ends, Token token) noexcept;

struct ChosenToken {
  Token token = 0;
  float logprob = 0;              // where asked for
  std::vector<TokenLogprob> top;  // likeliest first, where asked for
};

enum class FinishReason : std::uint8_t {
  end_token,     // the model's, or one of stop_tokens; it is not part of the answer
  tokens_max,    // asked for no more
  context_full,  // the model takes no more
  cancelled,
  failed,  // RequestResult::error says why
};
const char* name(FinishReason reason) noexcept;

struct Answer {
  std::vector<ChosenToken> tokens;  // without the end token
  FinishReason finish = FinishReason::cancelled;
  double logprob_sum = 0;  // of a beam's tokens, its end token included
  double score = 0;        // of a beam
};

struct Usage {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;  // of all answers
  // Of the prompt's tokens: in pages that the engine had, and in blocks taken from each tier. The
  // others were computed.
  std::uint32_t cached_local = 0;
  std::array<std::uint32_t, kTiersWithRemote> cached_tiers{};
  // Computed a second time, after the request had been parked and the cache had lost them.
  std::uint32_t recomputed_tokens = 0;
  std::uint32_t parked = 0;  // how often
  std::uint32_t proposed_tokens = 0;
  std::uint32_t accepted_tokens = 0;  // of those

  std::uint32_t cached() const noexcept {
    std::uint32_t sum = cached_local;
    for (const std::uint32_t tokens : cached_tiers) sum += tokens;
    return sum;
  }
};

struct RequestResult {
  std::optional<Error> error;  // with FinishReason::failed
  std::vector<Answer> answers;
  Usage usage;
  LoadPlan plan;                           // what was decided about the prompt's prefix, and why
  std::chrono::nanoseconds queued{};       // until it was first given pages
  std::chrono::nanoseconds first_token{};  // from submit() on; 0 without one
  std::chrono::nanoseconds total{};
};

// Told on the engine's thread, which computes for everybody: be quick, never wait. submit() and
// cancel() may be called. Nothing is told after done().
class RequestListener {
 public:
  virtual ~RequestListener() = default;
  // With Request::prompt_logprobs: the prompt's tokens but the first. Before all else.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): who listens may keep them.
  virtual void prompt(std::vector<ChosenToken>) {}
  // The next token of answer `sample`, as soon as it is chosen; not of beams, which are known only
  // at the end.
  virtual void token(std::uint32_t sample, const ChosenToken& chosen) = 0;
  // Answer `sample` has ended; others may go on.
  virtual void finished(std::uint32_t sample, FinishReason reason) = 0;
  // Once for every request that submit() took.
  virtual void done(RequestResult result) = 0;
};

}  // namespace kvtier::engine
