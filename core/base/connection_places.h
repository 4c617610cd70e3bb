// Who is connected to a small server, and who has to go for whom. A connection that has sent no
// complete request holds its place for as long as nobody else needs it: so neither one peer's half
// requests nor idle connections keep others out. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace kvtier {

class ConnectionPlaces {
 public:
  using Id = std::uint64_t;  // 0: none

  explicit ConnectionPlaces(std::size_t most) : most_(most) {}

  // A connection has come from `peer`. Where all places are taken, one that waits for its request
  // is closed: of the peer that has the most, the one that has waited longest. 0 where requests of
  // all are being answered. `close` is called once at most, from whichever thread lets another in.
  Id enter(const std::string& peer, std::function<void()> close) {
    std::function<void()> last;
    Id entered = 0;
    {
      const std::lock_guard lock(mutex_);
      if (open_.size() >= most_ && !remove_one(last)) return 0;
      entered = ++last_id_;
      open_.emplace(entered, Connection{peer, std::move(close), ++clock_});
      ++of_peer_[peer];
    }
    if (last) last();
    return entered;
  }

  // Its request has come whole: it is not closed before waits().
  void answering(Id id) { set_waiting(id, 0); }
  // It waits for its next request from now on.
  void waits(Id id) { set_waiting(id, 1); }
  void leave(Id id) {
    const std::lock_guard lock(mutex_);
    if (const auto found = open_.find(id); found != open_.end()) remove(found);
  }

  std::size_t open() const {
    const std::lock_guard lock(mutex_);
    return open_.size();
  }
  // Closed for another's sake.
  std::uint64_t closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

 private:
  struct Connection {
    std::string peer;
    std::function<void()> close;
    std::uint64_t waiting_since;  // 0: it is being answered
  };
  using Open = std::map<Id, Connection>;

  void set_waiting(Id id, std::uint64_t waiting) {
    const std::lock_guard lock(mutex_);
    if (const auto found = open_.find(id); found != open_.end())
      found->second.waiting_since = waiting == 0 ? 0 : ++clock_;
  }

  bool remove_one(std::function<void()>& close) {
    auto victim = open_.end();
    for (auto at = open_.begin(); at != open_.end(); ++at) {
      if (at->second.waiting_since == 0) continue;
      if (victim == open_.end() || before(at->second, victim->second)) victim = at;
    }
    if (victim == open_.end()) return false;
    close = std::move(victim->second.close);
    remove(victim);
    ++closed_;
    return true;
  }

  bool before(const Connection& a, const Connection& b) const {
    const std::size_t of_a = of_peer_.at(a.peer);
    const std::size_t of_b = of_peer_.at(b.peer);
    return of_a != of_b ? of_a > of_b : a.waiting_since < b.waiting_since;
  }

  void remove(Open::iterator at) {
    const auto of_peer = of_peer_.find(at->second.peer);
    if (--of_peer->second == 0) of_peer_.erase(of_peer);
    open_.erase(at);
  }

  const std::size_t most_;
  mutable std::mutex mutex_;
  Open open_;
  std::map<std::string, std::size_t> of_peer_;
  Id last_id_ = 0;
  std::uint64_t clock_ = 0, closed_ = 0;
};

}  // namespace kvtier
