#include "daemon/service/service.h"

#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <csignal>
#include <utility>

namespace kvtier::daemon {

Service::Service(Server& server, std::string config_file)
    : server_(server),
      config_file_(std::move(config_file)),
      signals_(server.executor(), SIGTERM, SIGINT, SIGHUP) {
  server_.on_progress = [this](const std::string& text) { manager_.progress(text); };
  manager_.status("Starting");
}

void Service::serving() {
  wait_for_signal();
  boost::asio::post(server_.executor(), [this] {
    manager_.ready(state());
    watchdog_.emplace(server_.executor(), ServiceManager::watchdog_time(),
                      [this] { manager_.alive(); });
  });
}

void Service::wait_for_signal() {
  signals_.async_wait([this](boost::system::error_code error, int number) {
    if (error) return;
    if (number != SIGHUP) return stop();
    reload();
    wait_for_signal();
  });
}

std::string Service::state() const {
  return "Serving on " + server_.serving_on() + note_;
}

void Service::reload() {
  manager_.reloading();
  if (config_file_.empty()) {
    note_ = "; nothing to reload: no --config was given";
  } else if (const auto fresh = load_config(config_file_); !fresh) {
    spdlog::error("reload: the configuration stays as it is: {}", fresh.error().message);
    note_ = "; the last reload was refused: " + fresh.error().message;
  } else {
    const auto result = server_.reload(*fresh);
    note_.clear();
    for (const std::string& key : result.waiting)
      note_ += (note_.empty() ? "; a restart would change " : ", ") + key;
    spdlog::info("reload: {} keys changed, {} wait for a restart", result.applied.size(),
                 result.waiting.size());
  }
  manager_.ready(state());
}

void Service::stop() {
  manager_.stopping("Stopping");
  server_.stop();
}

}  // namespace kvtier::daemon
