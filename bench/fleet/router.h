// Which host the next request goes to (see Routing).
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "bench/fleet/fleet.h"
#include "bench/fleet/prefix_view.h"

namespace kvtier::bench {

class Router {
 public:
  // `options` outlives this.
  Router(const FleetOptions& options, Routing routing);

  // The host for a prompt of these blocks, at least one; times do not go back.
  std::uint32_t pick(std::span<const Key> keys, double at_s);
  // It had to compute so many of them.
  void computed(std::uint32_t host, std::uint64_t blocks) {
    loads_[host] += static_cast<double>(blocks);
  }
  // Whether it is to be told of blocks, and where.
  bool follows_blocks() const noexcept { return routing_ == Routing::cache; }
  PrefixView& view() noexcept { return view_; }

 private:
  std::uint32_t by_cache(std::span<const Key> keys, double at_s);
  std::uint32_t any_below(std::uint64_t n) noexcept;

  const FleetOptions& options_;
  Routing routing_;
  std::mt19937_64 random_;
  std::uint32_t turn_ = 0;
  PrefixView view_;
  double at_s_ = 0;
  std::vector<double> loads_;
  std::vector<std::uint32_t> lengths_;
  std::vector<std::uint32_t> best_;
};

}  // namespace kvtier::bench
