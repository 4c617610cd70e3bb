#include "engine_adapter/reference/scheduler/speculation/drafts.h"

#include <algorithm>

#include "engine_adapter/reference/scheduler/limits.h"

namespace kvtier::engine {

Drafts::Drafts(Model& model, PagePool& pool)
    : model_(model), pool_(pool), context_(std::min(kDraftContext, model.config().positions_max)) {}

void Drafts::propose(std::span<Wanted> wanted) {
  for (Wanted& each : wanted) {
    if (!prepare(each)) each.count = 0;
  }
  while (step(wanted)) {
  }
}

// Its sequence then has the beginning of what it is to have, and lacks the last token at least.
bool Drafts::prepare(const Wanted& wanted) {
  const std::vector<Token>& tokens = wanted.branch->tokens;
  ProposalState& state = wanted.branch->proposals;
  if (wanted.count >= context_ / 2) return false;
  if (state.drafted && state.drafted_from + context_ < tokens.size() + wanted.count) {
    state.drafted.reset();
  }
  if (!state.drafted) {
    state.drafted = std::make_unique<Sequence>(pool_, NamespaceId{}, context_);
    state.drafted_from = static_cast<std::uint32_t>(
        tokens.size() - std::min<std::size_t>(tokens.size(), context_ / 2));
  }
  // The last proposals may have been wrong.
  Sequence& sequence = *state.drafted;
  const auto right = std::span(tokens).subspan(state.drafted_from);
  const auto known =
      sequence.tokens().first(std::min<std::size_t>(sequence.length(), right.size() - 1));
  const std::size_t looked_at = std::min<std::size_t>(known.size(), kProposalsMax);
  std::size_t kept = known.size() - looked_at;
  while (kept < known.size() && known[kept] == right[kept]) ++kept;
  sequence.take_back(static_cast<std::uint32_t>(kept));
  return true;
}

// Feeds each that still wants a token what it has not seen, and the last one that was proposed.
// Whether there was any.
bool Drafts::step(std::span<Wanted> wanted) {
  std::vector<StepInput> inputs;
  std::vector<Choice> choices;
  std::vector<Wanted*> asked;
  std::uint32_t rows = model_.rows_max();
  bool choosing = false;
  for (Wanted& each : wanted) {
    if (each.proposed.size() >= each.count || rows == 0) continue;
    ProposalState& state = each.branch->proposals;
    const std::span<const Token> tokens(each.branch->tokens);
    auto pending = tokens.subspan(
        std::min<std::size_t>(tokens.size(), state.drafted_from + state.drafted->length()));
    if (pending.empty()) pending = std::span<const Token>(each.proposed).last(1);
    const auto fed = pending.first(std::min<std::size_t>(pending.size(), rows));
    const auto count = static_cast<std::uint32_t>(fed.size());
    if (!state.drafted->reserve(state.drafted->length() + count)) {
      state.drafted.reset();
      each.count = 0;
      continue;
    }
    rows -= count;
    const bool chooses = count == pending.size();
    choosing = choosing || chooses;
    inputs.push_back({.sequence = state.drafted.get(),
                      .tokens = fed,
                      .logit_rows = chooses ? 1U : 0U,
                      .stage = count == 1 ? Stage::answer : Stage::prompt});
    choices.push_back({each.branch->sampler.options(), each.branch->unit(each.proposed.size())});
    asked.push_back(&each);
  }
  if (asked.empty()) return false;
  std::vector<Token> chosen(inputs.size(), 0);
  const auto done =
      choosing ? model_.step_and_choose(inputs, choices, chosen) : model_.step(inputs, {});
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (!done) {
      asked[i]->branch->proposals.drafted.reset();
      asked[i]->count = 0;
    } else if (inputs[i].logit_rows == 1) {
      asked[i]->proposed.push_back(chosen[i]);
    }
  }
  return true;
}

}  // namespace kvtier::engine
