#include "daemon/server/session_registry.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "daemon/limits.h"

namespace kvtier::daemon {

namespace asio = boost::asio;

namespace {

// As much as the socket takes at once: nobody waits for a peer that is turned away.
void tell(int socket, const Error& why) {
  capnp::MallocMessageBuilder message;
  auto failure = message.initRoot<wire::Message>().initError();
  failure.setCode(static_cast<std::uint16_t>(why.code));
  failure.setMessage(why.message);
  wire::FrameWriter writer(wire::kFrameBytesMax);
  if (writer.push(message)) (void)writer.send(socket);
}

}  // namespace

SessionRegistry::SessionRegistry(asio::any_io_executor control, Needs needs)
    : control_(std::move(control)),
      farewells_(control_, closings_),
      users_(needs.limits.requests_per_second),
      context_{needs.cache,
               needs.directory,
               needs.lending,
               needs.admin,
               needs.access,
               needs.limits,
               users_,
               closings_,
               farewells_,
               std::move(needs.welcomed),
               std::move(needs.ports)},
      processes_(control_, [this](ProcessId process) { process_ended(process); }),
      late_reads_timer_(control_) {
  context_.ports.end_earlier = [this](SessionId but, ProcessId process, std::uint64_t client) {
    end_earlier(but, process, client);
  };
}

bool SessionRegistry::admit(Session::Socket socket) {
  reap();
  auto peer = peer_of(socket.native_handle());
  if (!peer) {
    spdlog::warn("a connection is turned away: {}", peer.error().message);
    return true;
  }
  // Whoever is let in or turned away pays, so that connecting again and again is no way around.
  constexpr double kCostOfConnecting = 20;
  users_.charge(peer->uid, kCostOfConnecting, Clock::now());
  auto why = over_bound(*peer);
  Result<ProcessId> process = ProcessId{};
  if (!why) {
    process = processes_.watch(*peer);
    peer->process.reset();
    if (!process) why = process.error();
  }
  if (why) {
    turn_away(*peer, std::move(socket), *why);
  } else {
    const SessionId id = next_++;
    const auto session =
        std::make_shared<Session>(id, *process, std::move(*peer), std::move(socket), context_,
                                  [this](SessionId ended) { doomed(ended); });
    sessions_.emplace(id, session);
    context_.cache.begin_session(id, session->peer().uid);
    users_.session_begins(session->peer().uid, Clock::now());
    session->start();
  }
  if (closings_.under_way() < limits::kClosingsMax) return true;
  spdlog::warn("nobody is let in for a second: what peers have sent takes long to close");
  return false;
}

std::optional<Error> SessionRegistry::over_bound(const Peer& peer) const {
  const std::size_t of_admin = context_.access.is_admin(peer) ? limits::kAdminSessionsMax : 0;
  const auto& bounds = context_.limits;
  if (sessions_.size() >= bounds.sessions_max + of_admin) {
    return make_error(Errc::refused, std::to_string(sessions_.size()) +
                                         " sessions are open: see [limits] sessions_max");
  }
  if (closings_.of_user(peer.uid) >= limits::kClosingsPerUserMax) {
    return make_error(Errc::refused, "sessions of user " + std::to_string(peer.uid) +
                                         " have sent descriptors that take long to close");
  }
  const std::size_t of_user = users_.sessions_of(peer.uid);
  if (of_user < bounds.sessions_per_user + of_admin) return std::nullopt;
  return make_error(Errc::refused, "user " + std::to_string(peer.uid) + " has " +
                                       std::to_string(of_user) +
                                       " sessions open: see [limits] sessions_per_user");
}

void SessionRegistry::turn_away(const Peer& peer, Session::Socket socket, const Error& why) {
  ++turned_away_;
  if (const auto left_out = context_.log_budget.take(Clock::now())) {
    spdlog::warn("pid {} (uid {}) is turned away: {}{}", peer.pid, peer.uid, why.message,
                 lines_left_out(*left_out));
  }
  tell(socket.native_handle(), why);
  boost::system::error_code ignored;
  farewells_.see_off(peer.uid, UniqueFd(socket.release(ignored)));
}

void SessionRegistry::watch_writers(const std::vector<ProcessId>& writers) {
  std::vector<ProcessId> daemons;
  for (const ProcessId& writer : writers) {
    if (writer.start_time == 0) {
      daemons.push_back(writer);
      continue;
    }
    // One that could never be seen from here is watched when it connects again, and until then
    // nobody can say that it has ended.
    if (writer.pid == 0) continue;
    const auto watched = processes_.watch(static_cast<pid_t>(writer.pid));
    if (!watched || !(*watched == writer)) context_.cache.end_process(writer);
  }
  if (daemons.empty()) return;
  late_reads_timer_.expires_after(limits::kLateReadsMax);
  late_reads_timer_.async_wait([this, daemons](boost::system::error_code error) {
    if (error) return;
    for (const ProcessId& daemon : daemons) context_.cache.end_process(daemon);
  });
}

void SessionRegistry::look_after(Clock::time_point now, bool stalled) {
  const auto sessions = sessions_;
  for (const auto& [id, session] : sessions) {
    if (stalled) session->excuse(now);
    if (const auto late = session->overdue(now)) {
      session->refuse(*late);
      continue;
    }
    if (now - session->last_heard() > session->lease_time()) session->lease_time_over();
  }
}

void SessionRegistry::end_all(const std::string& why) {
  const auto sessions = sessions_;
  for (const auto& [id, session] : sessions) session->end(why);
  reap();
}

std::shared_ptr<Session> SessionRegistry::find(SessionId id) const {
  const auto at = sessions_.find(id);
  return at == sessions_.end() ? nullptr : at->second;
}

void SessionRegistry::tell_extent_gone(ExtentId extent) {
  for (const auto& [id, session] : sessions_) session->send_extent_gone(extent);
}

std::uint32_t SessionRegistry::tell_namespace_closed(std::uint16_t ns) {
  std::uint32_t told = 0;
  for (const auto& [id, session] : sessions_) told += session->send_namespace_closed(ns) ? 1 : 0;
  return told;
}

std::uint32_t SessionRegistry::tell_invalidated(const NamespaceFilter& filter) {
  std::uint32_t told = 0;
  for (const auto& [id, session] : sessions_) told += session->close_awaited(filter) ? 1 : 0;
  return told;
}

void SessionRegistry::doomed(SessionId id) {
  doomed_.push_back(id);
  if (std::exchange(reap_posted_, true)) return;
  asio::post(control_, [this] {
    reap_posted_ = false;
    reap();
  });
}

// All that are at their end, but for `but`.
void SessionRegistry::reap(SessionId but) {
  const auto all = std::exchange(doomed_, {});
  for (const SessionId id : all) {
    if (id == but) {
      doomed_.push_back(id);
    } else {
      close(id);
    }
  }
}

void SessionRegistry::close(SessionId id) {
  const auto at = sessions_.find(id);
  at->second->close();
  context_.lending.session_ended(id);
  context_.cache.end_session(id);
  users_.session_ends(at->second->peer().uid, Clock::now());
  const ProcessId process = at->second->process();
  sessions_.erase(at);
  const bool in_touch =
      std::ranges::any_of(sessions_, [&](const auto& s) { return s.second->process() == process; });
  if (!in_touch && !context_.cache.reservations().holds(process)) processes_.forget(process);
}

void SessionRegistry::end_earlier(SessionId but, ProcessId process, std::uint64_t client) {
  const auto sessions = sessions_;
  for (const auto& [id, session] : sessions) {
    if (id != but && session->process() == process && session->client() == client)
      session->hear_out("its client has a new session");
  }
  // What those had is quarantined before the new session says anything of it.
  reap(but);
}

// Its sessions may not have been seen to end yet.
void SessionRegistry::process_ended(ProcessId process) {
  for (const auto& [id, session] : sessions_) {
    if (session->process() != process) continue;
    // A turn of its own each.
    asio::post(control_, [session = session] { session->hear_out("its process has ended"); });
  }
  asio::post(control_, [this, process] {
    reap();
    context_.cache.end_process(process);
    context_.lending.came_home();
  });
}

}  // namespace kvtier::daemon
