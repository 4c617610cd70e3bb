// Flushes that engine threads wait for.
//
// Owned by the session, on its thread. It holds:
// - One request is out at a time, for all that came before it; those that come meanwhile go with
//   the next one.
// - After a flush, slots that were asked for before it are at hand, or have had their time.
// - Every waiter is told once.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "client/session/outcome.h"
#include "client/session/thread/namespaces.h"

namespace kvtier::session {

class Flushes {
 public:
  Flushes(Conversation& conversation, const Namespaces& namespaces)
      : conversation_(conversation), namespaces_(namespaces) {}

  void add(std::shared_ptr<Outcome> outcome);
  // Ends those that are done but for slots on their way, where these have come or are late.
  void settle(Clock::time_point now);
  // When one of those is late.
  std::optional<Clock::time_point> next_late() const;
  // The connection has ended.
  void end(const Error& why);

 private:
  struct Flush {
    std::shared_ptr<Outcome> outcome;
    Clock::time_point settled_by{};  // once it is done but for slots on their way
  };

  void ask();
  void answered(std::vector<Flush> flushes, const Result<void>& result);
  bool slots_on_their_way() const;

  Conversation& conversation_;
  const Namespaces& namespaces_;
  std::vector<Flush> next_;  // for the next request
  bool asking_ = false;
  std::vector<Flush> settling_;
};

}  // namespace kvtier::session
