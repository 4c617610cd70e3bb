// A BlockDevice around a real one that is slower than it, for tests and benches.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "storage/device/block_device.h"

namespace kvtier::storage {

struct Throttle {
  std::uint64_t bytes_per_s = 0;         // of reads and writes together; at least 1
  std::chrono::microseconds latency{0};  // of each transfer, on top
  using Clock = std::chrono::steady_clock;
  Clock::time_point (*now)() = &Clock::now;
};

// Each transfer is done when the inner device has done it and its turn on a link of that rate has
// passed.
std::unique_ptr<BlockDevice> make_throttled_device(std::unique_ptr<BlockDevice> inner,
                                                   const Throttle& throttle);

// KVTIER_DISK_BYTES_PER_S, and KVTIER_DISK_LATENCY_US beside it, in the environment: a test aid.
// None where the first is unset or empty. Errors: invalid, naming the variable.
Result<std::optional<Throttle>> throttle_from_environment();

}  // namespace kvtier::storage
