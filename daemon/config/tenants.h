// Tenants: who shares the cache, and how much of it each may have. A namespace belongs to the
// tenant that lists its salt, or else to the default one. Plain data; owned by the control thread.
//
// Of each tier a tenant has a quota, the most that its slots may take, and a guarantee, the least
// that the evictions of others leave it. A tenant at its quota evicts its own blocks. One below it
// that needs room evicts the coldest block among its own and those of tenants that have more than
// their guarantee; while it has less than its own guarantee, of those others first. What nobody
// uses of a guarantee others may use meanwhile. (Slots are of one size: where a tenant has records
// of several, it gives up as many bytes as it takes, and the slot may be another's.)
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvtier/tier.h"

namespace kvtier::daemon {

using TenantId = std::uint16_t;
inline constexpr TenantId kDefaultTenant = 0;
inline constexpr const char* kDefaultTenantName = "default";
inline constexpr std::uint64_t kNoQuota = ~std::uint64_t{0};

// Bytes of slots: sealed, reserved, quarantined, or being filled.
struct TenantLimits {
  std::uint64_t quota = kNoQuota;
  std::uint64_t guaranteed = 0;
  friend bool operator==(const TenantLimits&, const TenantLimits&) = default;
};

struct Tenant {
  std::string name;
  std::vector<std::string> salts;
  // Its slots are in extents of its own, which no other tenant's sessions are told of.
  bool isolated = false;
  std::array<TenantLimits, kTiers> limits{};  // by tier; of the device tier, on each GPU
};

// Extents of which tenants share memory: 0 for all that are not isolated.
using Pool = std::uint32_t;

class Tenants {
 public:
  // The first of `all` is the default tenant; none: a default one without limits.
  explicit Tenants(std::vector<Tenant> all = {});

  TenantId of_salt(const std::string& salt) const noexcept;
  std::optional<TenantId> find(std::string_view name) const noexcept;
  TenantId size() const noexcept { return static_cast<TenantId>(all_.size()); }
  const Tenant& operator[](TenantId tenant) const noexcept { return all_[tenant]; }
  const TenantLimits& limits(TenantId tenant, Tier tier) const noexcept {
    return all_[tenant].limits[index_of(tier)];
  }
  void set_limits(TenantId tenant, Tier tier, TenantLimits limits) noexcept {
    all_[tenant].limits[index_of(tier)] = limits;
  }
  Pool pool(TenantId tenant) const noexcept { return all_[tenant].isolated ? tenant + 1U : 0; }

  // How an extent's slot table names the pool: XXH3-64 of an isolated tenant's name; 0: shared.
  std::uint64_t owner(TenantId tenant) const noexcept;
  // None where no isolated tenant has that name (any more).
  std::optional<Pool> pool_of_owner(std::uint64_t owner) const noexcept;

  // Whether `needy` may evict `bytes` of a tenant that uses `used` bytes of the tier.
  bool may_take(TenantId needy, TenantId from, Tier tier, std::uint64_t used,
                std::uint64_t bytes) const noexcept {
    return needy == from || used >= bytes + limits(from, tier).guaranteed;
  }

 private:
  std::vector<Tenant> all_;
  std::map<std::string, TenantId> by_salt_;
};

// How many bytes of one tier each tenant's slots take.
class TenantUsage {
 public:
  std::uint64_t of(TenantId tenant) const noexcept {
    return tenant < bytes_.size() ? bytes_[tenant] : 0;
  }
  void add(TenantId tenant, std::uint64_t bytes) {
    if (tenant >= bytes_.size()) bytes_.resize(tenant + 1U);
    bytes_[tenant] += bytes;
  }
  void subtract(TenantId tenant, std::uint64_t bytes) noexcept;

 private:
  std::vector<std::uint64_t> bytes_;
};

}  // namespace kvtier::daemon
