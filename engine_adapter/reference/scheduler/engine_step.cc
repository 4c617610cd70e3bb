// What a step computes: a row for every answer under way, then chunks of prompts.
#include <algorithm>

#include "core/base/check.h"
#include "engine_adapter/reference/scheduler/engine.h"

namespace kvtier::engine {

using State = LiveRequest::State;

namespace {

// Steps of fewer rows are bound by other things than those of prompts, and tell nothing about them.
constexpr double kMeasuredRowsMin = 32;

}  // namespace

// Those before come first, so that whoever is parked for them has not been given rows yet.
std::vector<LiveRequest*> Engine::running() const {
  std::vector<LiveRequest*> running;
  for (const auto& [id, live] : live_) {
    if (live->state == State::running) running.push_back(live.get());
  }
  std::ranges::sort(running,
                    [](const LiveRequest* a, const LiveRequest* b) { return a->goes_before(*b); });
  return running;
}

// Takes what has arrived for the branch. Whether a step may go on with it.
bool Engine::can_compute(LiveRequest& live, Branch& branch) {
  PrefixFill& fill = *branch.fill;
  fill.extend();  // before, since it may ask for the very next block
  bool free = fill.advance();
  if (!free && fill.needs_page() && make_room(1, live)) free = fill.advance();
  return free && restore(live, branch);
}

std::vector<Engine::Input> Engine::choose_inputs() {
  std::vector<Input> inputs;
  std::uint32_t budget = step_tokens_;
  add_answers(inputs, budget);
  add_prompts(inputs, budget);
  // Who was parked for one that came later in this step computes nothing.
  std::erase_if(inputs, [](const Input& input) { return input.live->state != State::running; });
  return inputs;
}

// Beams go on together or not at all.
void Engine::add_answers(std::vector<Input>& inputs, std::uint32_t& budget) {
  std::vector<std::vector<Input>> groups;
  for (LiveRequest* const live : running()) {
    if (!live->forked) continue;
    std::vector<Input> together;
    bool all = true;
    for (const auto& branch : live->branches) {
      if (branch->ended || live->state != State::running) continue;
      const bool ready = can_compute(*live, *branch) && branch->pending() == 1;
      all = all && ready;
      if (!ready) continue;
      together.push_back({live, branch.get(), 1, true, nullptr, 0});
      if (!live->beams()) groups.push_back({together.back()});
    }
    if (live->beams() && all && !together.empty()) groups.push_back(std::move(together));
  }
  if (groups.empty()) return;
  // With more answers than rows each step begins where the last one ended.
  const std::size_t begin = groups.size() > budget ? next_answer_ % groups.size() : 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& group = groups[(begin + i) % groups.size()];
    if (group.size() > budget) {
      next_answer_ = begin + i;
      break;
    }
    const bool all = std::ranges::all_of(group, [&](const Input& input) {
      return input.live->state == State::running && has_pages(*input.live, *input.branch, 1);
    });
    if (!all) continue;
    inputs.insert(inputs.end(), group.begin(), group.end());
    budget -= static_cast<std::uint32_t>(group.size());
  }
}

// The clients' turns, as in the queue.
void Engine::add_prompts(std::vector<Input>& inputs, std::uint32_t& budget) {
  auto order = running();
  std::ranges::stable_sort(
      order, {}, [&](const LiveRequest* live) { return queue_.served(live->request.client); });
  std::uint32_t told = told_rows_max_;
  for (LiveRequest* const live : order) {
    for (const auto& branch : live->branches) {
      if (live->tells_prompt() && told == 0) continue;
      if (budget == 0 || branch->ended || live->state != State::running) continue;
      if (live->forked && branch->pending() == 1) continue;
      if (!can_compute(*live, *branch) || live->state != State::running) continue;
      if (live->forked && branch->pending() == 1) continue;
      const std::uint32_t most = live->tells_prompt() ? std::min(budget, told) : budget;
      const std::uint32_t tokens = chunk_of(*live, *branch, most);
      if (!has_pages(*live, *branch, tokens)) continue;
      // Of a branch on its way back the last token goes as the others do, in a step of answers.
      const bool chooses = tokens == branch->pending() && !live->forked;
      inputs.push_back({live, branch.get(), tokens, chooses, nullptr, 0});
      budget -= tokens;
      if (live->tells_prompt()) told -= tokens;
    }
  }
}

