// What kvtierctl asks the daemon. Each returns the answer as JSON.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "client/ctl/json.h"
#include "kvtier/key.h"
#include "kvtier/tier.h"

namespace kvtier::ctl {

struct Target {
  std::string socket = "/run/kvtier/kvtierd.sock";
  std::chrono::milliseconds timeout{5000};
};

struct ListOptions {
  std::uint32_t blocks = 0;
  std::optional<NamespaceId> ns;  // none: all
};

struct DropOptions {
  std::optional<NamespaceId> ns;  // none: all
  TierSet tiers;                  // empty: all
};

// Errors: as SyncSession.
Result<Json> fetch_status(const Target& target);
Result<Json> fetch_list(const Target& target, const ListOptions& options);
Result<Json> drop(const Target& target, const DropOptions& options);

struct ScrubOptions {
  bool start = true;
  bool wait = false;  // until no pass is under way, however long
};
Result<Json> scrub(const Target& target, const ScrubOptions& options);

}  // namespace kvtier::ctl
