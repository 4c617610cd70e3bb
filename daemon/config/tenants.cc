#include "daemon/config/tenants.h"

#include <algorithm>
#include <span>

#include "core/base/check.h"
#include "core/record/digest.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

Tenants::Tenants(std::vector<Tenant> all) : all_(std::move(all)) {
  if (all_.empty()) all_.push_back({kDefaultTenantName, {}, false, {}});
  KVTIER_CHECK(all_.size() <= limits::kTenantsMax);
  for (TenantId tenant = 0; tenant < size(); ++tenant) {
    for (const std::string& salt : all_[tenant].salts) by_salt_.emplace(salt, tenant);
  }
}

TenantId Tenants::of_salt(const std::string& salt) const noexcept {
  const auto found = by_salt_.find(salt);
  return found == by_salt_.end() ? kDefaultTenant : found->second;
}

std::optional<TenantId> Tenants::find(std::string_view name) const noexcept {
  const auto found = std::ranges::find(all_, name, &Tenant::name);
  if (found == all_.end()) return std::nullopt;
  return static_cast<TenantId>(found - all_.begin());
}

std::uint64_t Tenants::owner(TenantId tenant) const noexcept {
  const std::string& name = all_[tenant].name;
  return all_[tenant].isolated ? xxh3_64(std::as_bytes(std::span(name))) : 0;
}

std::optional<Pool> Tenants::pool_of_owner(std::uint64_t wanted) const noexcept {
  if (wanted == 0) return Pool{0};
  for (TenantId tenant = 0; tenant < size(); ++tenant) {
    if (all_[tenant].isolated && owner(tenant) == wanted) return pool(tenant);
  }
  return std::nullopt;
}

void TenantUsage::subtract(TenantId tenant, std::uint64_t bytes) noexcept {
  KVTIER_CHECK(of(tenant) >= bytes);
  bytes_[tenant] -= bytes;
}

}  // namespace kvtier::daemon