std::uint32_t Engine::chunk_of(const LiveRequest& live, const Branch& branch,
                               std::uint32_t budget) const {
  const std::uint32_t block_tokens = pool_.layout().block_tokens;
  const std::uint32_t length = branch.sequence->length();
  std::uint32_t until = branch.fill->compute_until();
  const auto cut = [&](std::size_t at) {
    if (length < at) until = std::min(until, static_cast<std::uint32_t>(at));
  };
  // What comes after these is a step of its own, so that a hit's has the size of a miss's.
  const std::size_t prompt = live.request.prompt.size();
  if (!model_.rows_are_independent()) cut(blocks_matchable(prompt, block_tokens) * block_tokens);
  if (!branch.open_values.empty()) cut(branch.known_tokens / block_tokens * block_tokens);
  if (live.forked) cut(branch.tokens.size() - 1);
  return std::min(until - length, budget);
}

// The pages are the sequence's when this returns true.
bool Engine::has_pages(LiveRequest& live, Branch& branch, std::uint32_t tokens) {
  Sequence& sequence = *branch.sequence;
  const std::uint32_t block_tokens = pool_.layout().block_tokens;
  const std::uint32_t end = sequence.length() + tokens;
  const std::uint32_t blocks = (end + block_tokens - 1) / block_tokens;
  const auto reserved = static_cast<std::uint32_t>(sequence.records().size());
  if (blocks > reserved && !make_room(blocks - reserved, live)) return false;
  // A block that is to be computed may have been planned together with others, who load it no more.
  for (std::uint32_t block = sequence.blocks_complete(); block < std::min(blocks, reserved);
       ++block) {
    const auto page = sequence.page(block);
    if (page && pool_.references(*page) == 1) continue;
    if (!make_room(1, live) || !sequence.make_own(block)) return false;
  }
  if (const auto made = sequence.reserve(end); !made) {
    fail(live, made.error());
    return false;
  }
  return true;
}

