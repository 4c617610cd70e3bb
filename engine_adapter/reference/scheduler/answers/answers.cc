#include "engine_adapter/reference/scheduler/answers/answers.h"

namespace kvtier::engine {

void Answers::take_chosen(std::span<const BranchInput> inputs, std::span<const char> good,
                          std::span<const Token> chosen) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const BranchInput& input = inputs[i];
    if (!input.chooses || good[i] == 0) continue;
    if (!input.live->forked) requests_.note_cached(*input.live, false);
    input.live->forked = true;
    input.branch->use_unit();
    if (input.live->request.tokens_max == 0) {
      end_without_tokens(*input.live);
      continue;
    }
    take_token(*input.live, *input.branch, {chosen[i], 0, {}});
  }
}

void Answers::take_told(std::span<const BranchInput> inputs, std::span<const char> good,
                        std::span<RowAnswer> told) {
  std::size_t row = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].told == 0) continue;
    LiveRequest& live = *inputs[i].live;
    Branch& branch = *inputs[i].branch;
    const bool chooses = inputs[i].chooses;
    if (!inputs[i].fed.empty()) {
      if (good[i] != 0) take_proposed(live, branch, told.subspan(row, inputs[i].tokens));
      row += inputs[i].told;
      continue;
    }
    // All beams of a request are next to each other.
    std::vector<RowAnswer*> rows;
    bool all_good = true;
    const auto take = [&](std::size_t input) {
      const auto answers = told.subspan(row, inputs[input].told);
      row += inputs[input].told;
      all_good = all_good && good[input] != 0;
      if (all_good && live.tells_prompt()) take_prompt(live, *inputs[input].branch, answers);
      rows.push_back(&answers.back());
    };
    take(i);
    while (live.beams() && i + 1 < inputs.size() && inputs[i + 1].live == &live &&
           inputs[i + 1].told > 0) {
      take(++i);
    }
    if (all_good && chooses) take_rows(live, branch, rows);
  }
}

// Of rows whose tokens were right, each chose the next one's token.
void Answers::take_proposed(LiveRequest& live, Branch& branch, std::span<RowAnswer> rows) {
  for (RowAnswer& row : rows) {
    if (branch.ended) return;
    RowAnswer* const one = &row;
    take_rows(live, branch, {&one, 1});
  }
}

// What is told of the rows that end the branch's sequence. Rows that are computed again tell
// nothing new.
void Answers::take_prompt(LiveRequest& live, const Branch& branch, std::span<RowAnswer> answers) {
  const auto& prompt = live.request.prompt;
  std::size_t position = branch.sequence->length() - answers.size();
  for (RowAnswer& answer : answers) {
    const std::size_t next = ++position;
    if (next == prompt.size() || next != live.told.size() + 1) continue;
    live.told.push_back({prompt[next], answer.known, std::move(answer.likeliest)});
  }
}

// `rows`: of the tokens that come next, of all beams or of one answer.
void Answers::take_rows(LiveRequest& live, Branch& branch, std::span<RowAnswer* const> rows) {
  const bool is_first = !live.forked;
  if (is_first) {
    if (live.request.prompt_logprobs) live.listener->prompt(std::move(live.told));
    requests_.note_cached(live, live.width() > 1);
    live.forked = true;
  }
  if (live.request.tokens_max == 0) return end_without_tokens(live);
  if (live.beams()) return beams_.step(live, rows);
  if (is_first && !fork_samples(live)) return;
  RowAnswer& row = *rows.front();
  for (std::size_t i = 0; i < row.chosen.size(); ++i) {
    Branch& each = is_first ? *live.branches[i] : branch;
    if (i > 0) {
      each.sampler.draw();  // as its question did
    } else {
      each.use_unit();
    }
    ChosenToken chosen{row.chosen[i].token, row.chosen[i].logprob, {}};
    if (live.request.top_logprobs > 0) chosen.top = row.likeliest;
    take_token(live, each, std::move(chosen));
    if (live.result.error) break;
  }
}

// The first token is chosen from the same logits in every answer; complete blocks stay common.
bool Answers::fork_samples(LiveRequest& live) {
  for (std::uint32_t i = 1; i < live.request.samples; ++i) {
    auto branch = branches_.fork(live, *live.branches.front(), i);
    if (!branch) return false;
    live.branches.push_back(std::move(branch));
  }
  return true;
}

// The prompt is all that was to be computed.
void Answers::end_without_tokens(LiveRequest& live) {
  if (live.beams()) {
    live.hypotheses.resize(live.request.samples);
    for (Answer& answer : live.hypotheses) answer.finish = FinishReason::tokens_max;
    return requests_.end(live, FinishReason::tokens_max);
  }
  for (std::uint32_t i = 1; i < live.request.samples; ++i) {
    live.branches.push_back(std::make_unique<Branch>(i, live.request.sampling));
  }
  for (std::size_t i = 0; i < live.branches.size(); ++i) {
    end_answer(live, *live.branches[i], FinishReason::tokens_max);
  }
}

void Answers::take_token(LiveRequest& live, Branch& branch, ChosenToken chosen) {
  if (live.result.first_token.count() == 0) {
    live.result.first_token = Clock::now() - live.submitted;
  }
  if (ends_answer(live.request, config_.eos, chosen.token)) {
    return end_answer(live, branch, FinishReason::end_token);
  }
  ++metrics_.completion_tokens;
  ++live.result.usage.completion_tokens;
  branch.tokens.push_back(chosen.token);
  live.listener->token(branch.index, chosen);
  branch.answer.tokens.push_back(std::move(chosen));
  if (branch.answer.tokens.size() == live.request.tokens_max) {
    end_answer(live, branch, FinishReason::tokens_max);
  } else if (branch.tokens.size() >= config_.positions_max) {
    end_answer(live, branch, FinishReason::context_full);
  }
}

void Answers::end_answer(LiveRequest& live, Branch& branch, FinishReason reason) {
  branch.ended = true;
  branch.answer.finish = reason;
  if (branch.index == 0) requests_.note_cached(live, true);
  branch.fill.reset();
  branch.sequence.reset();
  branch.proposals.drafted.reset();
  live.listener->finished(branch.index, reason);
  if (--live.answers_open == 0) requests_.end(live, reason);
}

}  // namespace kvtier::engine
