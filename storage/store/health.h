// Whether a store's device is to be believed: what takes it offline, and when it is tried again.
// Decisions only, no I/O and no clock of its own; the store's thread alone calls it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "storage/store/record_store.h"

namespace kvtier::storage {

// What an operator can do about `code` (0: not known), judged by the state of the directory itself.
std::string mend_of(const std::filesystem::path& directory, int code);

class Health {
 public:
  using Clock = std::chrono::steady_clock;

  Health(std::chrono::milliseconds probe_first, std::chrono::milliseconds probe_max);

  bool online() const noexcept { return online_; }

  // A transfer of a record or a sync ended, with 0 or an errno. True if the device is to be taken
  // offline for it: at once for what no record can be blamed for (no space, read-only, gone), for
  // other failures after kPlacesMax different places in a row.
  bool transfer_ended(int code, DiskLocation at, Clock::time_point now);

  void go_offline(Clock::time_point now);
  void go_online(Clock::time_point now);
  void probe_failed(Clock::time_point now);
  Clock::time_point next_probe() const noexcept { return next_probe_; }

  static constexpr std::size_t kPlacesMax = 4;
  static constexpr std::chrono::seconds kWindow{30};

 private:
  std::chrono::milliseconds probe_first_, probe_max_;
  bool online_ = true;
  std::vector<DiskLocation> failed_at_;  // since the last success, each place once
  Clock::time_point first_failure_;
  std::chrono::milliseconds delay_;
  Clock::time_point next_probe_;
  std::optional<Clock::time_point> online_since_;  // of the last return
};

}  // namespace kvtier::storage
