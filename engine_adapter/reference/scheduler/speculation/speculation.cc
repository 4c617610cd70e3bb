#include "engine_adapter/reference/scheduler/speculation/speculation.h"

#include <algorithm>

#include "core/base/check.h"

namespace kvtier::engine {

Speculation::Speculation(const SpeculationOptions& options, const ModelConfig& config,
                         PageRoom& room, SchedulerMetrics& metrics)
    : options_(options), config_(config), room_(room), metrics_(metrics) {
  if (options.by_draft) drafts_.emplace(*options.draft, *options.draft_pool);
}

std::uint32_t Speculation::propose(std::span<BranchInput> inputs, std::uint32_t rows) {
  if (options_.proposals_max == 0) return 0;
  std::vector<Drafts::Wanted> wanted(inputs.size());
  std::uint32_t left = rows;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    // What those before did not use is for the others.
    const auto others = static_cast<std::uint32_t>(inputs.size() - i);
    const std::uint32_t count = std::min(count_for(inputs[i]), (left + others - 1) / others);
    Branch& branch = *inputs[i].branch;
    wanted[i] = {.branch = &branch, .count = count};
    if (!drafts_) wanted[i].proposed = branch.proposals.ngrams.propose(branch.tokens, count);
    left -= drafts_ ? count : static_cast<std::uint32_t>(wanted[i].proposed.size());
  }
  if (drafts_) drafts_->propose(wanted);
  std::uint32_t proposed = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) proposed += add(inputs[i], wanted[i].proposed);
  return proposed;
}

std::uint32_t Speculation::count_for(const BranchInput& input) const {
  const LiveRequest& live = *input.live;
  const Branch& branch = *input.branch;
  if (live.beams() || live.state != LiveRequest::State::running) return 0;
  // The last token that is asked for is never fed.
  const std::uint32_t room = live.tokens_most - (branch.sequence->length() + input.tokens);
  return std::min({options_.proposals_max, branch.proposals.worth, room});
}

std::uint32_t Speculation::add(BranchInput& input, std::span<const Token> proposed) {
  // Nothing follows an end.
  const auto end = std::ranges::find_if(
      proposed, [&](Token token) { return ends_answer(input.live->request, config_.eos, token); });
  const auto count = static_cast<std::uint32_t>(end - proposed.begin());
  if (count == 0 || !room_.reserve_idle(*input.live, *input.branch, input.tokens + count)) return 0;
  input.fed.push_back(input.branch->tokens.back());
  input.fed.insert(input.fed.end(), proposed.begin(), end);
  input.tokens += count;
  return count;
}

void Speculation::keep(BranchInput& input, std::span<const RowAnswer> rows) {
  KVTIER_CHECK(rows.size() == input.fed.size());
  std::uint32_t right = 1;
  while (right < rows.size() && rows[right - 1].chosen.front().token == input.fed[right]) ++right;
  input.branch->sequence->take_back(input.begin + right);
  input.tokens = right;
  const auto proposed = static_cast<std::uint32_t>(rows.size() - 1);
  const std::uint32_t accepted = right - 1;
  std::uint32_t& worth = input.branch->proposals.worth;
  worth = accepted == proposed ? std::max(worth, 2 * proposed) : std::max(accepted, 1U);
  ++metrics_.drafts;
  metrics_.tokens_proposed += proposed;
  metrics_.tokens_accepted += accepted;
  Usage& usage = input.live->result.usage;
  usage.proposed_tokens += proposed;
  usage.accepted_tokens += accepted;
}

}  // namespace kvtier::engine
