#include "engine_adapter/reference/scheduler/request_check.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "engine_adapter/reference/scheduler/limits.h"

namespace kvtier::engine {
namespace {

static_assert(2 * kBeamsMax <= kLikeliestMax && kTopLogprobsMax <= kLikeliestMax);

Error invalid(const std::string& what) {
  return make_error(Errc::invalid, what);
}

Result<void> check_prompt(const Request& request, const ModelConfig& config) {
  if (request.prompt.empty()) return invalid("the prompt is empty");
  const std::size_t prompt = request.prompt.size();
  if (prompt + (request.tokens_max == 0 ? 0 : 1) > config.positions_max) {
    return invalid("the prompt has " + std::to_string(prompt) + " tokens, the model takes " +
                   std::to_string(config.positions_max) +
                   " (max_position_embeddings), those of the answer included");
  }
  for (const Token token : request.prompt) {
    if (token < config.vocab_size) continue;
    return invalid("the prompt has token " + std::to_string(token) +
                   ", which the model does not have: its tokens are those below vocab_size " +
                   std::to_string(config.vocab_size));
  }
  return {};
}

Result<void> check_answers(const Request& request) {
  if (auto valid = request.sampling.validate(); !valid) return valid;
  if (request.samples == 0 || request.samples > kSamplesMax) {
    return invalid("n must be from 1 to " + std::to_string(kSamplesMax));
  }
  if (request.beam.width > kBeamsMax) {
    return invalid("the beam width must be at most " + std::to_string(kBeamsMax));
  }
  if (request.beam.width > 0) {
    if (request.sampling.temperature != 0) {
      return invalid("beam search chooses the likeliest: temperature must be 0");
    }
    if (request.samples > request.beam.width) {
      return invalid("n must be at most the beam width " + std::to_string(request.beam.width));
    }
  }
  if (request.top_logprobs > kTopLogprobsMax) {
    return invalid("top logprobs must be at most " + std::to_string(kTopLogprobsMax));
  }
  if (request.top_logprobs > 0 && !request.logprobs) {
    return invalid("top logprobs need logprobs");
  }
  if (request.prompt_logprobs && !request.logprobs) {
    return invalid("logprobs of the prompt need logprobs");
  }
  if (request.stop_tokens.size() > kStopTokensMax) {
    return invalid("at most " + std::to_string(kStopTokensMax) + " stop tokens");
  }
  return {};
}

}  // namespace

// The last token chosen is never fed.
std::uint32_t tokens_most_of(const Request& request, const ModelConfig& config) {
  const std::uint64_t prompt = request.prompt.size();
  const std::uint64_t fed = prompt + std::max(request.tokens_max, 1U) - 1;
  const std::uint64_t most = std::max<std::uint64_t>(prompt, config.positions_max - 1);
  return static_cast<std::uint32_t>(std::min(fed, most));
}

std::uint32_t pages_most_of(const Request& request, const ModelConfig& config,
                            std::uint32_t block_tokens, std::uint32_t rows) {
  const std::uint32_t tokens = std::min(tokens_most_of(request, config), config.tokens_kept(rows));
  return (tokens + block_tokens - 1) / block_tokens;
}

Result<void> SchedulerOptions::validate() const {
  if (waiting_max == 0 || waiting_max > kWaitingMax) {
    return invalid("waiting_max must be from 1 to " + std::to_string(kWaitingMax));
  }
  if (running_max == 0 || running_max > kRunningMax) {
    return invalid("running_max must be from 1 to " + std::to_string(kRunningMax));
  }
  if (speculation.proposals_max > kProposalsMax) {
    return invalid("proposals_max must be at most " + std::to_string(kProposalsMax));
  }
  if (speculation.by_draft && (speculation.draft == nullptr || speculation.draft_pool == nullptr)) {
    return invalid("a draft model is to propose tokens, and there is none (--draft-model)");
  }
  return {};
}

Result<SpeculationOptions> SpeculationOptions::parse(const std::string& text) {
  if (text.empty()) return SpeculationOptions{};
  const std::size_t colon = std::min(text.find(':'), text.size());
  SpeculationOptions options{.proposals_max = kProposalsUsual};
  if (colon < text.size()) {
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + colon + 1, end, options.proposals_max);
    if (error != std::errc() || at != end) options.proposals_max = 0;
  }
  const bool in_range = options.proposals_max > 0 && options.proposals_max <= kProposalsMax;
  const std::string way = text.substr(0, colon);
  options.by_draft = way == "draft";
  if ((way != "ngram" && way != "draft") || !in_range) {
    return invalid("\"" + text +
                   "\" is no way to propose tokens: give ngram or draft, or ngram:N or draft:N "
                   "with N from 1 to " +
                   std::to_string(kProposalsMax));
  }
  return options;
}

Result<void> check_request(const Request& request, const Model& model, const PagePool& pool,
                           const SchedulerOptions& options) {
  if (auto good = check_prompt(request, model.config()); !good) return good;
  if (auto good = check_answers(request); !good) return good;
  const std::uint32_t block_tokens = pool.layout().block_tokens;
  const std::uint32_t step = options.step_rows(model.rows_max());
  const std::uint64_t most = pages_most_of(request, model.config(), block_tokens, step);
  const std::uint64_t shared = std::min(request.prompt.size() / block_tokens, most);
  const std::uint64_t width = std::max(request.samples, request.beam.width);
  // Of a prompt that is let go of as answers grow the most is no answer's own at any time.
  const bool whole = model.config().widest_window() == 0;
  const std::uint64_t pages = whole ? shared + width * (most - shared) : width * most;
  if (pages > pool.pages()) {
    return make_error(Errc::no_space,
                      "prompt and answers may take " + std::to_string(pages * block_tokens) +
                          " tokens, the page pool has room for " +
                          std::to_string(std::uint64_t{pool.pages()} * block_tokens) +
                          ": enlarge it (--pool-tokens)");
  }
  if (request.beam.width > step) {
    return invalid("the beam width " + std::to_string(request.beam.width) +
                   " does not fit into a step of " + std::to_string(step) + " tokens");
  }
  return {};
}

}  // namespace kvtier::engine
