// What kvtierctl asks of the tenants' quotas. Owned by the control thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kvtier/result.h"
#include "kvtier/tier.h"

namespace kvtier::daemon {

struct TenantQuota {
  std::string tenant;
  std::array<std::uint64_t, kTiers> used_bytes{}, quota_bytes{}, guaranteed_bytes{};  // 0: none
};

class Quotas {
 public:
  virtual ~Quotas() = default;
  virtual std::vector<TenantQuota> list() const = 0;
  // Errors: not_found (no such tenant), invalid (more than the tier, less than is guaranteed).
  virtual Result<void> set(const std::string& tenant, Tier tier, std::uint64_t bytes) = 0;
};

}  // namespace kvtier::daemon
