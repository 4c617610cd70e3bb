// What sessions need of the daemon around them, and what they count together. One for all of them,
// owned by the SessionRegistry, on the control thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/cuda_driver.h"
#include "core/wire/frame.h"
#include "daemon/cache/block_cache.h"
#include "daemon/config/config.h"
#include "daemon/limits.h"
#include "daemon/peers/access.h"
#include "daemon/peers/log_budget.h"
#include "daemon/peers/users.h"
#include "daemon/restart/kept_state.h"
#include "daemon/session/admin/admin_jobs.h"
#include "daemon/session/client_told.h"
#include "daemon/session/closings.h"
#include "daemon/session/farewells.h"
#include "daemon/session/lending.h"

namespace kvtier::daemon {

// What all clients are told alike.
struct Welcomed {
  std::array<std::byte, 16> boot_id{};
  Lineage lineage{};
  std::chrono::milliseconds lease_time{};
  std::vector<GpuUuid> gpus;                     // of the device tier
  std::uint32_t device_without_gpu = kNoDevice;  // what a client that names no GPU has of that tier
  bool device_for_readers = false;  // whether that tier's memory may go to read-only sessions
};

// What sessions ask of the rest of the daemon.
struct SessionPorts {
  // As much as `peer` may see.
  std::function<void(const Peer& peer, wire::Status::Builder)> fill_status;
  std::function<void(wire::Message::Builder)> fill_sessions;
  // Starts a scrub if asked to, and reports.
  std::function<void(bool start, wire::ScrubReport::Builder)> scrub;
  // What a person calls the part of the tier that this place is in.
  std::function<std::string(Tier, std::uint32_t device)> name_of_part;
  // Ends every other session of this client of the process.
  std::function<void(SessionId but, ProcessId, std::uint64_t client)> end_earlier;
};

struct SessionCounts {
  std::uint64_t frame_errors = 0;
  std::uint64_t denied = 0;           // requests without the right to them
  std::uint64_t refused_reports = 0;  // of bad keys
  ClientTold told{};
};

struct SessionContext {
  BlockCache& cache;
  DirectoryWriter& directory;
  Lending& lending;
  AdminJobs& admin;
  const Access& access;
  const Config::Limits& limits;
  Users& users;
  Closings& closings;
  Farewells& farewells;
  Welcomed welcomed;
  SessionPorts ports;
  SessionCounts counts{};
  LogBudget log_budget{limits::kPeerLinesPerSecond};
};

}  // namespace kvtier::daemon
