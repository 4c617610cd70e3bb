#include "daemon/server/stop.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

namespace kvtier::daemon {

namespace {

constexpr std::chrono::seconds kReportEvery{1};

}  // namespace

void Stop::begin(std::chrono::milliseconds time_to_save) {
  tiers_.cache().disk().write_stamps();
  deadline_.expires_after(time_to_save);
  deadline_.async_wait([this](boost::system::error_code error) {
    if (!error) finish();
  });
  report();
  tiers_.cache().flush([this](const Result<void>&) { finish(); });
}

void Stop::report() {
  ports_.progress(
      fmt::format("Saving: {} blocks wait for the disk", tiers_.cache().disk().queued()));
  report_.expires_after(kReportEvery);
  report_.async_wait([this](boost::system::error_code error) {
    if (!error) report();
  });
}

void Stop::finish() {
  if (std::exchange(finished_, true)) return;
  deadline_.cancel();
  report_.cancel();
  if (!tiers_.backing().disks().empty()) ports_.progress("Closing the disk tier");
  ports_.done(tiers_.backing().close());
}

}  // namespace kvtier::daemon
