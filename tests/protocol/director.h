// A run: one daemon after another, each with the hostile and with those who are not, and what must
// hold of it all.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace kvtier::protocol {

struct RunOptions {
  std::string daemon;
  std::uint64_t seed = 1;
  std::uint64_t operations = 100'000;  // of the whole run
  std::chrono::seconds time{600};      // of the whole run, at most
  std::uint32_t actors = 8;
  int nice = 10;            // of the hostile, so that the daemon is what is measured
  std::string only;         // the one setting to run; empty: all
  double turn_ms_max = 0;   // 0: not judged
  double slowdown_max = 0;  // of the honest client's p99; 0: not judged
};

// Prints what was done and found. Whether all of it is as it must be.
bool run(const RunOptions& options);

}  // namespace kvtier::protocol
