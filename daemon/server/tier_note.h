// What is said of a tier that cannot be used.
#pragma once

#include <string>

#include "daemon/cache/tiers/disk_tier.h"

namespace kvtier::daemon {

inline constexpr const char* kNoDeviceTier = "not configured: set [device] capacity";

// Of the disk tier as a whole: empty where all is well.
std::string note_of(const DiskTier& disk);
bool any_online(const DiskTier& disk);

}  // namespace kvtier::daemon
