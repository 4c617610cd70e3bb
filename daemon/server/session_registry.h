// The sessions that are open: who is let in, what all of them are told, and how each ends.
//
// Owned by the control thread. A session is in the registry from the turn in which it was let in to
// the end of the turn in which it was ended, and there is one place where sessions are closed
// (reap()): a session comes to its end in the middle of whatever it, another or the cache is at,
// all of which go on with it. What a closed session holds goes back to the cache, but for slots
// that its process may still be writing: those wait for the process (ProcessWatch), which is
// watched as long as it has a session or such slots. Each bound on sessions is looked at before
// a peer is let in, and whoever comes pays, turned away or not.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/peers/process_watch.h"
#include "daemon/session/session.h"

namespace kvtier::daemon {

class SessionRegistry {
 public:
  using Clock = std::chrono::steady_clock;
  // By id, which is the order in which they came.
  using Sessions = std::map<SessionId, std::shared_ptr<Session>>;
  // All outlive this.
  struct Needs {
    BlockCache& cache;
    DirectoryWriter& directory;
    Lending& lending;
    AdminJobs& admin;
    const Access& access;
    const Config::Limits& limits;
    Welcomed welcomed;
    SessionPorts ports;  // but for end_earlier, which is done here
  };
  SessionRegistry(boost::asio::any_io_executor control, Needs needs);

  // Lets the peer in, or tells it why not. False where nobody should be let in for a while.
  bool admit(Session::Socket socket);
  // Slots that a client of an earlier daemon may be writing to are free once its process has ended,
  // or once it says that it does not (letGo).
  void watch_writers(const std::vector<ProcessId>& writers);
  // About once a second. `stalled`: the daemon itself stood still, so clients get their time again.
  void look_after(Clock::time_point now, bool stalled);
  void end_all(const std::string& why);

  // None where it has ended.
  std::shared_ptr<Session> find(SessionId id) const;
  void tell_extent_gone(ExtentId id);
  // Return how many sessions were told.
  std::uint32_t tell_namespace_closed(std::uint16_t ns);
  std::uint32_t tell_invalidated(const NamespaceFilter& filter);
  // Of sessions that say hello from now on.
  void set_lease_time(std::chrono::milliseconds time) { context_.welcomed.lease_time = time; }

  const Sessions& sessions() const noexcept { return sessions_; }
  const SessionCounts& counts() const noexcept { return context_.counts; }
  std::uint64_t turned_away() const noexcept { return turned_away_; }

 private:
  // The bound on sessions that one more of this peer would pass.
  std::optional<Error> over_bound(const Peer& peer) const;
  void turn_away(const Peer& peer, Session::Socket socket, const Error& why);
  void end_earlier(SessionId but, ProcessId process, std::uint64_t client);
  void doomed(SessionId id);
  void reap(SessionId but = 0);
  void close(SessionId id);
  void process_ended(ProcessId process);

  boost::asio::any_io_executor control_;
  Closings closings_;
  Farewells farewells_;
  Users users_;
  SessionContext context_;
  ProcessWatch processes_;
  boost::asio::steady_timer late_reads_timer_;  // of an earlier daemon
  Sessions sessions_;
  SessionId next_ = 1;
  std::vector<SessionId> doomed_;  // ended, not closed yet
  bool reap_posted_ = false;
  std::uint64_t turned_away_ = 0;
};

}  // namespace kvtier::daemon
