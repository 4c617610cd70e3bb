#include "engine_adapter/reference/scheduler/steps/steps.h"

#include <algorithm>

namespace kvtier::engine {

using State = LiveRequest::State;

// Where a row's bits depend on its step, answers whose logits are asked about have a step of their
// own, so that the others' stay what they are without them.
void Steps::run(std::vector<BranchInput>& inputs) {
  const bool any = std::ranges::any_of(inputs, RowQuestions::concern);
  if (!any || model_.rows_are_independent()) return run_part(inputs, any);
  const auto rest = std::stable_partition(inputs.begin(), inputs.end(), RowQuestions::concern);
  run_part({inputs.begin(), rest}, true);
  // Whose request has ended, or has given way, has nothing more to compute.
  const auto end = std::remove_if(rest, inputs.end(), [](const BranchInput& input) {
    return input.live->state != State::running;
  });
  if (rest != end) run_part({rest, end}, false);
}

void Steps::run_part(std::span<BranchInput> inputs, bool telling) {
  std::vector<StepInput> steps;
  std::vector<Choice> choices;
  std::size_t choosing = 0;
  asked_.clear();
  for (BranchInput& input : inputs) {
    Branch& branch = *input.branch;
    Sequence& sequence = *branch.sequence;
    input.begin = sequence.length();
    choices.push_back({branch.sampler.options(), input.chooses ? branch.unit() : 0});
    if (input.chooses) ++choosing;
    if (telling) asked_.add(input);
    const std::span<const Token> known(branch.tokens);
    steps.push_back(
        {.sequence = &sequence,
         .tokens = input.fed.empty() ? known.subspan(sequence.length(), input.tokens) : input.fed,
         .logit_rows = telling         ? input.told
                       : input.chooses ? 1U
                                       : 0U,
         .stage = stage_of(input)});
  }
  LayerGate gate;
  if (inputs.front().trusted) {
    gate = [&, task = inputs.front().trusted](std::uint32_t layer) {
      task->load->wait_layer(layer, model_.stream());
    };
  }
  const auto begun = Clock::now();
  Result<void> done;
  if (telling) {
    done = model_.step_and_tell(steps, asked_.questions(), asked_.answers(), gate);
  } else if (choosing > 0) {
    chosen_.assign(inputs.size(), 0);
    done = model_.step_and_choose(steps, choices, chosen_, gate);
  } else {
    done = model_.step(steps, {}, gate);
  }
  if (!done) return give_way(inputs, done.error());
  const bool waited = telling || choosing > 0 || !model_.stream();
  measure(inputs, waited, begun);
  if (telling) take_back_wrong(inputs);
  std::vector<char> good;
  for (BranchInput& input : inputs) good.push_back(settle(input, waited) ? 1 : 0);
  if (telling) {
    answers_.take_told(inputs, good, asked_.answers());
  } else if (choosing > 0) {
    answers_.take_chosen(inputs, good, chosen_);
  }
}

// Before anything is known of the step but its tokens: what was wrong was never there.
void Steps::take_back_wrong(std::span<BranchInput> inputs) {
  std::size_t row = 0;
  for (BranchInput& input : inputs) {
    const auto told = asked_.answers().subspan(row, input.told);
    row += input.told;
    if (!input.fed.empty()) speculation_.keep(input, told);
  }
}

Stage Steps::stage_of(const BranchInput& input) const {
  const std::size_t prompt = input.live->request.prompt.size();
  const auto shared = blocks_matchable(prompt, block_tokens_) * block_tokens_;
  return input.branch->sequence->length() < shared ? Stage::prompt : Stage::answer;
}

void Steps::measure(std::span<const BranchInput> inputs, bool waited, Clock::time_point begun) {
  ++metrics_.steps;
  metrics_.step_ns += static_cast<std::uint64_t>((Clock::now() - begun).count());
  if (inputs.front().trusted) return times_.forget();
  StepWork work{1, 0, 0};
  for (const BranchInput& input : inputs) {
    const std::uint32_t end = input.branch->sequence->length();
    const StepWork rows = StepWork::of(end - input.tokens, end, step_tokens_);
    work += {0, rows.rows, rows.pairs};
  }
  times_.note(work, waited, begun);
}

// A step that found no memory leaves sequences that are good for nothing. The last of its requests
// fails; the others let go of their pages and come back, as parked ones do: with fewer in the step
// it fits, and each failure is one fewer.
void Steps::give_way(std::span<BranchInput> inputs, const Error& error) {
  std::vector<LiveRequest*> lives;
  for (const BranchInput& input : inputs) {
    if (std::ranges::find(lives, input.live) == lives.end()) lives.push_back(input.live);
  }
  const auto last = std::ranges::max_element(
      lives, [](const LiveRequest* a, const LiveRequest* b) { return a->goes_before(*b); });
  for (LiveRequest* const live : lives) {
    if (live == *last || error.code != Errc::no_space) {
      requests_.fail(*live, error);
      continue;
    }
    for (const BranchInput& input : inputs) {
      if (input.live != live) continue;
      input.branch->known_tokens = std::max(input.branch->known_tokens, input.begin);
    }
    parking_.drop(*live);
  }
}

// Whether what the step computed is worth anything.
bool Steps::settle(BranchInput& input, bool waited) {
  Branch& branch = *input.branch;
  const std::uint32_t end = branch.sequence->length();
  const std::uint32_t begin = end - input.tokens;
  count(input, begin, end);
  if (input.trusted && !branch.fill->settle(*input.trusted)) return false;
  if (end / block_tokens_ > begin / block_tokens_) {
    branch.computed.push_back({begin / block_tokens_, end / block_tokens_});
  }
  if (branch.fill->in_place()) {
    if (!waited) return true;  // it is asked when something comes of it
    if (!branch.fill->intact()) {
      branch.fill->let_go();
      branch.computed.clear();
      return false;
    }
  }
  branch.hold.reset();
  offer_new(*input.live, branch);
  return true;
}

void Steps::count(BranchInput& input, std::uint32_t begin, std::uint32_t end) {
  LiveRequest& live = *input.live;
  const Branch& branch = *input.branch;
  metrics_.tokens_computed += input.tokens;
  requests_.charge(live, input.tokens);
  if (begin >= branch.known_tokens) return;
  const std::uint32_t again = std::min(end, branch.known_tokens) - begin;
  metrics_.tokens_recomputed += again;
  live.result.usage.recomputed_tokens += again;
}

void Steps::offer_new(LiveRequest& live, Branch& branch) {
  const Sequence& sequence = *branch.sequence;
  for (const BlockRange& range : branch.computed) {
    std::vector<PageId> pages;
    for (std::uint32_t block = range.first; block < range.end; ++block) {
      pages.push_back(*sequence.page(block));
      store_.add(
          {.ns = live.space.id,
           .key = sequence.key(block),
           .parent = block == 0 ? Key{} : sequence.key(block - 1),
           .tokens = sequence.tokens().subspan(std::size_t{block} * block_tokens_, block_tokens_)},
          pages.back());
    }
    offers_.add(live.space, sequence.tokens(), range, pages);
  }
  branch.computed.clear();
}

}  // namespace kvtier::engine
