// All that the daemon shows of itself at one moment. It is described here once: the status on the
// wire, the status as JSON, the metrics, the page and what kvtierctl makes of them are renderings.
//
// Made by the control thread between two of its turns (Describer), so that its figures fit each
// other, and never changed afterwards. Bounded in size whatever the daemon holds: namespaces and
// sessions beyond a bound are summed up or left out, and blocks and slots are only ever counted.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/base/cuda_driver.h"
#include "daemon/cache/catalogue/namespaces.h"
#include "daemon/cache/hints/hint_counts.h"
#include "daemon/cache/loans/reservations.h"
#include "daemon/cache/remote/remote_counts.h"
#include "daemon/cache/tiers/disk_tier.h"
#include "daemon/config/tenants.h"
#include "daemon/session/client_told.h"
#include "daemon/telemetry.h"
#include "storage/remote/remote_store.h"

namespace kvtier::daemon {

struct Snapshot {
  // Everywhere: `used` is records (of a disk: slots), `reserved` slots that clients may fill,
  // quarantined ones too, and `taken` what the system has given, extents or segments, which is what
  // the cap is of.
  struct TierView {
    bool online = false;
    std::string note;  // why not
    // The block goes that was used longest ago: by the policy, or since that does better there.
    bool goes_by_age = false;
    std::uint64_t used_bytes = 0, reserved_bytes = 0, taken_bytes = 0, cap_bytes = 0;
    std::uint64_t blocks = 0, insertions = 0, inserted_bytes = 0, hit_bytes = 0;
    std::uint64_t failures = 0, dropped_writes = 0;
    std::uint64_t pinned_blocks = 0, pinned_bytes = 0, pinned_bytes_max = 0;
    std::uint64_t hinted_blocks = 0, hinted_bytes = 0, hinted_bytes_max = 0, demoted_blocks = 0;
    Removals removals{};
    Histogram idle, lifetimes;
  };
  struct GpuView {
    GpuUuid uuid{};
    std::string name;
    std::uint32_t number = 0;
    std::uint64_t used_bytes = 0, reserved_bytes = 0, taken_bytes = 0, cap_bytes = 0, blocks = 0;
  };
  struct DiskView {
    std::string directory, state, why;
    bool online = false;  // it can be read
    std::uint64_t used_bytes = 0, taken_bytes = 0, cap_bytes = 0, file_bytes = 0, blocks = 0;
    std::uint64_t capacity_bytes = 0;  // as configured
    std::uint64_t bytes_written = 0, bytes_written_per_day = 0, records_read = 0, bytes_read = 0;
    std::uint64_t failures = 0, corrupt = 0, memory_faults = 0, given_up = 0, bad_bytes = 0;
    std::uint64_t index_memory_bytes = 0;
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
    std::uint32_t process = 0;  // as its slots name it; 0 where it cannot be seen from here
    pid_t pid = 0;              // as its connection has it
    uid_t uid = 0;
    gid_t gid = 0;
    bool read_only = false, admin = false;
    std::string name;  // as the client gave it
    std::chrono::milliseconds connected_for{}, silent_for{};
    std::uint64_t leases = 0, leased_blocks = 0, reserved_slots = 0, namespaces = 0;
    std::uint64_t unsent_bytes = 0;
  };
  struct TenantView {
    std::string name;
    bool isolated = false;
    std::uint32_t namespaces = 0;
    // kNoQuota: no bound. Over all parts of a tier.
    std::array<std::uint64_t, kTiers> used_bytes{}, quota_bytes{}, guaranteed_bytes{};
  };
  struct Scrub {
    struct Pass {
      std::uint64_t records = 0, bytes = 0, corrupt = 0, skipped = 0;
      std::chrono::milliseconds took{}, ended_ago{};  // so far, of one that runs
    };
    bool running = false;
    std::uint64_t passes = 0;
    std::optional<Pass> current, last;
    double progress = 0;  // of the pass that runs, by bytes
    // The one that runs, or the last; none of anything where there was none.
    Pass shown() const { return current ? *current : last.value_or(Pass{}); }
  };

  struct Events {
    bool configured = false, listening = false;
    std::uint64_t batches = 0, stored = 0, removed = 0;  // published: batches, and blocks in them
    std::uint64_t lost = 0;                              // changes for which there was no room
    std::uint64_t walks = 0, replayed = 0, snapshots = 0;
    std::uint64_t queued_bytes = 0, queue_bytes_max = 0, kept_bytes = 0;
    std::uint32_t subscriptions = 0;
  };

  struct RemoteView {
    bool configured = false, online = false;   // it can be read
    std::string url, state, why;               // without a password; the state as a person calls it
    std::uint64_t blocks = 0, only_there = 0;  // known to be there
    std::uint64_t hit_bytes = 0;
    std::uint64_t queued_blocks = 0, queued_bytes = 0;
    std::uint64_t lookups_under_way = 0;
    RemoteCounts counts;
    storage::RemoteStats store;
  };

  std::string version;
  std::array<std::byte, 16> boot_id{};
  pid_t pid = 0;
  std::chrono::milliseconds uptime{};
  bool stopping = false;
  std::array<TierView, kTiers> tiers;
  std::vector<GpuView> gpus;
  std::vector<DiskView> disks;

  // Who asks decides: what is watched over HTTP has namespaces and no tenants, a peer is shown the
  // tenants that it may use and the sessions that it may see.
  std::vector<NamespaceView> named;  // those with a label of their own, and `others` summed up
  NamespaceView others;
  std::vector<NamespaceView> largest;  // by bytes
  std::vector<TenantView> tenants;
  std::vector<SessionView> sessions;

  std::uint32_t namespaces = 0;
  std::uint32_t sessions_open = 0;
  std::uint64_t leases = 0, leased_blocks = 0, reserved_slots = 0, quarantined_slots = 0;
  std::uint64_t blocks = 0, blocks_max = 0, orphans = 0;
  std::uint64_t faults = 0, refused_commits = 0, double_releases = 0, frame_errors = 0;
  std::uint64_t turned_away = 0, denied = 0, refused_reports = 0;
  Lookups lookups;  // of all namespaces
  Histogram reuse_gap, turns_us;
  std::chrono::microseconds turn_longest{}, turn_longest_cpu{};  // of the last 30 to 60 seconds
  DiskTier::Counts disk_counts;
  LeftOut left_out;
  std::uint64_t write_queue_blocks = 0, write_queue_bytes = 0;
  double write_chance_min = 0;  // from which on expected_reuse writes a block
  ClientTold told;
  HintCounts hints;
  std::uint64_t prefetching_blocks = 0;  // waiting, or on their way
  Scrub scrub;
  Events events;
  RemoteView remote;
};

}  // namespace kvtier::daemon
