// A request that the engine has taken, with its answers under way.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine_adapter/reference/model/sampler.h"
#include "engine_adapter/reference/model/sequence.h"
#include "engine_adapter/reference/scheduler/prefix/prefix_fill.h"
#include "engine_adapter/reference/scheduler/request.h"
#include "engine_adapter/reference/scheduler/speculation/proposal_state.h"

namespace kvtier::engine {

// One sequence of a request: an answer, or a beam. Until the first token is chosen there is one,
// which the others then come from.
struct Branch {
  Branch(std::uint32_t index_, const SamplerOptions& sampling) : index(index_), sampler(sampling) {}

  std::uint32_t index;                 // of the answer
  std::vector<Token> tokens;           // prompt, and what was chosen so far
  std::unique_ptr<Sequence> sequence;  // none while parked
  std::unique_ptr<PrefixFill> fill;    // goes before the sequence
  Sampler sampler;
  std::vector<double> units;  // drawn for the next tokens, which may be computed more than once
  ProposalState proposals;
  Answer answer;
  bool ended = false;

  // Blocks that were computed and are not offered yet: until it is known that what they were
  // computed from held.
  std::vector<BlockRange> computed;

  // What a parked one keeps: how much had been computed, the open block's exact values, and a hold
  // on the others in the cache.
  std::uint32_t known_tokens = 0;
  std::vector<std::byte> open_values;
  std::optional<Lease> hold;
  std::shared_ptr<LeaseTicket> hold_ticket;

  // The draw of the next token, and of those `ahead` of it. Whoever takes the next one uses it up.
  double unit(std::size_t ahead = 0) {
    while (units.size() <= ahead) units.push_back(sampler.draw());
    return units[ahead];
  }
  void use_unit() {
    if (!units.empty()) units.erase(units.begin());
  }

  // The tokens that the next step would feed.
  std::uint32_t pending() const noexcept {
    return static_cast<std::uint32_t>(tokens.size()) - sequence->length();
  }
};

struct LiveRequest {
  enum class State : std::uint8_t { waiting, running, parking, parked, ended };

  RequestId id;
  Request request;
  std::shared_ptr<RequestListener> listener;
  CacheSpace space;
  CacheWait wait;
  std::shared_ptr<LeaseTicket> lookup;  // before it is first given pages; null: nothing to ask
  CacheWait handoff;                    // for the blocks of another engine
  State state = State::waiting;
  bool forked = false;                // the first token has been chosen
  std::uint64_t rank = 0;             // in the order in which requests were first given pages
  std::uint32_t tokens_most = 0;      // of a sequence
  std::uint32_t pages_most = ~0U;     // likewise, at any time
  std::uint32_t expected_tokens = 0;  // of its prompt, that may yet have to be computed
  std::vector<std::unique_ptr<Branch>> branches;
  std::vector<Answer> hypotheses;  // finished beams
  std::vector<ChosenToken> told;   // of the prompt, from its second token on

  // While parking.
  std::vector<WriteBack> writes;
  int offers = 0;

  RequestResult result;
  bool usage_settled = false;  // what the cache gave is counted
  std::uint32_t answers_open = 0;
  Clock::time_point submitted;

  // Of its branches once it has all of them.
  std::uint32_t width() const noexcept { return beams() ? request.beam.width : request.samples; }
  bool beams() const noexcept { return request.beam.width > 0; }
  bool has_pages() const noexcept { return state == State::running || state == State::parking; }
  // The prompt's logits are looked at, and not all of them have been.
  bool tells_prompt() const noexcept { return request.prompt_logprobs && !forked; }
  // Whether this one keeps its pages when the two cannot both have what they need.
  bool goes_before(const LiveRequest& other) const noexcept {
    if (request.priority != other.request.priority) {
      return request.priority > other.request.priority;
    }
    return rank < other.rank;
  }
};

}  // namespace kvtier::engine
