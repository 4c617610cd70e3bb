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

// One request on its way. The members' order is that of their lives: what the model may still read
// goes last, after wait().
struct Generator::Answer {
  Answer(Generator& generator, const GenerateRequest& request, std::uint32_t tokens_most)
      : model(generator.model_),
        tokens(request.prompt),
        sequence(generator.pool_, generator.ns_, tokens_most),
        reuse(generator.cache_, request.prompt, sequence,
              {.deadline = Clock::now() + request.cache_deadline,
               .stream = model.stream(),
               .in_place = model.reads_device_tier()}),
        offers(generator.cache_, sequence, model.stream()),
        sampler(request.sampling) {
    const std::uint32_t used = reuse.blocks();
    sequence.adopt(std::span(tokens).first(used * generator.pool_.layout().block_tokens));
    loading = used > 0;
    const std::uint32_t block_tokens = generator.pool_.layout().block_tokens;
    if (!model.rows_are_independent()) {
      shared_tokens = blocks_matchable(tokens.size(), block_tokens) * block_tokens;
    }
    tokens.reserve(tokens_most + 1);
  }
  ~Answer() { model.wait(); }
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  Model& model;
  std::vector<Token> tokens;  // prompt and answer
  Sequence sequence;
  PrefixReuse reuse;
  BlockOffers offers;
  Sampler sampler;
  bool loading = false;
  // What comes after these is always a step of its own, so that a hit's has the size of a miss's.
  std::size_t shared_tokens = 0;
  GenerateResult result;
};

Result<GenerateResult> Generator::generate(const GenerateRequest& request,
                                           const std::function<void(Token)>& on_token) {
  const auto begin = Clock::now();
  const auto tokens_most = check(request);
  if (!tokens_most) return tokens_most.error();
  Answer answer(*this, request, *tokens_most);
  GenerateResult& result = answer.result;
  result.tokens.reserve(std::min<std::size_t>(request.tokens_max, *tokens_most));
  for (;;) {
    const auto token = next_token(answer);
    if (!token) return token.error();
    if (result.first_token.count() == 0) result.first_token = Clock::now() - begin;
    if (is_end(*token)) {
      result.finish = FinishReason::end_token;
      break;
    }
    result.tokens.push_back(*token);
    answer.tokens.push_back(*token);
    if (on_token) on_token(*token);
    if (result.tokens.size() == request.tokens_max) break;
    if (answer.sequence.length() == model_.config().positions_max) {
      result.finish = FinishReason::context_full;
      break;
    }
  }
  result.total = Clock::now() - begin;
  return std::move(result);
}

// Feeds what the sequence lacks, all but the token to be chosen, and chooses it. Where the lease on
// blocks that were read in place ended meanwhile, what came of them is worth nothing: once more,
// computing them.
Result<Token> Generator::next_token(Answer& answer) {
  const double unit = answer.sampler.draw();
  for (;;) {
    const auto token = feed(answer, unit);
    if (!token) return token;
    if (answer.reuse.intact()) {
      answer.offers.offer_new();
      return token;
    }
    answer.offers.wait();
    const std::uint32_t kept = answer.reuse.let_go();
    answer.sequence.truncate(kept);
    note_reused(answer, kept);
  }
}

Result<Token> Generator::feed(Answer& answer, double unit) {
  Sequence& sequence = answer.sequence;
  const LayerGate gate = [&answer](std::uint32_t layer) { answer.reuse.wait_layer(layer); };
  Token token = 0;
  while (sequence.length() < answer.tokens.size()) {
    const auto rest = std::span<const Token>(answer.tokens).subspan(sequence.length());
    const bool shared = sequence.length() < answer.shared_tokens;
    const std::size_t most = shared ? answer.shared_tokens - sequence.length() : rest.size();
    const auto chunk = rest.first(std::min<std::size_t>(most, model_.rows_max()));
    const bool last = chunk.size() == rest.size();
    const StepInput input{&sequence, chunk, last ? 1U : 0U, shared ? Stage::prompt : Stage::answer};
    const Choice choice{answer.sampler.options(), unit};
    const LayerGate& wanted = answer.loading ? gate : LayerGate{};
    const auto done = last ? model_.step_and_choose({&input, 1}, {&choice, 1}, {&token, 1}, wanted)
                           : model_.step({&input, 1}, {}, wanted);
    if (!done) return done.error();
    if (answer.loading) settle_load(answer);
    // What was read in place is known to have been sound only once the step is over.
    if (!answer.reuse.in_place()) answer.offers.offer_new();
  }
  return token;
}

void Generator::settle_load(Answer& answer) {
  answer.loading = false;
  const std::uint32_t used = answer.reuse.blocks();
  const std::uint32_t held = answer.reuse.finish();
  // With fewer, what this step attended to may have been anything: again from the first bad block.
  if (held < used) answer.sequence.truncate(held);
  answer.offers.skip(held);
  note_reused(answer, held);
}

void Generator::note_reused(Answer& answer, std::uint32_t blocks) const {
  GenerateResult& result = answer.result;
  const std::uint32_t block_tokens = pool_.layout().block_tokens;
  result.reused_tokens = blocks * block_tokens;
  const auto tiers = answer.reuse.tiers(blocks);
  for (std::size_t i = 0; i < kTiers; ++i) result.reused_by_tier[i] = tiers[i] * block_tokens;
}

bool Generator::is_end(Token token) const noexcept {
  const auto& ends = model_.config().eos;
  return std::find(ends.begin(), ends.end(), token) != ends.end();
}

}  // namespace kvtier::engine
