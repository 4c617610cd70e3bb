#include "engine_adapter/reference/scheduler/answers/branch_maker.h"

namespace kvtier::engine {

void BranchMaker::begin(LiveRequest& live, Branch& branch, LoadPolicy policy) {
  branch.sequence = std::make_unique<Sequence>(parts_.pool, live.space.id, live.tokens_most);
  branch.fill =
      std::make_unique<PrefixFill>(parts_, live.space, branch.tokens, *branch.sequence, live.wait);
  // A row whose logits are still to be looked at is computed.
  if (live.tells_prompt()) {
    branch.fill->take_at_most(
        static_cast<std::uint32_t>(live.told.size() / parts_.pool.layout().block_tokens));
  }
  if (live.request.awaited_tokens > 0 && !live.forked) {
    branch.fill->await(live.request.awaited_tokens, live.handoff);
  }
  branch.fill->plan(policy);
}

std::unique_ptr<Branch> BranchMaker::fork(LiveRequest& live, const Branch& from,
                                          std::uint32_t index) {
  SamplerOptions sampling = live.request.sampling;
  sampling.seed += index;
  auto branch = std::make_unique<Branch>(index, sampling);
  branch->tokens = from.tokens;
  branch->answer = from.answer;
  branch->known_tokens = from.known_tokens;
  branch->sequence = std::make_unique<Sequence>(parts_.pool, live.space.id, live.tokens_most);
  const auto copied = branch->sequence->copy_from(*from.sequence, parts_.model.stream());
  if (!copied) {
    requests_.fail(live, copied.error());
    return nullptr;
  }
  branch->fill = std::make_unique<PrefixFill>(parts_, live.space, branch->tokens, *branch->sequence,
                                              live.wait);
  branch->fill->copy_from(*from.fill);
  return branch;
}

}  // namespace kvtier::engine
