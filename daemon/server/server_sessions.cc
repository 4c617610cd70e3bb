// Who is let in, and how sessions end.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "daemon/limits.h"
#include "daemon/server/server.h"

namespace kvtier::daemon {

namespace asio = boost::asio;
using std::chrono::steady_clock;

namespace {

constexpr std::chrono::seconds kNextAttempt{1};

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

void Server::accept() {
  acceptor_.async_accept([this](boost::system::error_code error, Session::Socket socket) {
    if (stopping_ || error == asio::error::operation_aborted) return;
    if (error) {
      // No descriptor left, most likely, and the connection still waits: at once would be again and
      // again.
      spdlog::warn("accept: {}; tried again in a second", error.message());
      return accept_later();
    }
    admit(std::move(socket));
    if (closings_.under_way() < limits::kClosingsMax) return accept();
    spdlog::warn("nobody is let in for a second: what peers have sent takes long to close");
    accept_later();
  });
}

void Server::accept_later() {
  accept_timer_.expires_after(kNextAttempt);
  accept_timer_.async_wait([this](boost::system::error_code cancelled) {
    if (!cancelled && !stopping_) accept();
  });
}

void Server::admit(Session::Socket socket) {
  reap();
  auto peer = peer_of(socket.native_handle());
  if (!peer) {
    spdlog::warn("a connection is turned away: {}", peer.error().message);
    return;
  }
  // Whoever is let in or turned away pays, so that connecting again and again is no way around.
  constexpr double kCostOfConnecting = 20;
  users_.charge(peer->uid, kCostOfConnecting, steady_clock::now());
  auto why = turned_away(*peer);
  Result<ProcessId> process = ProcessId{};
  if (!why) {
    process = processes_.watch(*peer);
    peer->process.reset();
    if (!process) why = process.error();
  }
  if (why) {
    ++turned_away_;
    if (const auto left_out = context_->log_budget.take(steady_clock::now())) {
      spdlog::warn("pid {} (uid {}) is turned away: {}{}", peer->pid, peer->uid, why->message,
                   lines_left_out(*left_out));
    }
    tell(socket.native_handle(), *why);
    boost::system::error_code ignored;
    farewells_.see_off(peer->uid, UniqueFd(socket.release(ignored)));
    return;
  }
  const SessionId id = next_session_++;
  auto session =
      std::make_shared<Session>(id, *process, std::move(*peer), std::move(socket), *context_,
                                [this](SessionId doomed) { session_doomed(doomed); });
  sessions_.emplace(id, session);
  cache_->begin_session(id, session->peer().uid);
  users_.session_begins(session->peer().uid, steady_clock::now());
  session->start();
}

std::uint32_t Server::namespace_closed(std::uint16_t ns) {
  std::uint32_t told = 0;
  for (const auto& [id, session] : sessions_) told += session->send_namespace_closed(ns) ? 1 : 0;
  return told;
}

std::optional<Error> Server::turned_away(const Peer& peer) const {
  const std::size_t of_admin = access_.is_admin(peer) ? limits::kAdminSessionsMax : 0;
  const auto& bounds = config_.limits;
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

// A session comes to its end in the middle of whatever it, another or the cache is at, all of which
// go on with it. So it goes when that is over.
void Server::session_doomed(SessionId id) {
  doomed_.push_back(id);
  if (std::exchange(reap_posted_, true)) return;
  post([this] {
    reap_posted_ = false;
    reap();
  });
}

void Server::reap(SessionId but) {
  const auto all = std::exchange(doomed_, {});
  for (const SessionId id : all) {
    if (id == but) {
      doomed_.push_back(id);
    } else {
      close_session(id);
    }
  }
}

void Server::close_session(SessionId id) {
  const auto at = sessions_.find(id);
  at->second->close();
  lending_->session_ended(id);
  cache_->end_session(id);
  users_.session_ends(at->second->peer().uid, steady_clock::now());
  const ProcessId process = at->second->process();
  sessions_.erase(at);
  const bool in_touch =
      std::ranges::any_of(sessions_, [&](const auto& s) { return s.second->process() == process; });
  if (!in_touch && !cache_->reservations().holds(process)) processes_.forget(process);
}

void Server::end_earlier(SessionId but, ProcessId process, std::uint64_t client) {
  const auto sessions = sessions_;
  for (const auto& [id, session] : sessions) {
    if (id != but && session->process() == process && session->client() == client)
      session->hear_out("its client has a new session");
  }
  // What those had is quarantined before the new session says anything of it.
  reap(but);
}

// Its sessions may not have been seen to end yet.
void Server::process_ended(ProcessId process) {
  for (const auto& [id, session] : sessions_) {
    if (session->process() != process) continue;
    post([session = session] {
      session->hear_out("its process has ended");
    });  // a turn of its own each
  }
  post([this, process] {
    reap();
    cache_->end_process(process);
    lending_->came_home();
  });
}

}  // namespace kvtier::daemon
