// What a small model would answer: the proposals of `--draft-model`. Owned by the speculation.
//
// It sees the end of prompt and answer, kDraftContext tokens at most and half as many to begin
// with, so that a long prompt that came from the cache costs nothing more here. Its KV is its own
// and is offered to nobody. A token is chosen with the draw that the large model's choice will be
// made with, so that two distributions that are alike choose alike.
//
// One thread: the engine's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/model/page_pool.h"
#include "engine_adapter/reference/scheduler/live_request.h"

namespace kvtier::engine {

class Drafts {
 public:
  // Both outlive it; nobody else uses them.
  Drafts(Model& model, PagePool& pool);

  struct Wanted {
    Branch* branch = nullptr;
    std::uint32_t count = 0;        // at most kProposalsMax
    std::vector<Token> proposed{};  // none where there was no page
  };
  // Fills in what is proposed to come after each branch's tokens.
  void propose(std::span<Wanted> wanted);

 private:
  bool prepare(const Wanted& wanted);
  bool step(std::span<Wanted> wanted);

  Model& model_;
  PagePool& pool_;
  const std::uint32_t context_;
};

}  // namespace kvtier::engine
