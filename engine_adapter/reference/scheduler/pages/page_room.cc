#include "engine_adapter/reference/scheduler/pages/page_room.h"

#include <algorithm>

#include "engine_adapter/reference/scheduler/pages/page_needs.h"

namespace kvtier::engine {

using State = LiveRequest::State;

LiveRequest* PageRoom::victim_of(const LiveRequest& live) const {
  LiveRequest* last = nullptr;
  for (const auto& [id, other] : requests_.all()) {
    if (other->state != State::running || !live.goes_before(*other)) continue;
    if (last == nullptr || last->goes_before(*other)) last = other.get();
  }
  return last;
}

bool PageRoom::make(std::uint32_t pages, const LiveRequest& live) {
  for (;;) {
    while (pool_.pages_free() < pages && store_.give_up_one()) {
    }
    if (pool_.pages_free() >= pages) return true;
    // Pages that are on their way need no further victim.
    std::uint32_t coming = pool_.pages_free();
    for (const auto& [id, other] : requests_.all()) {
      if (other->state != State::parking) continue;
      coming += pages_wanted(*other, pool_.layout().block_tokens);
    }
    if (coming >= pages && coming > pool_.pages_free()) return false;
    LiveRequest* const victim = victim_of(live);
    if (victim == nullptr) return false;
    parking_.park(*victim);
  }
}

bool PageRoom::reserve(LiveRequest& live, Branch& branch, std::uint32_t tokens) {
  Sequence& sequence = *branch.sequence;
  const std::uint32_t end = sequence.length() + tokens;
  const std::uint32_t blocks = blocks_of(end, pool_.layout().block_tokens);
  const auto reserved = static_cast<std::uint32_t>(sequence.records().size());
  if (blocks > reserved && !make(blocks - reserved, live)) return false;
  // A block that is to be computed may have been planned together with others, who load it no more.
  for (std::uint32_t block = sequence.blocks_complete(); block < std::min(blocks, reserved);
       ++block) {
    const auto page = sequence.page(block);
    if (page && pool_.references(*page) == 1) continue;
    if (!make(1, live) || !sequence.make_own(block)) return false;
  }
  if (const auto made = sequence.reserve(end); !made) {
    requests_.fail(live, made.error());
    return false;
  }
  return true;
}

bool PageRoom::reserve_idle(LiveRequest& live, Branch& branch, std::uint32_t tokens) {
  const Sequence& sequence = *branch.sequence;
  const std::size_t blocks = blocks_of(sequence.length() + tokens, pool_.layout().block_tokens);
  while (sequence.records().size() + pool_.pages_free() < blocks) {
    if (!store_.give_up_one()) return false;
  }
  return reserve(live, branch, tokens);
}

}  // namespace kvtier::engine
