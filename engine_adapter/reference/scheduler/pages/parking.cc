#include "engine_adapter/reference/scheduler/pages/parking.h"

#include <algorithm>

#include "core/base/check.h"
#include "engine_adapter/reference/scheduler/limits.h"

namespace kvtier::engine {

using State = LiveRequest::State;

void Parking::count(LiveRequest& live, ParkedFor why) {
  KVTIER_CHECK(live.state == State::running);
  ++metrics_.preemptions;
  ++metrics_.parked_for[index_of(why)];
  ++live.result.usage.parked;
  requests_.note_cached(live, true);
}

void Parking::park(LiveRequest& live) {
  count(live, ParkedFor::pages);
  for (const auto& branch : live.branches) {
    if (!branch->ended) save(*branch);
  }
  live.state = State::parking;
  live.offers = 0;
  if (live.space.cache == nullptr) return let_go(live);
  offer_all(live);
}

void Parking::drop(LiveRequest& live) {
  count(live, ParkedFor::memory);
  for (const auto& branch : live.branches) {
    branch->open_values.clear();
    branch->computed.clear();
    branch->hold.reset();
  }
  let_go(live);
}

void Parking::save(Branch& branch) {
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
void Parking::offer_all(LiveRequest& live) {
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
        live.writes.push_back(live.space.cache->write_back(live.space.prefix_of(sequence.tokens()),
                                                           first, pages, model_.stream()));
      }
      first = end + 1;
    }
    branch->computed.clear();
    branch->hold.reset();
    branch->hold_ticket.reset();
  }
}

bool Parking::advance() {
  bool moved = false;
  for (const auto& [id, live] : requests_.all()) {
    if (live->state == State::parking) moved = advance(*live) || moved;
  }
  return moved;
}

bool Parking::advance(LiveRequest& live) {
  if (!std::ranges::all_of(live.writes, &WriteBack::ended)) return false;
  live.writes.clear();
  const bool asked = ask_for_holds(live);
  const bool answered = std::ranges::all_of(live.branches, [](const auto& branch) {
    return branch->ended || branch->hold_ticket->answered.load(std::memory_order_acquire);
  });
  if (!answered) return asked;
  if (!take_holds(live) && live.offers < kParkingOffersMax) {
    offer_all(live);
  } else {
    let_go(live);
  }
  return true;
}

// Whether there was any to ask for.
bool Parking::ask_for_holds(LiveRequest& live) {
  bool asked = false;
  for (const auto& branch : live.branches) {
    if (branch->ended || branch->hold_ticket) continue;
    const std::uint32_t complete = branch->sequence->blocks_complete();
    branch->hold_ticket = std::make_shared<LeaseTicket>();
    branch->hold_ticket->cache = live.space.cache;
    branch->hold_ticket->tokens = branch->tokens;
    branch->hold_ticket->range = {0, complete};
    branch->hold_ticket->deadline = live.wait.deadline(Clock::now());
    if (complete == 0 || worker_.silent() || live.wait.over()) {
      branch->hold_ticket->answered.store(true);
    } else {
      worker_.ask(branch->hold_ticket);
    }
    asked = true;
  }
  return asked;
}

// Whether the cache holds all of it. A daemon that does not answer is not asked again.
bool Parking::take_holds(LiveRequest& live) {
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

void Parking::let_go(LiveRequest& live) {
  for (const auto& branch : live.branches) {
    branch->hold_ticket.reset();
    branch->fill.reset();
    branch->sequence.reset();
  }
  live.state = State::parked;
}

std::uint32_t Parking::open_tokens_due(const Branch& branch) const noexcept {
  if (branch.open_values.empty()) return 0;
  const std::uint32_t open = branch.known_tokens % pool_.layout().block_tokens;
  return branch.sequence->length() == branch.known_tokens - open ? open : 0;
}

bool Parking::restore_open(LiveRequest& live, Branch& branch) {
  const std::uint32_t open = open_tokens_due(branch);
  const auto tokens = std::span(branch.tokens).subspan(branch.known_tokens - open, open);
  const auto restored = branch.sequence->restore_open(tokens, branch.open_values, model_.stream());
  if (!restored) {
    requests_.fail(live, restored.error());
    return false;
  }
  branch.open_values.clear();
  return true;
}

}  // namespace kvtier::engine