// With nothing else to compute, blocks are attended to layer by layer as they land.
std::vector<Engine::Input> Engine::trusting_input() {
  for (LiveRequest* const live : running()) {
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
      if (has_pages(*live, *branch, tokens)) {
        const bool chooses = tokens == branch->pending();
        return {{live, branch.get(), tokens, chooses, task, 0}};
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

// Where a row's bits depend on its step, answers whose logits are asked about have a step of their
// own, so that the others' stay what they are without them.
void Engine::run(std::vector<Input>& inputs) {
  const auto is_told_of = [&](const Input& input) { return is_told(input); };
  const bool any = std::ranges::any_of(inputs, is_told_of);
  if (!any || model_.rows_are_independent()) return run_part(inputs, any);
  const auto rest = std::stable_partition(inputs.begin(), inputs.end(), is_told_of);
  run_part({inputs.begin(), rest}, true);
  // Whose request has ended, or has given way, has nothing more to compute.
  const auto end = std::remove_if(
      rest, inputs.end(), [](const Input& input) { return input.live->state != State::running; });
  if (rest != end) run_part({rest, end}, false);
}

// A step that found no memory leaves sequences that are good for nothing. The last of its requests
// fails; the others let go of their pages and come back, as parked ones do: with fewer in the step
// it fits, and each failure is one fewer.
void Engine::give_way(std::span<Input> inputs, const Error& error) {
  std::vector<LiveRequest*> lives;
  for (const Input& input : inputs) {
    if (std::ranges::find(lives, input.live) == lives.end()) lives.push_back(input.live);
  }
  const auto last = std::ranges::max_element(
      lives, [](const LiveRequest* a, const LiveRequest* b) { return a->goes_before(*b); });
  for (LiveRequest* const live : lives) {
    if (live == *last || error.code != Errc::no_space) {
      fail(*live, error);
      continue;
    }
    ++metrics_.preemptions;
    ++live->result.usage.parked;
    note_cached(*live, true);
    for (const auto& branch : live->branches) {
      branch->open_values.clear();
      branch->computed.clear();
      branch->hold.reset();
    }
    for (const Input& input : inputs) {
      if (input.live != live) continue;
      input.branch->known_tokens = std::max(input.branch->known_tokens, input.begin);
    }
    finish_parking(*live);
  }
}

void Engine::run_part(std::span<Input> inputs, bool telling) {
  std::vector<StepInput> steps;
  std::vector<Choice> choices;
  std::size_t choosing = 0;
  questions_.clear();
  asked_choices_.clear();
  for (Input& input : inputs) {
    Branch& branch = *input.branch;
    Sequence& sequence = *branch.sequence;
    input.begin = sequence.length();
    const auto tokens =
        std::span<const Token>(branch.tokens).subspan(sequence.length(), input.tokens);
    const std::uint32_t block_tokens = pool_.layout().block_tokens;
    const auto shared =
        blocks_matchable(input.live->request.prompt.size(), block_tokens) * block_tokens;
    const Stage stage = sequence.length() < shared ? Stage::prompt : Stage::answer;
    if (input.chooses && !branch.unit) branch.unit = branch.sampler.draw();
    choices.push_back({branch.sampler.options(), branch.unit.value_or(0)});
    if (input.chooses) ++choosing;
    if (telling) ask(input);
    steps.push_back({&sequence, tokens, telling ? input.told : input.chooses ? 1U : 0U, stage});
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
    told_.resize(questions_.size());
    done = model_.step_and_tell(steps, questions_, told_, gate);
  } else if (choosing > 0) {
    chosen_.assign(inputs.size(), 0);
    done = model_.step_and_choose(steps, choices, chosen_, gate);
  } else {
    done = model_.step(steps, {}, gate);
  }
  if (!done) {
    return give_way(inputs, done.error());
  }
  const bool waited = telling || choosing > 0 || model_.stream().handle == nullptr;
  measure(inputs, waited, begun);
  std::vector<char> good;
  for (Input& input : inputs) good.push_back(settle(input, waited) ? 1 : 0);
  if (telling) {
    take_told(inputs, good);
  } else if (choosing > 0) {
    take_choices(inputs, good);
  }
}

// Whether what the step computed is worth anything.
bool Engine::settle(Input& input, bool waited) {
  LiveRequest& live = *input.live;
  Branch& branch = *input.branch;
  Sequence& sequence = *branch.sequence;
  const std::uint32_t end = sequence.length();
  const std::uint32_t begin = end - input.tokens;
  metrics_.tokens_computed += input.tokens;
  queue_.charge(live.request.client, input.tokens);
  const std::uint32_t expected = std::min(live.expected_tokens, input.tokens);
  live.expected_tokens -= expected;
  queue_.expect(live.request.client, -std::int64_t{expected});
  if (begin < branch.known_tokens) {
    const std::uint32_t again = std::min(end, branch.known_tokens) - begin;
    metrics_.tokens_recomputed += again;
    live.result.usage.recomputed_tokens += again;
  }
  if (input.trusted && !branch.fill->settle(*input.trusted)) return false;
  const std::uint32_t block_tokens = pool_.layout().block_tokens;
  if (end / block_tokens > begin / block_tokens) {
    branch.computed.push_back({begin / block_tokens, end / block_tokens});
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
  offer_new(live, branch);
  return true;
}

void Engine::offer_new(LiveRequest& live, Branch& branch) {
  const Sequence& sequence = *branch.sequence;
  for (const BlockRange& range : branch.computed) {
    std::vector<PageId> pages;
    for (std::uint32_t block = range.first; block < range.end; ++block) {
      pages.push_back(*sequence.page(block));
      store_.add(branch.fill->name(block), pages.back());
    }
    offers_.add(live.space, sequence.tokens(), range, pages);
  }
  branch.computed.clear();
}

// A model that computes behind the host's back is measured over all steps up to a wait, or to where
// it has come to the end of them.
void Engine::measure(std::span<const Input> inputs, bool waited, Clock::time_point begun) {
  const auto now = Clock::now();
  ++metrics_.steps;
  metrics_.step_ns += static_cast<std::uint64_t>((now - begun).count());
  if (inputs.front().trusted) {
    unmeasured_ = {};
    return;
  }
  if (unmeasured_.steps == 0) unmeasured_since_ = begun;
  StepWork work{1, 0, 0};
  for (const Input& input : inputs) {
    const std::uint32_t end = input.branch->sequence->length();
    const StepWork rows = StepWork::of(end - input.tokens, end, step_tokens_);
    work += {0, rows.rows, rows.pairs};
  }
  unmeasured_ += work;
  // Once in an engine's life: until then nobody knows whether to load or to compute.
  if (!waited && (costs_.compute_known() || work.rows < kMeasuredRowsMin)) return;
  if (!waited) model_.wait();
  note_measured();
}

void Engine::note_measured() {
  if (unmeasured_.rows >= kMeasuredRowsMin * unmeasured_.steps) {
    costs_.note_compute(unmeasured_,
                        std::chrono::duration<double>(Clock::now() - unmeasured_since_).count());
  }
  unmeasured_ = {};
}

}  // namespace kvtier::engine
