// How the cached part of a prompt comes to the engine: loaded, computed, or both at once.
#pragma once

#include <cstdint>

namespace kvtier::engine {

enum class LoadMode : std::uint8_t {
  none,     // nothing of it is cached beyond what the engine has
  load,     // all of it
  compute,  // although it is cached
  both,     // computed from the front, loaded from the back, until they meet
};
const char* name(LoadMode mode) noexcept;

enum class LoadReason : std::uint8_t {
  nothing_cached,
  load_is_faster,
  compute_is_faster,
  both_is_faster,
  tier_not_measured,     // both where the tier is the disk, which finds out; load elsewhere
  compute_not_measured,  // likewise
  forced,                // by SchedulerOptions::load_policy
  awaited,               // another engine is computing it (Request::awaited_tokens)
};
const char* name(LoadReason reason) noexcept;

struct LoadPlan {
  LoadMode mode = LoadMode::none;
  LoadReason reason = LoadReason::nothing_cached;
  // What the model expected when it decided, in seconds; 0: not known.
  double load_s = 0;
  double compute_s = 0;
  double both_s = 0;
};

}  // namespace kvtier::engine
