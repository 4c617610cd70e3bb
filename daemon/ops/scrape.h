// What is served at one moment: a snapshot of the control thread's, and what the monitor itself
// knows.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/ops/http_server.h"
#include "daemon/ops/limits.h"
#include "daemon/ops/process_stats.h"
#include "daemon/server/status/snapshot.h"

namespace kvtier::daemon::ops {

// How late the control loop was to run what it was asked to.
class LoopLag {
 public:
  using Time = std::chrono::steady_clock::time_point;
  void add(Time now, std::chrono::steady_clock::duration lag) {
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(lag);
    us_.add(static_cast<std::uint64_t>(us.count()));
    greatest_.add(now, us);
  }
  const Histogram& us() const noexcept { return us_; }
  // Of the last 30 to 60 seconds.
  std::chrono::duration<double> greatest() const noexcept { return greatest_.greatest(); }

 private:
  Histogram us_;
  RecentGreatest greatest_;
};

// The last hour, a point every ten seconds.
class History {
 public:
  struct Point {
    std::int64_t at = 0;  // seconds since the epoch
    Lookups lookups;      // since the point before
    std::array<std::uint64_t, kTiers> used_bytes{};
  };
  void add(std::int64_t at, const Snapshot& snapshot) {
    Point point{at, {}, {}};
    for (std::size_t t = 0; t < kTiersWithRemote; ++t)
      point.lookups.hits[t] = snapshot.lookups.hits[t] - before_.hits[t];
    for (std::size_t t = 0; t < kTiers; ++t) point.used_bytes[t] = snapshot.tiers[t].used_bytes;
    point.lookups.misses = snapshot.lookups.misses - before_.misses;
    before_ = snapshot.lookups;
    if (points_.size() == kHistoryPoints) points_.erase(points_.begin());
    points_.push_back(point);
  }
  const std::vector<Point>& points() const noexcept { return points_; }

 private:
  Lookups before_;
  std::vector<Point> points_;
};

struct Problem {
  std::int64_t at = 0;  // seconds since the epoch
  std::string level, text;
};

struct Scrape {
  std::shared_ptr<const Snapshot> snapshot;  // never null
  std::chrono::duration<double> age{};       // of the snapshot
  std::optional<std::string> sick;
  bool ready = false;
  LoopLag lag;
  HttpCounts http;
  ProcessStats process;
  std::vector<History::Point> history;
  std::vector<Problem> problems;
};

// Prometheus's text format, version 0.0.4.
std::string metrics_text(const Scrape& scrape);
// As docs/monitoring.md says.
std::string status_json(const Scrape& scrape);

}  // namespace kvtier::daemon::ops
