#include "engine_adapter/reference/scheduler/steps/row_questions.h"

#include <algorithm>

namespace kvtier::engine {
namespace {

// Those of all answers, where their first tokens come from the same logits.
std::vector<Choice> choices_of(const LiveRequest& live, const Branch& branch) {
  std::vector<Choice> choices{{branch.sampler.options(), *branch.unit}};
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
  if (live.tells_prompt()) return true;
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
  input.told = live.tells_prompt() ? input.tokens : input.chooses ? 1 : 0;
  const std::uint32_t end = input.branch->sequence->length() + input.tokens;
  for (std::uint32_t position = end - input.told; position < end; ++position) {
    RowQuestion question{.logprobs = request.logprobs, .likeliest = request.top_logprobs};
    if (!input.chooses || position + 1 < end) {
      question.known = request.prompt[position + 1];
    } else if (live.beams()) {
      question.likeliest = std::max(2 * request.beam.width, request.top_logprobs);
    } else if (request.tokens_max > 0) {
      question.choices = choices_.emplace_back(choices_of(live, *input.branch));
    }
    questions_.push_back(question);
  }
}

std::span<RowAnswer> RowQuestions::answers() {
  answers_.resize(questions_.size());
  return answers_;
}

}  // namespace kvtier::engine
