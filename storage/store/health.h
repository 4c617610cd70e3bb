// Whether a store's device is to be believed: what takes it offline, and when it is tried again.
// Decisions only, no I/O and no clock of its own; the store's thread alone calls it.
#pragma once

#include <array>
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

  DiskState state() const noexcept { return state_; }
  // What an errno says of the device or file system as a whole, if it does.
  static std::optional<DiskState> state_by(int code) noexcept;

  // A read or write of a record, or a sync, ended, with 0 or an errno. Whether the device is to be
  // taken to another state for it: at once for what no record can be blamed for (no space,
  // read-only, gone), for other failures after kPlacesMax of the kind in a row, of different places
  // or of syncs. What can still be read says nothing of what can be written, nor the other way
  // round: where writes or syncs fail, reads go on.
  enum class Transfer { read, write, sync };
  std::optional<DiskState> transfer_ended(Transfer kind, int code, DiskLocation at,
                                          Clock::time_point now);

  // To a state that is worse.
  void fall_to(DiskState state, Clock::time_point now);
  void go_online(Clock::time_point now);
  void probe_failed(Clock::time_point now);
  Clock::time_point next_probe() const noexcept { return next_probe_; }

  static constexpr std::size_t kPlacesMax = 4;
  static constexpr std::chrono::seconds kWindow{30};

 private:
  std::chrono::milliseconds probe_first_, probe_max_;
  DiskState state_ = DiskState::online;
  struct Failures {
    std::vector<DiskLocation> at;  // since the last success, each place once, or every sync
    Clock::time_point first;
  };
  std::array<Failures, 3> failed_;  // by kind
  std::chrono::milliseconds delay_;
  Clock::time_point next_probe_;
  std::optional<Clock::time_point> online_since_;  // of the last return
};

}  // namespace kvtier::storage
