#include "engine_adapter/reference/scheduler/steps/step_chooser.h"

#include <algorithm>

#include "core/base/check.h"
#include "engine_adapter/reference/scheduler/limits.h"

namespace kvtier::engine {

using State = LiveRequest::State;

StepChooser::StepChooser(const Model& model, const PagePool& pool, LiveRequests& requests,
                         PageRoom& room, Parking& parking, Speculation& speculation,
                         std::uint32_t step_tokens, std::uint32_t beside_answers)
    : model_(model),
      requests_(requests),
      room_(room),
      parking_(parking),
      speculation_(speculation),
      block_tokens_(pool.layout().block_tokens),
      step_tokens_(step_tokens),
      beside_answers_(beside_answers == 0 ? step_tokens : beside_answers),
      told_rows_max_(static_cast<std::uint32_t>(
          std::clamp<std::size_t>(kToldBytesMax / (model.config().vocab_size * sizeof(float)), 1,
                                  std::min(step_tokens, kToldRowsMax)))) {}

std::vector<BranchInput> StepChooser::choose() {
  std::vector<BranchInput> inputs;
  std::uint32_t budget = step_tokens_;
  add_answers(inputs, budget);
  if (!inputs.empty()) {
    const std::uint32_t rows = std::min({budget, step_tokens_ / kProposedPart, told_rows_max_});
    const std::uint32_t proposed = speculation_.propose(inputs, rows);
    budget = std::min(budget - proposed, beside(inputs.size() + proposed));
  }
  add_prompts(inputs, budget);
  // Who was parked for one that came later in this step computes nothing.
  std::erase_if(inputs,
                [](const BranchInput& input) { return input.live->state != State::running; });
  return inputs.empty() ? trusting_input() : inputs;
}

// Rows of prompts beside so many answers. Products compute whole tiles of rows: a few rows beyond
// the bound, which is a multiple of them, would cost as much as a tile.
std::uint32_t StepChooser::beside(std::size_t answers) const {
  const auto rest = beside_answers_ - std::min<std::size_t>(answers, beside_answers_);
  return std::max(static_cast<std::uint32_t>(rest), (beside_answers_ + 3) / 4);
}

// Takes what has arrived for the branch. Whether a step may go on with it.
bool StepChooser::can_compute(LiveRequest& live, Branch& branch) {
  PrefixFill& fill = *branch.fill;
  fill.extend();  // before, since it may ask for the very next block
  bool free = fill.advance();
  if (!free && fill.needs_page() && room_.make(1, live)) free = fill.advance();
  branch.sequence->forget(model_.config().unseen_blocks(branch.sequence->length()));
  if (!free) return false;
  const std::uint32_t open = parking_.open_tokens_due(branch);
  return open == 0 || (room_.reserve(live, branch, open) && parking_.restore_open(live, branch));
}

// The answers that can go on, each by itself, a request's beams together.
std::vector<std::vector<BranchInput>> StepChooser::answers_ready() {
  std::vector<std::vector<BranchInput>> groups;
  // Those before come first, so that whoever is parked for them has not been given rows yet.
  for (LiveRequest* const live : requests_.running()) {
    if (!live->forked) continue;
    std::vector<BranchInput> together;
    bool all = true;
    for (const auto& branch : live->branches) {
      if (branch->ended || live->state != State::running) continue;
      const bool ready = can_compute(*live, *branch) && branch->pending() == 1;
      all = all && ready;
      if (!ready) continue;
      together.push_back({.live = live, .branch = branch.get(), .tokens = 1, .chooses = true});
      if (!live->beams()) groups.push_back({together.back()});
    }
    if (live->beams() && all && !together.empty()) groups.push_back(std::move(together));
  }
  return groups;
}

void StepChooser::add_answers(std::vector<BranchInput>& inputs, std::uint32_t& budget) {
  const auto groups = answers_ready();
  if (groups.empty()) return;
  // With more answers than rows each step begins where the last one ended.
  const std::size_t begin = groups.size() > budget ? next_answer_ % groups.size() : 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& group = groups[(begin + i) % groups.size()];
    if (group.size() > budget) {
      next_answer_ = begin + i;
      break;
    }
    const bool all = std::ranges::all_of(group, [&](const BranchInput& input) {
      return input.live->state == State::running && room_.reserve(*input.live, *input.branch, 1);
    });
    if (!all) continue;
    inputs.insert(inputs.end(), group.begin(), group.end());
    budget -= static_cast<std::uint32_t>(group.size());
  }
}

