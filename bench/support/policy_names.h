// Eviction policies by their names in the configuration.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "daemon/config/config.h"

namespace kvtier::bench {

inline const std::vector<std::pair<std::string, daemon::EvictionPolicy>> kPolicyNames{
    {"lru", daemon::EvictionPolicy::lru}, {"hit_density", daemon::EvictionPolicy::hit_density}};

inline const std::string& name(daemon::EvictionPolicy policy) {
  return kPolicyNames[policy == daemon::EvictionPolicy::lru ? 0 : 1].first;
}

}  // namespace kvtier::bench
