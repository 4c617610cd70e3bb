// A whole daemon inside the test's process: its control loop on a thread of its own, which a test
// can hold, and the HTTP listener on a free port.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <future>
#include <thread>

#include "core/base/check.h"
#include "daemon/config/config.h"
#include "daemon/ops/monitor.h"
#include "daemon/server/server.h"
#include "tests/daemon/support/server_fixture.h"
#include "tests/ops/http_client.h"

namespace kvtier::daemon::testing {

class RunningDaemon {
 public:
  // `load`: the control loop turns from the start. Else loop() lets it.
  explicit RunningDaemon(const Scratch& scratch, const std::string& more = "", bool load = true,
                         ops::Monitor::Problems problems = nullptr)
      : config_(parse_config(small_config(scratch, "") + more + kHttp, "test").value()),
        server_(io_, config_, passed_),
        monitor_(
            config_.http, io_, [this] { return server_.snapshot(); }, std::move(problems)) {
    monitor_.start();
    const auto started = server_.start();
    KVTIER_CHECK(started.has_value());
    if (load) loop();
  }
  ~RunningDaemon() {
    let_go();
    boost::asio::post(io_, [this] { server_.stop(); });
    if (!thread_.joinable()) loop();
    thread_.join();
  }

  void loop() {
    thread_ = std::thread([this] { io_.run(); });
  }
  // The control loop stands still until let_go().
  void hold() {
    held_.emplace();
    std::promise<void> stands;
    boost::asio::post(server_.executor(), [&stands, until = held_->get_future().share()] {
      stands.set_value();
      until.wait();
    });
    stands.get_future().wait();
  }
  void let_go() {
    if (held_) held_->set_value();
    held_.reset();
  }
  // On the control thread.
  void run(const std::function<void(Server&)>& what) {
    std::promise<void> done;
    boost::asio::post(io_, [&] {
      what(server_);
      done.set_value();
    });
    done.get_future().wait();
  }

  std::uint16_t port() const { return monitor_.address().port(); }
  HttpAnswer get(const std::string& path) const { return http_get(port(), path); }
  Metrics metrics() const { return parse_metrics(get("/metrics").body); }

 private:
  static constexpr const char* kHttp = "[http]\nlisten = '127.0.0.1:0'\nstall_after_ms = 300\n";
  Config config_;
  boost::asio::io_context io_{1};
  PassedDescriptors passed_;
  Server server_;
  ops::Monitor monitor_;
  std::thread thread_;
  std::optional<std::promise<void>> held_;
};

}  // namespace kvtier::daemon::testing
