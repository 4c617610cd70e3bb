#include "bench/fleet/router.h"

#include <algorithm>
#include <cmath>

namespace kvtier::bench {
namespace {

// A number below `n` for a uniform one of 64 bits, told by its high bits.
std::uint32_t scaled(std::uint64_t uniform, std::uint64_t n) noexcept {
  return static_cast<std::uint32_t>((uniform >> 32) * n >> 32);
}

// Scores closer than that are equal.
constexpr double kEqual = 1e-9;

}  // namespace

Router::Router(const FleetOptions& options, Routing routing)
    : options_(options),
      routing_(routing),
      random_(options.seed),
      loads_(options.hosts),
      lengths_(options.hosts) {}

std::uint32_t Router::pick(std::span<const Key> keys, double at_s) {
  switch (routing_) {
    case Routing::random:
      return any_below(options_.hosts);
    case Routing::round_robin:
      return turn_++ % options_.hosts;
    case Routing::session: {
      // The key of a block stands for all before it. What a cache samples by a key's bits is to
      // have nothing to do with the host that the key is on.
      constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15;
      const std::size_t last = std::min<std::size_t>(options_.session_blocks, keys.size()) - 1;
      return scaled(keys[last].tail() * kMix, options_.hosts);
    }
    case Routing::cache:
      return by_cache(keys, at_s);
  }
  return 0;
}

std::uint32_t Router::by_cache(std::span<const Key> keys, double at_s) {
  const double faded = std::exp((at_s_ - at_s) / options_.load_seconds);
  at_s_ = at_s;
  for (double& load : loads_) load *= faded;
  view_.find(keys, lengths_);
  const double least = *std::ranges::min_element(loads_);
  const auto score = [&](std::uint32_t host) {
    return lengths_[host] - options_.load_weight * (loads_[host] - least);
  };
  double most = score(0);
  for (std::uint32_t host = 1; host < options_.hosts; ++host) most = std::max(most, score(host));
  best_.clear();
  for (std::uint32_t host = 0; host < options_.hosts; ++host) {
    if (score(host) >= most - kEqual) best_.push_back(host);
  }
  return best_[any_below(best_.size())];
}

std::uint32_t Router::any_below(std::uint64_t n) noexcept {
  return scaled(random_(), n);
}

const char* name(Routing routing) noexcept {
  switch (routing) {
    case Routing::random:
      return "random";
    case Routing::round_robin:
      return "round_robin";
    case Routing::session:
      return "session";
    case Routing::cache:
      return "cache";
  }
  return "";
}

}  // namespace kvtier::bench
