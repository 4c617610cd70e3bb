#include "engine_adapter/reference/scheduler/speculation/speculation.h"

#include <algorithm>

#include "core/base/check.h"

namespace kvtier::engine {

std::uint32_t Speculation::propose(std::span<BranchInput> inputs, std::uint32_t rows) {
  if (options_.proposals_max == 0) return 0;
  std::uint32_t left = rows;
  for (std::size_t i = 0; i < inputs.size() && left > 0; ++i) {
    // What those before did not use is for the others.
    const auto others = static_cast<std::uint32_t>(inputs.size() - i);
    left -= add(inputs[i], (left + others - 1) / others);
  }
  return rows - left;
}

std::uint32_t Speculation::add(BranchInput& input, std::uint32_t count) {
  LiveRequest& live = *input.live;
  Branch& branch = *input.branch;
  if (live.beams() || live.state != LiveRequest::State::running) return 0;
  // The last token that is asked for is never fed.
  const std::uint32_t room = live.tokens_most - (branch.sequence->length() + input.tokens);
  count = std::min({count, options_.proposals_max, branch.proposals.worth, room});
  if (count == 0) return 0;
  std::vector<Token> proposed = branch.proposals.ngrams.propose(branch.tokens, count);
  // Nothing follows an end.
  const auto end = std::ranges::find_if(
      proposed, [&](Token token) { return ends_answer(live.request, config_.eos, token); });
  proposed.erase(end, proposed.end());
  count = static_cast<std::uint32_t>(proposed.size());
  if (count == 0 || !room_.reserve_idle(live, branch, input.tokens + count)) return 0;
  input.fed.push_back(branch.tokens.back());
  input.fed.insert(input.fed.end(), proposed.begin(), proposed.end());
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
