#include "engine_adapter/reference/scheduler/pages/exact_pages.h"

#include <algorithm>

#include "engine_adapter/reference/scheduler/limits.h"

namespace kvtier::engine {
namespace {

// For all the answers that it may have at once.
std::uint32_t wanted(const LiveRequest& live) {
  std::uint32_t branches = live.width();
  if (live.beams()) {
    branches *= kBeamGenerations;
  } else if (live.forked) {
    branches = static_cast<std::uint32_t>(
        std::ranges::count(live.branches, false, [](const auto& branch) { return branch->ended; }));
  }
  return branches * kExactPerBranch;
}

}  // namespace

std::uint32_t ExactPages::promised() const {
  std::uint32_t promised = 0;
  for (const auto& [id, live] : requests_.all()) {
    if (live->has_pages()) promised += wanted(*live);
  }
  return promised;
}

bool ExactPages::provide(LiveRequest& live) {
  const std::uint32_t others = promised();
  const std::size_t needed = others + wanted(live);
  if (others == 0) {
    limit_ = std::numeric_limits<std::size_t>::max();  // memory may have been given back
  } else if (needed > std::size_t{running_max_} * kExactPerBranch || needed > limit_) {
    return false;
  }
  const auto provided = pool_.provide_exact(needed);
  if (provided) return true;
  limit_ = pool_.exact_made();
  if (others == 0) requests_.fail(live, provided.error());
  return false;
}

// Not at every request's end: on a GPU giving memory back takes long.
void ExactPages::trim() {
  const std::uint32_t keep = std::max(promised(), kExactKept);
  if (pool_.exact_made() > 2 * std::size_t{keep}) pool_.trim_exact(keep);
}

}  // namespace kvtier::engine
