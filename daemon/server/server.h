// The daemon, put together: what is made of the configuration, in which order it starts and stops,
// and the clock that has its parts do what they do about once a second. Each part is a class of its
// own; what they tell each other passes through here, so that none knows the others.
//
// Lives on the control thread, which is the io_context's. Everything that the thread does passes
// through executor(), so that its time counts (Turns). Nobody is served before start() has
// returned, nor after stop().
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "daemon/config/config.h"
#include "daemon/events/event_publisher.h"
#include "daemon/server/listener.h"
#include "daemon/server/reload.h"
#include "daemon/server/scrubber.h"
#include "daemon/server/session_registry.h"
#include "daemon/server/status/describer.h"
#include "daemon/server/stop.h"
#include "daemon/server/tiers.h"
#include "daemon/server/turns.h"
#include "daemon/session/admin/admin_jobs.h"

namespace kvtier::daemon {

class Server {
 public:
  // `wrap_device`: see TierBacking::Ports. `passed`: what of it is the memory of an earlier daemon
  // is taken back from it.
  Server(boost::asio::io_context& io, const Config& config, PassedDescriptors& passed,
         storage::WrapDevice wrap_device = {});

  // Opens the tiers and the socket, or serves on `listening`, which the service manager made and
  // keeps. Errors: invalid, io, version, refused; each names the setting to mend.
  Result<void> start(std::optional<UniqueFd> listening = {});

  // Ends every session, writes what waits for the disk (at most for `shutdown_timeout`), closes the
  // tiers (at most for limits::kCloseMax) and then stops the io_context.
  void stop();
  // A disk's thread that had not ended by then: the process can only be ended without it.
  bool left_behind() const noexcept { return left_behind_; }

  // Takes over from `fresh` what can change while it runs, and says in the log, key by key, what
  // changed and what waits for a restart (those keys keep the values that are in effect).
  Reloaded reload(const Config& fresh);

  // Where clients connect; once it is started.
  const std::string& serving_on() const noexcept { return listener_.path(); }

  // What start() and stop() are about, now and then; on the thread that called them.
  std::function<void(const std::string&)> on_progress;

  // What whoever watches the daemon is shown. On the control thread, after start().
  Snapshot snapshot();

  // For handlers that are to run on the control thread, so that their time counts.
  boost::asio::any_io_executor executor() { return turns_.executor(); }

 private:
  void make_parts();
  Lending::Ports lending_ports();
  SessionPorts session_ports();
  Welcomed welcomed() const;
  void tick();
  void lend();
  void post(std::function<void()> task);
  void after(std::chrono::milliseconds time, std::function<void()> task);
  void progress(const std::string& text) const {
    if (on_progress) on_progress(text);
  }

  boost::asio::io_context& io_;
  Turns turns_;
  Config config_;  // in effect
  Access access_;
  Tiers tiers_;
  // Made by start(), in this order.
  std::unique_ptr<Scrubber> scrubber_;
  std::unique_ptr<AdminJobs> admin_;
  std::unique_ptr<Lending> lending_;
  std::unique_ptr<SessionRegistry> sessions_;
  std::unique_ptr<Describer> describer_;
  std::unique_ptr<Reload> reload_;
  std::unique_ptr<events::EventPublisher> events_;  // null: none are published
  Listener listener_;
  Stop stop_;
  boost::asio::steady_timer tick_timer_, lending_timer_;
  std::chrono::steady_clock::time_point started_, last_tick_;
  bool stopping_ = false;
  bool left_behind_ = false;
};

}  // namespace kvtier::daemon
