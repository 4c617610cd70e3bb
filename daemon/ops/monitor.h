// Watches the daemon and tells over HTTP: metrics, health, readiness, status, a page for people.
//
// It has a thread of its own and never touches what the control thread owns. It posts requests to
// the control thread, which answers each with a Snapshot in some tens of microseconds, and pings,
// whose delay is the control loop's lag. Where the control thread does not answer, what it last
// said is served, and /healthz says since when.
#pragma once

#include <spdlog/sinks/ringbuffer_sink.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/ops/http_server.h"
#include "daemon/ops/scrape.h"
#include "daemon/server/status/snapshot.h"

namespace kvtier::daemon::ops {

class Monitor {
 public:
  // Runs on the control thread.
  using Take = std::function<Snapshot()>;
  // The last warnings and errors.
  using Problems = std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt>;

  // `control` runs on another thread once the daemon has loaded, and `take` may be called then.
  // `problems` may be null.
  Monitor(const Config::Http& config, boost::asio::io_context& control, Take take,
          Problems problems);
  // The control loop must not run any more.
  ~Monitor();

  // Begins to listen. An address that is not to be had is tried again every few seconds: the cache
  // does not depend on it. Nothing where the configuration has no address.
  void start();

  // Where it listens; port 0 while it does not. Any thread.
  boost::asio::ip::tcp::endpoint address() const;

 private:
  using Time = std::chrono::steady_clock::time_point;
  // Null: there is none yet.
  using Latest = std::shared_ptr<const Snapshot>;
  using Use = std::function<void(const Latest&)>;
  struct Waiting {
    Use use;
    Time until;
  };

  void turn();
  void listen();
  void ping(Time now);
  void ponged(Time sent, Time ran);
  void with_snapshot(Use use);
  void ask(Time now);
  void arrived(Latest snapshot, Time taken);
  void expire(Time now);
  void remember(const Snapshot& snapshot);
  void answer(const std::string& path, const std::function<void(HttpReply)>& reply);
  // Why the daemon is not healthy; none where it is.
  std::optional<std::string> sick(const Latest& latest) const;
  Scrape scrape(Latest latest);

  const Config::Http config_;
  boost::asio::io_context& control_;
  const Take take_;
  const Problems problems_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  boost::asio::steady_timer timer_{io_};
  boost::asio::steady_timer soon_{io_};  // for who asks too soon after the last
  bool soon_waits_ = false;
  HttpServer server_;

  Latest latest_;
  Time taken_{};
  std::vector<Waiting> waiting_, asked_;  // for the next snapshot; for the one asked for
  bool asking_ = false;
  Time last_asked_{};

  std::optional<Time> pinged_;  // a ping is under way since then
  Time last_ping_{};
  bool loaded_ = false;  // the control loop has turned
  LoopLag lag_;

  History history_;
  Time next_point_{};
  Time next_listen_{};

  mutable std::mutex address_mutex_;
  boost::asio::ip::tcp::endpoint address_;
  std::thread thread_;
};

}  // namespace kvtier::daemon::ops
