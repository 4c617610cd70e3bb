#include "storage/store/health.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/units.h"

namespace kvtier::storage {
namespace {

constexpr std::uint64_t kNearlyFullBytes = 64_MiB;

}  // namespace

std::string mend_of(const std::filesystem::path& directory, int code) {
  const std::string name = directory.string();
  struct stat status {};
  struct statvfs room {};
  if (::stat(directory.c_str(), &status) != 0 || ::statvfs(directory.c_str(), &room) != 0 ||
      code == ENOENT || code == ESTALE || code == ENODEV || code == ENXIO) {
    return name + " or its device is gone: mount it again";
  }
  if (code == EFBIG) {
    return "files in " + name +
           " may not be as large as a segment: raise RLIMIT_FSIZE (LimitFSIZE= in a unit)";
  }
  if (code == EROFS || (room.f_flag & ST_RDONLY) != 0) {
    return name + " is read-only: look for its cause with dmesg, then remount it read-write";
  }
  if (code == ENOSPC || code == EDQUOT ||
      std::uint64_t{room.f_bavail} * room.f_frsize < kNearlyFullBytes) {
    return "free space on the file system of " + name + ", or lower the capacity and restart";
  }
  return "look at the device of " + name + " with dmesg and smartctl";
}

std::optional<DiskState> Health::state_by(int code) noexcept {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
    case EROFS:
    case EFBIG:
      return DiskState::read_only;
    case ENOENT:
    case ESTALE:
    case ENODEV:
    case ENXIO:
      return DiskState::offline;
    default:
      return std::nullopt;
  }
}

Health::Health(std::chrono::milliseconds probe_first, std::chrono::milliseconds probe_max)
    : probe_first_(probe_first), probe_max_(probe_max), delay_(probe_first) {}

std::optional<DiskState> Health::transfer_ended(Transfer kind, int code, DiskLocation at,
                                                Clock::time_point now) {
  Failures& failures = failed_[static_cast<std::size_t>(kind)];
  if (code == 0) {
    failures.at.clear();
    return std::nullopt;
  }
  if (const auto whole = state_by(code)) return whole;
  if (failures.at.empty() || now - failures.first > kWindow) {
    failures.at.clear();
    failures.first = now;
  }
  if (kind == Transfer::sync || std::ranges::find(failures.at, at) == failures.at.end()) {
    failures.at.push_back(at);
  }
  if (failures.at.size() < kPlacesMax) return std::nullopt;
  return kind == Transfer::read ? DiskState::offline : DiskState::read_only;
}

// A device that fails again soon after it came back is tried less and less often.
void Health::fall_to(DiskState state, Clock::time_point now) {
  const bool from_online = std::exchange(state_, state) == DiskState::online;
  for (Failures& failures : failed_) failures.at.clear();
  if (!from_online) return;
  const bool soon_again = online_since_ && now - *online_since_ < 2 * probe_max_;
  delay_ = soon_again ? std::min(2 * delay_, probe_max_) : probe_first_;
  next_probe_ = now + delay_;
}

void Health::go_online(Clock::time_point now) {
  state_ = DiskState::online;
  online_since_ = now;
}

void Health::probe_failed(Clock::time_point now) {
  delay_ = std::min(2 * delay_, probe_max_);
  next_probe_ = now + delay_;
}

}  // namespace kvtier::storage
