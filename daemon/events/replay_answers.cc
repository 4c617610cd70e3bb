#include "daemon/events/replay_answers.h"

#include <algorithm>

#include "daemon/limits.h"

namespace kvtier::daemon::events {

bool ReplayAnswers::takes_requests() const noexcept {
  return !waiting_ && answers_.size() < limits::kEventAnswersMax;
}

void ReplayAnswers::turn(EventSockets& sockets, Clock::time_point now) {
  answers_.remove_if([&](Answer& answer) { return !go_on(answer, sockets, now); });
  if (waiting_ && begin(*waiting_, now)) waiting_.reset();
  while (takes_requests()) {
    const auto request = sockets.next_request();
    if (!request) break;
    if (!begin(*request, now)) waiting_ = request;
  }
  answers_.remove_if([&](Answer& answer) { return !go_on(answer, sockets, now); });
}

// False: it wants a snapshot, and there is no place for another one.
bool ReplayAnswers::begin(const EventSockets::Request& request, Clock::time_point now) {
  Answer answer{request.peer, {}, 0, now, nullptr};
  std::uint64_t from = request.from;
  if (!buffer_.has_from(from)) {
    const auto made = snapshot_that_fits();
    if (!made) return false;
    const std::uint64_t next = made->second;
    answer.snapshot = made->first;
    ++counts_.snapshots;
    // They end with the number of the last batch that they stand for, and none is below what was
    // asked for, if that can be.
    const std::uint64_t least = from < next ? from : 0;
    for (std::size_t i = 0; i < answer.snapshot->size(); ++i) {
      const std::uint64_t behind = answer.snapshot->size() - i;
      answer.batches.emplace_back(std::max(least, next - behind), (*answer.snapshot)[i]);
    }
    from = next;
  }
  for (; from < buffer_.next(); ++from) answer.batches.emplace_back(from, buffer_.at(from));
  answers_.push_back(std::move(answer));
  return true;
}

// One that is in memory anyway and is followed by what is kept, or a new one.
std::optional<ReplayAnswers::Standing> ReplayAnswers::snapshot_that_fits() {
  std::erase_if(made_, [](const Made& made) { return made.snapshot.expired(); });
  for (const Made& made : made_) {
    if (buffer_.has_from(made.next)) return Standing{made.snapshot.lock(), made.next};
  }
  if (made_.size() >= limits::kEventSnapshotsMax) return std::nullopt;
  Standing fresh{std::make_shared<const Snapshot>(make_()), buffer_.next()};
  made_.push_back({fresh.first, fresh.second});
  return fresh;
}

bool ReplayAnswers::go_on(Answer& answer, EventSockets& sockets, Clock::time_point now) {
  while (answer.sent <= answer.batches.size()) {
    const bool end = answer.sent == answer.batches.size();
    const auto sent = end ? sockets.end_answer(answer.peer)
                          : sockets.answer(answer.peer, answer.batches[answer.sent].first,
                                           answer.batches[answer.sent].second);
    if (sent == EventSockets::Sent::gone) return false;
    if (sent == EventSockets::Sent::later) return now - answer.moved < limits::kEventAnswerStall;
    if (!end) {
      ++counts_.batches;
      answer.batches[answer.sent].second.reset();
    }
    answer.moved = now;
    ++answer.sent;
  }
  return false;
}

}  // namespace kvtier::daemon::events