void StepChooser::add_prompts(std::vector<BranchInput>& inputs, std::uint32_t& budget) {
  std::uint32_t told = told_rows_max_;
  for (LiveRequest* const live : requests_.running_in_turn()) {
    for (const auto& branch : live->branches) {
      if (live->tells_prompt() && told == 0) continue;
      if (budget == 0 || branch->ended || live->state != State::running) continue;
      if (live->forked && branch->pending() == 1) continue;
      if (!can_compute(*live, *branch) || live->state != State::running) continue;
      if (live->forked && branch->pending() == 1) continue;
      const std::uint32_t most = live->tells_prompt() ? std::min(budget, told) : budget;
      const std::uint32_t tokens = chunk_of(*live, *branch, most);
      if (!room_.reserve(*live, *branch, tokens)) continue;
      // Of a branch on its way back the last token goes as the others do, in a step of answers.
      const bool chooses = tokens == branch->pending() && !live->forked;
      inputs.push_back(
          {.live = live, .branch = branch.get(), .tokens = tokens, .chooses = chooses});
      budget -= tokens;
      if (live->tells_prompt()) told -= tokens;
    }
  }
}

std::uint32_t StepChooser::chunk_of(const LiveRequest& live, const Branch& branch,
                                    std::uint32_t budget) const {
  const std::uint32_t length = branch.sequence->length();
  std::uint32_t until = branch.fill->compute_until();
  const auto cut = [&](std::size_t at) {
    if (length < at) until = std::min(until, static_cast<std::uint32_t>(at));
  };
  // What comes after these is a step of its own, so that a hit's has the size of a miss's.
  const std::size_t prompt = live.request.prompt.size();
  if (!model_.rows_are_independent()) cut(blocks_matchable(prompt, block_tokens_) * block_tokens_);
  if (!branch.open_values.empty())
    cut(std::size_t{branch.known_tokens / block_tokens_} * block_tokens_);
  if (live.forked) cut(branch.tokens.size() - 1);
  return std::min(until - length, budget);
}

// With nothing else to compute, blocks are attended to layer by layer as they land.
std::vector<BranchInput> StepChooser::trusting_input() {
  for (LiveRequest* const live : requests_.running()) {
    if (live->forked && live->beams()) continue;  // they go on together
    for (const auto& branch : live->branches) {
      // An open block that comes back would come before its time.
      if (branch->ended || !branch->open_values.empty()) continue;
      const auto task = branch->fill->next_task();
      if (!task) continue;
      const std::uint32_t was_complete = branch->sequence->blocks_complete();
      branch->fill->trust(*task);
      const std::uint32_t most = live->tells_prompt() ? told_rows_max_ : step_tokens_;
      const std::uint32_t tokens = std::min(chunk_of(*live, *branch, most), branch->pending());
      if (room_.reserve(*live, *branch, tokens)) {
        const bool chooses = tokens == branch->pending();
        return {{.live = live,
                 .branch = branch.get(),
                 .tokens = tokens,
                 .chooses = chooses,
                 .trusted = task}};
      }
      // No page to go on with: the blocks are taken as others are.
      if (live->state == State::running && !branch->fill->settle(*task)) {
        KVTIER_CHECK(branch->sequence->blocks_complete() >= was_complete);
      }
      return {};
    }
  }
  return {};
}

}  // namespace kvtier::engine
