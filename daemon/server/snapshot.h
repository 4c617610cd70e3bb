// All that the daemon shows of itself at one moment: made by the control thread between two of its
// turns, so that its figures fit each other, and never changed afterwards. Bounded in size whatever
// the daemon holds: namespaces and sessions beyond a bound are summed up or left out.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "core/wire/drop_reason.h"
#include "daemon/cache/catalogue/namespaces.h"
#include "daemon/cache/loans/reservations.h"
#include "daemon/cache/tiers/disk_tier.h"
#include "daemon/config/tenants.h"
#include "daemon/server/scrubber.h"
#include "daemon/session/client_told.h"
#include "daemon/telemetry.h"

namespace kvtier::daemon {

struct Snapshot {
  struct TierView {
    bool online = false;
    std::string note;  // why not
    std::uint64_t used_bytes = 0, taken_bytes = 0, cap_bytes = 0, blocks = 0, insertions = 0;
    Removals removals{};
    Histogram idle, lifetimes;
  };
  struct GpuView {
    std::string uuid, name;
    std::uint32_t number = 0;
    std::uint64_t used_bytes = 0, reserved_bytes = 0, taken_bytes = 0, cap_bytes = 0, blocks = 0;
  };
  struct DiskView {
    std::string directory, why;
    bool online = false;
    std::uint64_t used_bytes = 0, taken_bytes = 0, cap_bytes = 0, file_bytes = 0, blocks = 0;
    std::uint64_t bytes_written = 0, bytes_written_per_day = 0, records_read = 0, bytes_read = 0;
    std::uint64_t failures = 0, corrupt = 0, memory_faults = 0;
    Histogram read_us, write_us;
    std::chrono::milliseconds stuck_for{};
  };
  struct NamespaceView {
    std::string tenant;  // as the configuration names it
    std::string id, model, adapter,
        format;  // hex; the rest as clients gave it, which may be anything
    std::uint64_t blocks = 0;
    std::array<std::uint64_t, kTiers> bytes{}, evictions{};
    Lookups lookups;
  };
  struct SessionView {
    SessionId id = 0;
    std::uint32_t pid = 0;
    std::string name;  // as the client gave it
    std::chrono::seconds connected_for{}, silent_for{};
    std::uint64_t leases = 0, leased_blocks = 0, namespaces = 0;
  };

  std::string version, boot_id;
  std::chrono::milliseconds uptime{};
  bool stopping = false;
  std::array<TierView, kTiers> tiers;
  std::vector<GpuView> gpus;
  std::vector<DiskView> disks;
  std::vector<NamespaceView> named;  // those with a label of their own, and `others` summed up
  NamespaceView others;
  std::vector<NamespaceView> largest;  // by bytes
  std::uint32_t namespaces = 0;
  std::vector<SessionView> sessions;  // those with the most leased blocks
  std::uint32_t sessions_open = 0;
  std::uint64_t leases = 0, leased_blocks = 0, reserved_slots = 0, quarantined_slots = 0;
  std::uint64_t blocks = 0, blocks_max = 0, orphans = 0;
  std::uint64_t faults = 0, refused_commits = 0, double_releases = 0, frame_errors = 0;
  Lookups lookups;  // of all namespaces
  Histogram reuse_gap, turns_us;
  std::chrono::microseconds turn_longest{}, turn_longest_cpu{};  // of the last 30 to 60 seconds
  DiskTier::Counts disk_counts;
  std::uint64_t write_queue_blocks = 0, write_queue_bytes = 0;
  ClientTold told;
  struct Scrub {
    bool running = false;
    std::uint64_t passes = 0, records = 0, bytes = 0, corrupt = 0, skipped = 0;  // of the pass that
    // runs, or of the last
    double progress = 0;  // of the pass that runs, by bytes
  } scrub;
};

// Which namespaces have a label of their own: the first so many that come, the largest first where
// several come at once. One that has a label keeps it and none moves in later, so that no series of
// counters ever goes back.
class NamespaceLabels {
 public:
  explicit NamespaceLabels(std::size_t labels_max) : labels_max_(labels_max) {}
  // Fills `named` and `others`.
  void fill(const Namespaces& namespaces, const Tenants& tenants, Snapshot& snapshot);

 private:
  std::size_t labels_max_;
  std::vector<std::uint16_t> named_;
  std::uint16_t seen_ = 0;  // namespaces looked at so far
};

Snapshot::NamespaceView view_of(const KnownNamespace& known, const Tenants& tenants);
// The numbers of the namespaces with the most bytes, at most `count`, from number `first` on.
std::vector<std::uint16_t> largest_namespaces(const Namespaces& namespaces, std::uint16_t first,
                                              std::size_t count);

}  // namespace kvtier::daemon
