// What the process that kill_test.cc kills does, and what it says of it through standard output.
#pragma once

#include <cstdint>

#include "storage/store/record_store.h"

namespace kvtier::storage::testing {

struct KillReport {
  enum class What : std::uint32_t {
    write_started,
    write_done,
    erase_started,
    erased_for_good,
    flush_done
  };
  What what;
  std::uint32_t number;
};

// A round empties the segment of the round kSegments before, every second time for good, gives it
// to the other slot size every second time, fills eight slots and writes three of them again.
struct KillWorkload {
  static constexpr std::uint32_t kRounds = 10, kSegments = 3, kRecords = 8, kRewritten = 3;
  static constexpr std::uint32_t kNumbersPerRound = 100;

  static std::uint32_t number(std::uint32_t round, std::uint32_t i) {
    return round * kNumbersPerRound + i;
  }
  static unsigned kind_of(std::uint32_t number) {
    return number / kNumbersPerRound / kSegments % 2;
  }
  static DiskLocation at(std::uint32_t number) {
    return {number / kNumbersPerRound % kSegments, number % kNumbersPerRound % kRecords};
  }
  // The record that `number` is written over; none for the first in its slot.
  static bool is_rewrite(std::uint32_t number) { return number % kNumbersPerRound >= kRecords; }
};

}  // namespace kvtier::storage::testing
