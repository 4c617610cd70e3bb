#include "daemon/session/lending.h"

#include <algorithm>
#include <iterator>

#include "daemon/limits.h"

namespace kvtier::daemon {

namespace {

// Room can appear in more ways than slots that come home: a lease that ends, a write that is done.
constexpr std::chrono::milliseconds kLookAgain{10};
// Looked at in one turn of the loop.
constexpr std::size_t kLooksPerTurn = 64;
constexpr std::chrono::milliseconds kLookAtOthers{1};

}  // namespace

std::optional<std::vector<SlotName>> Lending::ask(const Request& request, Clock::time_point now) {
  if (!answers(request.to.session, now)) return std::vector<SlotName>{};
  auto slots = cache_.lend(request.to, request.count, contended(request.to));
  const bool waits =
      std::ranges::any_of(waiting_, [&](const Waiting& w) { return w.request.to == request.to; });
  if (!slots.empty() || request.count == 0 || waits ||
      waiting_.size() >= limits::kReservesWaitingMax || !cache_.has_less_than_due(request.to)) {
    return slots;
  }
  cache_.set_asking(request.to, true);
  waiting_.push_back({request, now + limits::kReserveWaitMax});
  wake();
  return std::nullopt;
}

void Lending::wake() {
  if (!std::exchange(woken_, true)) ports_.wake();
}

bool Lending::contended(const Borrower& who) const {
  return std::ranges::any_of(waiting_, [&](const Waiting& w) {
    return w.request.to.tier == who.tier && w.request.to.device == who.device;
  });
}

// One that knows no recalls has answered once it has no slot left.
bool Lending::answers(SessionId session, Clock::time_point now) {
  const auto asked = asked_.find(session);
  if (asked == asked_.end()) return true;
  if (!asked->second.deaf) return now - asked->second.at < limits::kRecallAnswerMax;
  if (cache_.reservations().held_by_session(session) != 0) return false;
  asked_.erase(asked);
  return true;
}

bool Lending::may_be_asked(SessionId session, Clock::time_point now) const {
  const auto asked = asked_.find(session);
  return asked == asked_.end() ||
         (!asked->second.deaf && now - asked->second.at < limits::kRecallAnswerMax);
}

void Lending::returned(SessionId session, std::uint64_t number) {
  const auto asked = asked_.find(session);
  if (asked == asked_.end() || asked->second.deaf || asked->second.number != number) return;
  asked_.erase(asked);
  came_home();
}

void Lending::came_home() {
  if (!waiting_.empty() || making_way_) wake();
}

void Lending::session_ended(SessionId session) {
  asked_.erase(session);
  std::erase_if(waiting_, [&](const Waiting& w) { return w.request.to.session == session; });
  came_home();
}

void Lending::make_way() {
  making_way_ = true;
  wake();
}

// Whether the request was answered. Before it is, `recalls` says what would help.
bool Lending::give(const Waiting& waiting, BlockCache::Recalls& recalls, Clock::time_point now) {
  const Request& request = waiting.request;
  auto slots = cache_.lend(request.to, request.count, true);
  if (slots.empty() && now < waiting.until && answers(request.to.session, now)) {
    BlockCache::Recalls needed;
    const bool on_its_way = cache_.recall_for(request.to, needed) && needed.empty();
    std::erase_if(needed, [&](const auto& of) { return !may_be_asked(of.first, now); });
    if (on_its_way || !needed.empty()) {
      for (auto& [session, recall] : needed) {
        auto& all = recalls[session];
        std::ranges::move(recall.extents, std::back_inserter(all.extents));
        std::ranges::move(recall.keeps, std::back_inserter(all.keeps));
      }
      return false;
    }
  }
  cache_.set_asking(request.to, false);
  ports_.grant(request, std::move(slots));
  return true;
}

void Lending::turn(Clock::time_point now) {
  woken_ = false;
  BlockCache::Recalls recalls;
  // Granting may end a session, and with it what else of it waits.
  for (std::size_t left = std::min(waiting_.size(), kLooksPerTurn); left > 0 && !waiting_.empty();
       --left) {
    const Waiting next = waiting_.front();
    waiting_.pop_front();
    if (!give(next, recalls, now)) waiting_.push_back(next);
  }
  if (waiting_.empty()) cache_.stop_waiting_for_loans();
  if (making_way_) {
    making_way_ = cache_.shrink();
    if (making_way_) cache_.recall_for_cap(recalls);
    if (cache_.shrink_goes_on()) wake();
  }
  send(recalls, now);
}

// One recall at a time: what else is wanted of the session is asked for after its answer.
void Lending::send(BlockCache::Recalls& recalls, Clock::time_point now) {
  for (const auto& [session, recall] : recalls) {
    if (asked_.contains(session)) continue;
    const std::uint64_t number = ++last_number_;
    asked_[session] = {number, now, false};
    if (ports_.recall(session, number, recall)) continue;
    const auto asked = asked_.find(session);
    if (asked == asked_.end()) continue;
    asked->second.deaf = true;
    if (cache_.reservations().held_by_session(session) == 0) asked_.erase(asked);
  }
}

std::optional<Lending::Clock::time_point> Lending::next(Clock::time_point now) const {
  if (waiting_.empty() && !making_way_) return std::nullopt;
  if (waiting_.empty()) return now + 10 * kLookAgain;
  return now + (waiting_.size() > kLooksPerTurn ? kLookAtOthers : kLookAgain);
}

}  // namespace kvtier::daemon
