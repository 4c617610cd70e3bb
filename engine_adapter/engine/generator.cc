#include "engine_adapter/engine/generator.h"

#include <algorithm>
#include <string>

namespace kvtier::engine {

const char* name(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::end_token:
      return "end_token";
    case FinishReason::tokens_max:
      return "tokens_max";
    case FinishReason::context_full:
      return "context_full";
  }
  return "?";
}

// The most tokens the request's sequence may come to hold.
Result<std::uint32_t> Generator::check(const GenerateRequest& request) const {
  const ModelConfig& config = model_.config();
  if (auto valid = request.sampling.validate(); !valid) return valid.error();
  if (request.prompt.empty()) return make_error(Errc::invalid, "the prompt is empty");
  if (request.tokens_max == 0) return make_error(Errc::invalid, "max tokens must be 1 or above");
  const std::size_t prompt = request.prompt.size();
  if (prompt > config.positions_max) {
    return make_error(Errc::invalid,
                      "the prompt has " + std::to_string(prompt) + " tokens, the model takes " +
                          std::to_string(config.positions_max) + " (max_position_embeddings)");
  }
  for (const Token token : request.prompt) {
    if (token >= config.vocab_size) {
      return make_error(Errc::invalid, "the prompt's token " + std::to_string(token) +
                                           " is not below vocab_size " +
                                           std::to_string(config.vocab_size));
    }
  }
  // The last token chosen is never fed.
  const std::uint64_t wanted = std::uint64_t{prompt} + request.tokens_max - 1;
  const auto tokens =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted, config.positions_max));
  const std::uint64_t free = std::uint64_t{pool_.pages_free()} * pool_.layout().block_tokens;
  if (tokens > free) {
    return make_error(Errc::no_space, "prompt and answer may take " + std::to_string(tokens) +
                                          " tokens, the page pool has room for " +
                                          std::to_string(free) + ": enlarge it (--pool-tokens)");
  }
  return tokens;
}

Result<GenerateResult> Generator::generate(const GenerateRequest& request,
                                           const std::function<void(Token)>& on_token) {
  const auto begin = Clock::now();
  const auto tokens_most = check(request);
  if (!tokens_most) return tokens_most.error();
  Sequence sequence(pool_, ns_, *tokens_most);
  BlockOffers offers(cache_, sequence);  // after the sequence: pages are read until it is gone
  Sampler sampler(request.sampling);
  GenerateResult result;
  result.tokens.reserve(std::min<std::size_t>(request.tokens_max, *tokens_most));
  if (auto done = prefill(request, sequence, offers, result); !done) return done.error();

  for (;;) {
    const Token token = sampler.choose(logits_);
    if (result.first_token.count() == 0) result.first_token = Clock::now() - begin;
    if (is_end(token)) {
      result.finish = FinishReason::end_token;
      break;
    }
    result.tokens.push_back(token);
    if (on_token) on_token(token);
    if (result.tokens.size() == request.tokens_max) break;
    if (sequence.length() == model_.config().positions_max) {
      result.finish = FinishReason::context_full;
      break;
    }
    const StepInput input{&sequence, {&token, 1}, 1};
    if (auto done = model_.step({&input, 1}, logits_); !done) return done.error();
    offers.offer_new();
  }
  result.total = Clock::now() - begin;
  return result;
}

Result<void> Generator::prefill(const GenerateRequest& request, Sequence& sequence,
                                BlockOffers& offers, GenerateResult& result) {
  const std::span<const Token> prompt(request.prompt);
  const std::uint32_t block_tokens = pool_.layout().block_tokens;
  PrefixReuse reuse(cache_, prompt, sequence, Clock::now() + request.cache_deadline);
  const std::uint32_t used = reuse.blocks();
  sequence.adopt(prompt.first(std::size_t{used} * block_tokens));
  bool loading = used > 0;
  const LayerGate gate = [&reuse](std::uint32_t layer) { reuse.wait_layer(layer); };
  while (sequence.length() < prompt.size()) {
    const auto rest = prompt.subspan(sequence.length());
    const auto chunk = rest.first(std::min<std::size_t>(rest.size(), model_.rows_max()));
    const StepInput input{&sequence, chunk, chunk.size() == rest.size() ? 1U : 0U};
    if (auto done = model_.step({&input, 1}, logits_, loading ? gate : LayerGate{}); !done) {
      return done;
    }
    if (loading) {
      loading = false;
      const std::uint32_t held = reuse.finish();
      // With fewer, what this step attended to may have been anything: again from the first bad
      // block.
      if (held < used) sequence.truncate(held);
      offers.skip(held);
      result.reused_tokens = held * block_tokens;
      const auto tiers = reuse.tiers(held);
      for (std::size_t i = 0; i < kTiers; ++i) result.reused_by_tier[i] = tiers[i] * block_tokens;
    }
    offers.offer_new();
  }
  return {};
}

bool Generator::is_end(Token token) const noexcept {
  const auto& ends = model_.config().eos;
  return std::find(ends.begin(), ends.end(), token) != ends.end();
}

}  // namespace kvtier::engine
