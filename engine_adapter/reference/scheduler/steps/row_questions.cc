#include "engine_adapter/reference/scheduler/steps/row_questions.h"

#include <algorithm>

namespace kvtier::engine {
namespace {

// Those of all answers, where their first tokens come from the same logits.
std::vector<Choice> choices_of(const LiveRequest& live, Branch& branch, std::size_t ahead) {
  std::vector<Choice> choices{{branch.sampler.options(), branch.unit(ahead)}};
  for (std::uint32_t i = 1; !live.forked && i < live.request.samples; ++i) {
    SamplerOptions options = live.request.sampling;
    options.seed += i;
    choices.push_back({options, Sampler(options).draw()});
  }
  return choices;
}

}  // namespace

bool RowQuestions::concern(const BranchInput& input) noexcept {
  const LiveRequest& live = *input.live;
  if (live.tells_prompt() || !input.fed.empty()) return true;
  return input.chooses &&
         (live.request.logprobs || live.beams() || (!live.forked && live.request.samples > 1));
}

void RowQuestions::clear() {
  questions_.clear();
  choices_.clear();
}

void RowQuestions::add(BranchInput& input) {
  const LiveRequest& live = *input.live;
  const Request& request = live.request;
  const bool all = live.tells_prompt() || !input.fed.empty();
  input.told = all ? input.tokens : input.chooses ? 1 : 0;
  const std::uint32_t begin = input.branch->sequence->length();
  for (std::uint32_t row = input.tokens - input.told; row < input.tokens; ++row) {
    RowQuestion question{.logprobs = request.logprobs, .likeliest = request.top_logprobs};
    if (live.tells_prompt() && (!input.chooses || row + 1 < input.tokens)) {
      question.known = request.prompt[begin + row + 1];
    } else if (live.beams()) {
      question.likeliest = std::max(2 * request.beam.width, request.top_logprobs);
    } else if (request.tokens_max > 0) {
      question.choices =
          choices_.emplace_back(choices_of(live, *input.branch, input.fed.empty() ? 0 : row));
    }
    questions_.push_back(question);
  }
}

std::span<RowAnswer> RowQuestions::answers() {
  answers_.resize(questions_.size());
  return answers_;
}

}  // namespace kvtier::engine
