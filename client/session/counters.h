// What the client counts. Any thread adds; the session thread reports differences to the daemon.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "kvtier/client.h"

namespace kvtier::session {

struct Counters {
  using Counter = std::atomic<std::uint64_t>;

  Counter looked_up{0};
  std::array<Counter, kTiers> hits{};
  Counter misses{0};
  Counter faults{0};
  Counter proof_faults{0};  // of those, found by header or proof
  Counter leases_lost{0};
  Counter written{0};
  Counter dropped{0};
  Counter deadlines_missed{0};
  Counter connects{0};

  static void add(Counter& counter, std::uint64_t n = 1) noexcept {
    counter.fetch_add(n, std::memory_order_relaxed);
  }
  static std::uint64_t get(const Counter& counter) noexcept {
    return counter.load(std::memory_order_relaxed);
  }

  ClientStats stats() const noexcept {
    ClientStats s;
    s.blocks_looked_up = get(looked_up);
    for (std::size_t i = 0; i < kTiers; ++i) s.hits[i] = get(hits[i]);
    s.misses = get(misses);
    s.faults = get(faults);
    s.leases_lost = get(leases_lost);
    s.blocks_written = get(written);
    s.blocks_dropped = get(dropped);
    s.deadlines_missed = get(deadlines_missed);
    s.connects = get(connects);
    return s;
  }
};

}  // namespace kvtier::session
