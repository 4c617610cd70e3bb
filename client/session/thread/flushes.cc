#include "client/session/thread/flushes.h"

#include <algorithm>

#include "client/session/limits.h"
#include "client/session/thread/wire_values.h"

namespace kvtier::session {

void Flushes::add(std::shared_ptr<Outcome> outcome) {
  if (!conversation_.connection() || next_.size() >= kPendingMax) {
    outcome->set(not_connected());
    return;
  }
  next_.push_back({std::move(outcome)});
  ask();
}

void Flushes::ask() {
  if (asking_ || next_.empty()) return;
  asking_ = true;
  const auto done = [this, asked = std::exchange(next_, {})](
                        Result<wire::Message::Reader> reply) -> Result<void> {
    asking_ = false;
    if (reply && !reply->isDone()) return malformed("something else than the end of a flush");
    answered(asked, reply ? Result<void>() : Result<void>(reply.error()));
    const auto& connection = conversation_.connection();
    if (connection && connection->alive()) ask();
    return {};
  };
  conversation_.ask([](wire::Message::Builder m) { m.setFlush(); }, done,
                    Conversation::Patience::unbounded);
}

void Flushes::answered(std::vector<Flush> flushes, const Result<void>& result) {
  const auto now = Clock::now();
  for (Flush& flush : flushes) {
    if (!result) {
      flush.outcome->set(result);
      continue;
    }
    flush.settled_by = now + kSlotsSettleMax;
    settling_.push_back(std::move(flush));
  }
  settle(now);
}

bool Flushes::slots_on_their_way() const {
  return std::ranges::any_of(namespaces_.all(), [](const auto& ns) {
    return std::ranges::any_of(ns->pools, &SlotPool::expected);
  });
}

void Flushes::settle(Clock::time_point now) {
  if (settling_.empty()) return;
  const bool all = !slots_on_their_way();
  std::erase_if(settling_, [&](const Flush& flush) {
    if (!all && now < flush.settled_by) return false;
    flush.outcome->set({});
    return true;
  });
}

std::optional<Clock::time_point> Flushes::next_late() const {
  std::optional<Clock::time_point> next;
  for (const Flush& flush : settling_) {
    if (!next || flush.settled_by < *next) next = flush.settled_by;
  }
  return next;
}

void Flushes::end(const Error& why) {
  asking_ = false;
  for (const Flush& flush : std::exchange(next_, {})) flush.outcome->set(why);
  for (const Flush& flush : std::exchange(settling_, {})) flush.outcome->set(why);
}

}  // namespace kvtier::session
