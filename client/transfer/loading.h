// What is behind a Load, whichever processor copies.
#pragma once

#include <cstdint>
#include <span>
#include <thread>

#include "kvtier/client.h"

namespace kvtier::transfer {

class Loading {
 public:
  virtual ~Loading() = default;
  // As the public functions of the same names.
  virtual std::uint32_t blocks() const noexcept = 0;
  virtual std::span<const BlockFault> faults() const noexcept = 0;
  virtual std::span<std::byte* const> records() const noexcept = 0;
  virtual void wait_layer(std::uint32_t layer, StreamView stream) = 0;
  virtual bool ended() noexcept = 0;
  // Waits until ended(), at most until `deadline`.
  virtual bool wait(Deadline deadline) noexcept {
    while (!ended()) {
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(kPoll);
    }
    return true;
  }
  virtual std::uint32_t finish() = 0;

 private:
  static constexpr std::chrono::microseconds kPoll{50};
};

}  // namespace kvtier::transfer
