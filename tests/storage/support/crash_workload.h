// What the killed writer of crash_test.cc does, and what it says.
#pragma once

#include <cstdint>

#include "storage/store/record_store.h"

namespace kvtier::storage::testing {

// Through standard output: that it starts to write the record, or that the write is done.
struct Report {
  bool done = false;
  std::uint32_t number = 0;
};

struct Workload {
  std::uint32_t slots;  // record n goes to slot n % slots, replacing what was there
  DiskLocation at(std::uint32_t number) const {
    return {number % slots / 100, number % slots % 100};
  }
};

}  // namespace kvtier::storage::testing
