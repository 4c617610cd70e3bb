// Who waits for slots, and whom they are asked back from.
//
// A slot that a client holds idle is a loan. Where a borrower has less than its due and there is no
// room, its request waits a moment, and those who have more are told to give back what lies idle
// (recall); each answers at once. A session that does not answer is lent nothing more until it
// does, and nobody waits for it: what it may have is bounded so that others have theirs without it
// (LoanShares). The extents that a lowered cap takes are asked for in the same way. Owned by the
// control thread; nothing here waits.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "daemon/cache/block_cache.h"

namespace kvtier::daemon {

class Lending {
 public:
  using Clock = std::chrono::steady_clock;
  struct Request {
    Borrower to;
    std::uint64_t id = 0;  // of the session's request
    std::uint32_t count = 0;
  };
  struct Ports {
    // The answer to a request; perhaps no slot. Not inside ask().
    std::function<void(const Request&, std::vector<SlotName>)> grant;
    // False where the session does not know recalls.
    std::function<bool(SessionId, std::uint64_t number, const BlockCache::Recall&)> recall;
    // turn() is wanted soon.
    std::function<void()> wake;
  };

  Lending(BlockCache& cache, Ports ports) : cache_(cache), ports_(std::move(ports)) {}

  // The slots, perhaps none; nullopt: the answer comes through Ports::grant.
  std::optional<std::vector<SlotName>> ask(const Request& request, Clock::time_point now);
  // The session has done what the recall of this number asked for.
  void returned(SessionId session, std::uint64_t number);
  // Slots may have come home.
  void came_home();
  void session_ended(SessionId session);
  // About once a second, and when a cap was lowered.
  void make_way();
  void turn(Clock::time_point now);
  // When turn() is wanted next, if it is.
  std::optional<Clock::time_point> next(Clock::time_point now) const;

 private:
  struct Waiting {
    Request request;
    Clock::time_point until;
  };
  struct Asked {  // of a session, for slots
    std::uint64_t number = 0;
    Clock::time_point at;
    bool deaf = false;  // it does not know recalls
  };
  bool answers(SessionId session, Clock::time_point now);
  bool contended(const Borrower& who) const;
  void send(BlockCache::Recalls& recalls, Clock::time_point now);
  bool may_be_asked(SessionId session, Clock::time_point now) const;
  bool give(const Waiting& waiting, BlockCache::Recalls& recalls, Clock::time_point now);
  void wake();

  BlockCache& cache_;
  const Ports ports_;
  std::deque<Waiting> waiting_;
  std::unordered_map<SessionId, Asked> asked_;  // and not answered
  std::uint64_t last_number_ = 0;
  bool making_way_ = false;
  bool woken_ = false;
};

}  // namespace kvtier::daemon
