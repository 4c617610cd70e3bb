// The end of a daemon: what waits for the disk is written, and the tiers are closed.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "daemon/limits.h"
#include "daemon/server/server.h"

namespace kvtier::daemon {

namespace {

constexpr std::chrono::seconds kReportEvery{1};

}  // namespace

void Server::stop() {
  if (std::exchange(stopping_, true)) return;
  const Turns::Scope turn(turns_);
  spdlog::info("stopping: {} blocks wait for the disk", cache_->disk().queued());
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  if (owns_socket_) ::unlink(path_.c_str());
  accept_timer_.cancel();
  timer_.cancel();
  lending_timer_.cancel();
  const auto sessions = sessions_;
  for (const auto& [id, session] : sessions) session->end("kvtierd stops");
  reap();
  cache_->disk().write_stamps();
  stop_timer_.expires_after(config_.shutdown_timeout);
  stop_timer_.async_wait([this](boost::system::error_code error) {
    if (!error) finish_stop();
  });
  report_stop();
  cache_->flush([this](const Result<void>&) { finish_stop(); });
}

void Server::report_stop() {
  progress(fmt::format("Saving: {} blocks wait for the disk", cache_->disk().queued()));
  timer_.expires_after(kReportEvery);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) report_stop();
  });
}

void Server::finish_stop() {
  if (std::exchange(stopped_, true)) return;
  stop_timer_.cancel();
  timer_.cancel();
  if (!stores_.empty()) progress("Closing the disk tier");
  left_behind_ = !close_stores();
  io_.stop();
}

// The one wait of the control thread for a disk's, with a bound: nobody is served any more. False
// where a store did not close in time.
bool Server::close_stores() {
  struct Closing {
    std::mutex mutex;
    std::condition_variable closed;
    std::size_t open;
  };
  const auto closing = std::make_shared<Closing>();
  closing->open = stores_.size();
  for (const auto& store : stores_) {
    const auto close = [closing, &store = *store] {
      store.close();
      const std::lock_guard lock(closing->mutex);
      --closing->open;
      closing->closed.notify_one();
    };
    try {
      std::thread(close).detach();
    } catch (const std::system_error&) {
      close();
    }
  }
  std::unique_lock lock(closing->mutex);
  if (closing->closed.wait_for(lock, limits::kCloseMax, [&] { return closing->open == 0; }))
    return true;
  spdlog::error(
      "{} of {} disk directories have not closed within {} s: kvtierd ends without them; what was "
      "not written by then is a miss after the restart",
      closing->open, stores_.size(), limits::kCloseMax.count());
  return false;
}

}  // namespace kvtier::daemon
