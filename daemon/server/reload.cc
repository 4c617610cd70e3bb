#include "daemon/server/reload.h"

#include <spdlog/spdlog.h>

#include <map>
#include <string>

#include "daemon/config/config_values.h"
#include "daemon/config/host_memory.h"

namespace kvtier::daemon {

Reloaded Reload::operator()(const Config& fresh) {
  using Take = Result<void> (Reload::*)(const Config&);
  static const std::map<std::string, Take> kTakes{
      {"log_level", &Reload::take_log_level},
      {"lease_time_ms", &Reload::take_lease_time},
      {"shutdown_timeout_ms", &Reload::take_shutdown_timeout},
      {"host.capacity", &Reload::take_host_capacity},
      {"device.capacity", &Reload::take_device_capacity},
      {"disk.admission", &Reload::take_admission},
      {"disk.write_budget", &Reload::take_write_budget},
      {"disk.scrub_mib_per_s", &Reload::take_scrub_rate},
      {"remote.admission", &Reload::take_remote},
      {"remote.lookup_timeout_ms", &Reload::take_remote},
      {"remote.read_timeout_ms", &Reload::take_remote}};
  Reloaded result;
  const Tenants before = tenants_of(of_.config);
  for (const ConfigChange& change : changes_between(of_.config, fresh)) {
    const auto take = kTakes.find(change.key);
    const auto taken = take != kTakes.end()
                           ? (this->*take->second)(fresh)
                           : Result<void>(make_error(Errc::refused, "it needs a restart"));
    if (taken) {
      spdlog::info("reload: {} is {} now, was {}", change.key, change.to, change.from);
      result.applied.push_back(change.key);
    } else {
      spdlog::warn("reload: {} stays {}, not {}: {}", change.key, change.from, change.to,
                   taken.error().message);
      result.waiting.push_back(change.key);
    }
  }
  take_tenants(fresh, before, result);
  return result;
}

// Quotas and guarantees that changed, be it that they are shares of a capacity that did. What
// kvtierctl has set and the file has not changed stays.
void Reload::take_tenants(const Config& fresh, const Tenants& before, Reloaded& result) {
  // The default tenant is the first, whether it is named or not.
  const auto but_limits = [](const std::vector<Config::Tenant>& tenants) {
    Config config;
    config.tenants.emplace_back().name = kDefaultTenantName;
    for (const auto& tenant : tenants) {
      auto& put = tenant.name == kDefaultTenantName ? config.tenants.front()
                                                    : config.tenants.emplace_back();
      put = tenant;
      put.quota = put.guaranteed = {};
    }
    return tenants_to_toml(config);
  };
  if (but_limits(of_.config.tenants) != but_limits(fresh.tenants)) {
    spdlog::warn(
        "reload: the tenants are others, or have other salts or members: it needs a restart");
    result.waiting.push_back("tenant");
    return;
  }
  of_.config.tenants = fresh.tenants;
  const Tenants after = tenants_of(of_.config);
  std::vector<std::pair<TenantId, Tier>> changed;
  for (TenantId tenant = 0; tenant < after.size(); ++tenant) {
    for (const Tier tier : kAllTiers) {
      if (before.limits(tenant, tier) != after.limits(tenant, tier))
        changed.emplace_back(tenant, tier);
    }
  }
  // What is guaranteed to one may be what another gives up: all give up first.
  for (const auto& [tenant, tier] : changed)
    (void)of_.tiers.cache().set_limits(tenant, tier, {after.limits(tenant, tier).quota, 0});
  for (const auto& [tenant, tier] : changed) set_limits(tenant, tier, after, result);
}

void Reload::set_limits(TenantId tenant, Tier tier, const Tenants& after, Reloaded& result) {
  const std::string key = "tenant." + after[tenant].name + "." + name(tier);
  const TenantLimits limits = after.limits(tenant, tier);
  if (auto good = of_.tiers.cache().set_limits(tenant, tier, limits); !good) {
    spdlog::warn("reload: {}: nothing is guaranteed: {}", key, good.error().message);
    result.waiting.push_back(key);
    return;
  }
  spdlog::info("reload: {}: the quota is {} bytes now, {} guaranteed", key, limits.quota,
               limits.guaranteed);
  result.applied.push_back(key);
}

Result<void> Reload::take_log_level(const Config& fresh) {
  of_.config.log_level = fresh.log_level;
  spdlog::set_level(spdlog::level::from_str(fresh.log_level));
  return {};
}

// Sessions keep the time that they were told.
Result<void> Reload::take_lease_time(const Config& fresh) {
  of_.config.lease_time = fresh.lease_time;
  of_.sessions.set_lease_time(fresh.lease_time);
  return {};
}

Result<void> Reload::take_shutdown_timeout(const Config& fresh) {
  of_.config.shutdown_timeout = fresh.shutdown_timeout;
  return {};
}

Result<void> Reload::take_host_capacity(const Config& fresh) {
  Config::Memory host = of_.config.host;
  host.sizing = fresh.host.sizing;
  host.share_percent = fresh.host.share_percent;
  host.capacity_bytes = fresh.host.capacity_bytes;
  Config settled = fresh;
  settled.host = host;
  if (auto good = settle_host_capacity(settled, of_.tiers.cache().memory(Tier::host).taken_bytes());
      !good)
    return good;
  of_.config.host = settled.host;
  of_.tiers.set_host_cap(settled.host.capacity_bytes);
  of_.lending.make_way();
  return {};
}

Result<void> Reload::take_device_capacity(const Config& fresh) {
  const std::uint64_t bytes = fresh.device.capacity_bytes;
  if (of_.tiers.backing().gpus().empty() || bytes == 0) {
    return make_error(Errc::refused, "turning the tier on or off needs a restart");
  }
  if (auto good = of_.tiers.set_device_cap(bytes); !good) return good;
  of_.config.device.capacity_bytes = bytes;
  of_.lending.make_way();
  return {};
}

Result<void> Reload::take_admission(const Config& fresh) {
  of_.config.disk.admission = fresh.disk.admission;
  of_.tiers.cache().disk().set_admission(fresh.disk.admission);
  return {};
}

Result<void> Reload::take_write_budget(const Config& fresh) {
  of_.config.disk.write_budget = fresh.disk.write_budget;
  of_.tiers.cache().disk().set_write_budget(fresh.disk.write_budget);
  return {};
}

Result<void> Reload::take_scrub_rate(const Config& fresh) {
  of_.config.disk.scrub_mib_per_s = fresh.disk.scrub_mib_per_s;
  of_.scrubber.set_rate(std::uint64_t{fresh.disk.scrub_mib_per_s} << 20);
  return {};
}

// These alone: where the store is, and as whom it is asked, needs a restart.
Result<void> Reload::take_remote(const Config& fresh) {
  Config::Remote& remote = of_.config.remote;
  remote.admission = fresh.remote.admission;
  remote.lookup_timeout = fresh.remote.lookup_timeout;
  remote.read_timeout = fresh.remote.read_timeout;
  RemoteTier& tier = of_.tiers.cache().remote();
  tier.set_admission(remote.admission);
  tier.set_times(remote.lookup_timeout, remote.read_timeout);
  return {};
}

}  // namespace kvtier::daemon
