// What the client counts. Any thread adds; the session thread reports differences to the daemon.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/base/log2_buckets.h"
#include "kvtier/client.h"
#include "kvtier/drop_reason.h"

namespace kvtier::session {

// How long something took, as a histogram (core/base/log2_buckets.h), and how much it moved. Any
// thread adds.
struct Timing {
  std::array<std::atomic<std::uint64_t>, kLog2Buckets + 1> buckets{};
  std::atomic<std::uint64_t> sum_us{0};
  std::atomic<std::uint64_t> bytes{0};

  void add(std::chrono::steady_clock::duration took, std::uint64_t moved) noexcept {
    const auto us = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(took).count());
    buckets[log2_bucket(us)].fetch_add(1, std::memory_order_relaxed);
    sum_us.fetch_add(us, std::memory_order_relaxed);
    bytes.fetch_add(moved, std::memory_order_relaxed);
  }
};

struct Counters {
  using Counter = std::atomic<std::uint64_t>;

  Counter looked_up{0};
  std::array<Counter, kTiersWithRemote> hits{};
  Counter misses{0};
  Counter faults{0};
  Counter header_faults{0};  // of those, found by the header
  Counter checksum_faults{0};
  Counter proof_faults{0};  // and by the proof
  Counter leases_lost{0};
  Counter written{0};
  std::array<Counter, kDropReasons> dropped{};
  Counter deadlines_missed{0};
  Counter connects{0};
  std::array<Timing, kTiersWithRemote> loads;  // by the slowest tier that a block came from
  Timing write_backs;

  void drop(DropReason why, std::uint64_t blocks = 1) noexcept {
    add(dropped[static_cast<std::size_t>(why)], blocks);
  }

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
    for (std::size_t i = 0; i < kDropReasons; ++i) s.dropped.blocks[i] = get(dropped[i]);
    s.blocks_dropped = s.dropped.total();
    s.deadlines_missed = get(deadlines_missed);
    s.connects = get(connects);
    return s;
  }
};

}  // namespace kvtier::session
