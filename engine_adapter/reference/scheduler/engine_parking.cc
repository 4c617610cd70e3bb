// A request that must give up its pages keeps what it has: complete blocks in the cache, held there
// by a lease, and the open block's exact values in host memory. Its pages go once the cache has
// confirmed the blocks, or has shown that it will not.
#include <algorithm>

#include "core/base/check.h"
#include "engine_adapter/reference/scheduler/engine.h"
#include "engine_adapter/reference/scheduler/limits.h"

namespace kvtier::engine {

using State = LiveRequest::State;

void Engine::park(LiveRequest& live) {
  KVTIER_CHECK(live.state == State::running);
  ++metrics_.preemptions;
  ++live.result.usage.parked;
  note_cached(live, true);
  for (const auto& branch : live.branches) {
    if (!branch->ended) save(*branch);
  }
  live.state = State::parking;
  live.offers = 0;
  if (live.space.cache == nullptr) return finish_parking(live);
  offer_all(live);
}

void Engine::save(Branch& branch) {
  Sequence& sequence = *branch.sequence;
  if (!branch.fill->intact()) {
    branch.fill->let_go();
    branch.computed.clear();
  }
  // One that was on its way back keeps what it was parked with.
  if (sequence.length() < branch.known_tokens) return;
  branch.known_tokens = sequence.length();
  branch.open_values.clear();
  if (sequence.length() % pool_.layout().block_tokens == 0) return;
  branch.open_values = pool_.save_exact(sequence.open_block(), model_.stream());
}

// All of them: what is cached already costs a look into the directory, and what was dropped when it
// was new, or evicted since, gets another chance.
void Engine::offer_all(LiveRequest& live) {
  ++live.offers;
  for (const auto& branch : live.branches) {
    if (branch->ended) continue;
    const Sequence& sequence = *branch->sequence;
    for (std::uint32_t first = 0; first < sequence.blocks_complete();) {
      std::uint32_t end = first;
      while (end < sequence.blocks_complete() && sequence.page(end)) ++end;
      if (end > first) {
        Pages pages;
        pages.records = sequence.records().subspan(first, end - first);
        live.writes.push_back(
            live.space.cache->write_back(sequence.tokens(), first, pages, model_.stream()));
      }
      first = end + 1;
    }
    branch->computed.clear();
    branch->hold.reset();
    branch->hold_ticket.reset();
  }
}

bool Engine::advance_parking(LiveRequest& live) {
  if (!std::ranges::all_of(live.writes, &WriteBack::ended)) return false;
  live.writes.clear();
  bool asked = false;
  for (const auto& branch : live.branches) {
    if (branch->ended || branch->hold_ticket) continue;
    branch->hold_ticket = std::make_shared<LeaseTicket>();
    branch->hold_ticket->cache = live.space.cache;
    branch->hold_ticket->tokens = branch->tokens;
    branch->hold_ticket->range = {0, branch->sequence->blocks_complete()};
    branch->hold_ticket->deadline = live.wait.deadline(Clock::now());
    if (branch->sequence->blocks_complete() == 0 || worker_.silent() || live.wait.over()) {
      branch->hold_ticket->answered.store(true);
    } else {
      worker_.ask(branch->hold_ticket);
    }
    asked = true;
  }
  const bool answered = std::ranges::all_of(live.branches, [](const auto& branch) {
    return branch->ended || branch->hold_ticket->answered.load(std::memory_order_acquire);
  });
  if (!answered) return asked;
  if (!take_holds(live) && live.offers < kParkingOffersMax) {
    offer_all(live);
  } else {
    finish_parking(live);
  }
  return true;
}

// Whether the cache holds all of it. A daemon that does not answer is not asked again.
bool Engine::take_holds(LiveRequest& live) {
  bool all = true;
  for (const auto& branch : live.branches) {
    if (branch->ended || !branch->hold_ticket->answer) continue;
    auto& answer = *branch->hold_ticket->answer;
    if (!answer) {
      if (answer.error().code == Errc::deadline) live.wait.give_up();
      continue;
    }
    all = all && answer->blocks() == branch->sequence->blocks_complete();
    branch->hold.emplace(std::move(*answer));
  }
  return all;
}

void Engine::finish_parking(LiveRequest& live) {
  for (const auto& branch : live.branches) {
    branch->hold_ticket.reset();
    branch->fill.reset();
    branch->sequence.reset();
  }
  live.state = State::parked;
}

// Puts the open block back where the blocks before it are there. False: a page is missing for it.
bool Engine::restore(LiveRequest& live, Branch& branch) {
  Sequence& sequence = *branch.sequence;
  const std::uint32_t block_tokens = pool_.layout().block_tokens;
  const std::uint32_t complete = branch.known_tokens / block_tokens * block_tokens;
  if (branch.open_values.empty() || sequence.length() != complete) return true;
  if (!has_pages(live, branch, branch.known_tokens - complete)) return false;
  const auto tokens = std::span(branch.tokens).first(branch.known_tokens).subspan(complete);
  const auto restored = sequence.restore_open(tokens, branch.open_values, model_.stream());
  if (!restored) {
    fail(live, restored.error());
    return false;
  }
  branch.open_values.clear();
  return true;
}

}  // namespace kvtier::engine
