// Makes the daemon's description of itself (Snapshot), for each who asks as much as it may see.
//
// Looks at everything and changes nothing, but for which namespaces have a label. Costs some tens
// of microseconds of the control thread, a millisecond with thousands of namespaces (which a peer's
// description has not), and never looks at a block or a slot: all that is counted is counted as it
// changes. Owned by the control thread.
#pragma once

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/events/event_publisher.h"
#include "daemon/limits.h"
#include "daemon/server/scrubber.h"
#include "daemon/server/session_registry.h"
#include "daemon/server/status/namespace_labels.h"
#include "daemon/server/status/snapshot.h"
#include "daemon/server/tiers.h"
#include "daemon/server/turns.h"

namespace kvtier::daemon {

class Describer {
 public:
  // All outlive this.
  struct Of {
    const Tiers& tiers;
    const Scrubber& scrubber;
    const SessionRegistry& sessions;
    const Access& access;
    const Turns& turns;
    const std::unique_ptr<events::EventPublisher>& events;
    std::uint64_t disk_capacity_bytes = 0;  // of each directory, as configured
    std::string remote_url = {};
  };
  explicit Describer(Of of) : of_(std::move(of)) {}

  // For whoever watches: namespaces, and of the sessions those with the most leased blocks. No
  // tenants: whoever reaches the listener reads it.
  Snapshot for_watchers();
  // For a peer: the tenants that it may use, and its own user's sessions, or all if it is an
  // administrator, at most limits::kPeersListedMax.
  Snapshot for_peer(const Peer& peer) const;
  // All of them.
  std::vector<Snapshot::SessionView> sessions() const;
  Snapshot::Scrub scrub() const;
  Snapshot::Events events() const;

  // The daemon stops: said of it from now on.
  void set_stopping() noexcept { stopping_ = true; }

 private:
  using Clock = std::chrono::steady_clock;
  Snapshot common() const;
  Snapshot::TierView tier(Tier tier) const;
  Snapshot::RemoteView remote() const;
  Snapshot::GpuView gpu(std::uint32_t number) const;
  Snapshot::DiskView disk(std::size_t number) const;
  Snapshot::TenantView tenant(TenantId tenant) const;
  Snapshot::SessionView session(const Session& session, Clock::time_point now) const;
  std::uint64_t pinned_bytes_max(Tier tier) const;
  BlockCache& cache() const { return of_.tiers.cache(); }

  const Of of_;
  const Clock::time_point started_ = Clock::now();
  NamespaceLabels labels_{limits::kNamespaceLabelsMax};
  bool stopping_ = false;
};

}  // namespace kvtier::daemon
