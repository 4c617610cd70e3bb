// What of the configuration can change while the daemon runs.
#include <spdlog/spdlog.h>

#include <map>
#include <string>

#include "daemon/config/config_values.h"
#include "daemon/config/host_memory.h"
#include "daemon/server/server.h"

namespace kvtier::daemon {

Server::Reloaded Server::reload(const Config& fresh) {
  using Take = Result<void> (Server::*)(const Config&);
  static const std::map<std::string, Take> kTakes{
      {"log_level", &Server::take_log_level},
      {"lease_time_ms", &Server::take_lease_time},
      {"shutdown_timeout_ms", &Server::take_shutdown_timeout},
      {"host.capacity", &Server::take_host_capacity},
      {"device.capacity", &Server::take_device_capacity},
      {"disk.admission", &Server::take_admission},
      {"disk.scrub_mib_per_s", &Server::take_scrub_rate}};
  const Turns::Scope turn(turns_);
  Reloaded result;
  const Tenants before = tenants_of(config_);
  for (const ConfigChange& change : changes_between(config_, fresh)) {
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
void Server::take_tenants(const Config& fresh, const Tenants& before, Reloaded& result) {
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
  if (but_limits(config_.tenants) != but_limits(fresh.tenants)) {
    spdlog::warn(
        "reload: the tenants are others, or have other salts or members: it needs a restart");
    result.waiting.push_back("tenant");
    return;
  }
  config_.tenants = fresh.tenants;
  const Tenants after = tenants_of(config_);
  std::vector<std::pair<TenantId, Tier>> changed;
  for (TenantId tenant = 0; tenant < after.size(); ++tenant) {
    for (const Tier tier : kAllTiers) {
      if (before.limits(tenant, tier) != after.limits(tenant, tier))
        changed.emplace_back(tenant, tier);
    }
  }
  // What is guaranteed to one may be what another gives up: all give up first.
  for (const auto& [tenant, tier] : changed)
    (void)cache_->set_limits(tenant, tier, {after.limits(tenant, tier).quota, 0});
  for (const auto& [tenant, tier] : changed) {
    const std::string key = "tenant." + after[tenant].name + "." + name(tier);
    const TenantLimits limits = after.limits(tenant, tier);
    if (auto good = cache_->set_limits(tenant, tier, limits); !good) {
      spdlog::warn("reload: {}: nothing is guaranteed: {}", key, good.error().message);
      result.waiting.push_back(key);
      continue;
    }
    spdlog::info("reload: {}: the quota is {} bytes now, {} guaranteed", key, limits.quota,
                 limits.guaranteed);
    result.applied.push_back(key);
  }
}

Result<void> Server::take_log_level(const Config& fresh) {
  config_.log_level = fresh.log_level;
  spdlog::set_level(spdlog::level::from_str(fresh.log_level));
  return {};
}

// Sessions keep the time that they were told.
Result<void> Server::take_lease_time(const Config& fresh) {
  config_.lease_time = fresh.lease_time;
  context_->lease_time = fresh.lease_time;
  return {};
}

Result<void> Server::take_shutdown_timeout(const Config& fresh) {
  config_.shutdown_timeout = fresh.shutdown_timeout;
  return {};
}

Result<void> Server::take_host_capacity(const Config& fresh) {
  Config::Memory host = config_.host;
  host.sizing = fresh.host.sizing;
  host.share_percent = fresh.host.share_percent;
  host.capacity_bytes = fresh.host.capacity_bytes;
  MemoryTier& tier = cache_->memory(Tier::host);
  Config settled = fresh;
  settled.host = host;
  if (auto good = settle_host_capacity(settled, tier.taken_bytes()); !good) return good;
  host = config_.host = settled.host;
  tier.set_cap(host.capacity_bytes);
  lending_->make_way();
  cache_->disk().set_write_queue_bytes_max(write_queue_bytes_max());
  return {};
}

Result<void> Server::take_device_capacity(const Config& fresh) {
  const std::uint64_t bytes = fresh.device.capacity_bytes;
  if (gpus_.empty() || bytes == 0) {
    return make_error(Errc::refused, "turning the tier on or off needs a restart");
  }
  for (const Gpu& gpu : gpus_) {
    if (auto good = fits_gpu(bytes, gpu); !good) return good.error();
  }
  config_.device.capacity_bytes = bytes;
  for (std::uint32_t device = 0; device < cache_->devices(); ++device)
    cache_->memory(Tier::device, device).set_cap(bytes);
  lending_->make_way();
  return {};
}

Result<void> Server::take_admission(const Config& fresh) {
  config_.disk.admission = fresh.disk.admission;
  cache_->disk().set_admission(fresh.disk.admission);
  return {};
}

Result<void> Server::take_scrub_rate(const Config& fresh) {
  config_.disk.scrub_mib_per_s = fresh.disk.scrub_mib_per_s;
  scrubber_->set_rate(std::uint64_t{fresh.disk.scrub_mib_per_s} << 20);
  return {};
}

}  // namespace kvtier::daemon
