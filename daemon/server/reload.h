// What of the configuration can change while the daemon runs.
//
// Owned by the control thread. Each key of a fresh configuration that differs from what is in
// effect is taken over, or stays as it was and is said to wait for a restart: the configuration in
// effect is always what the daemon does. What kvtierctl has set and the file has not changed stays.
#pragma once

#include <string>
#include <vector>

#include "daemon/server/scrubber.h"
#include "daemon/server/session_registry.h"
#include "daemon/server/tiers.h"

namespace kvtier::daemon {

struct Reloaded {
  std::vector<std::string> applied, waiting;  // keys: section.name
};

class Reload {
 public:
  // All outlive this. `config`: what is in effect.
  struct Of {
    Config& config;
    Tiers& tiers;
    Lending& lending;
    Scrubber& scrubber;
    SessionRegistry& sessions;
  };
  explicit Reload(Of of) : of_(of) {}

  // Says in the log, key by key, what changed and what waits.
  Reloaded operator()(const Config& fresh);

 private:
  Result<void> take_log_level(const Config& fresh);
  Result<void> take_lease_time(const Config& fresh);
  Result<void> take_shutdown_timeout(const Config& fresh);
  Result<void> take_host_capacity(const Config& fresh);
  Result<void> take_device_capacity(const Config& fresh);
  Result<void> take_admission(const Config& fresh);
  Result<void> take_write_budget(const Config& fresh);
  Result<void> take_scrub_rate(const Config& fresh);
  Result<void> take_remote(const Config& fresh);
  void take_tenants(const Config& fresh, const Tenants& before, Reloaded& result);
  void set_limits(TenantId tenant, Tier tier, const Tenants& after, Reloaded& result);

  const Of of_;
};

}  // namespace kvtier::daemon
