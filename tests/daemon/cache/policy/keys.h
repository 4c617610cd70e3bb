// Keys made of numbers.
#pragma once

#include <array>
#include <cstring>

#include "core/record/digest.h"
#include "kvtier/key.h"

namespace kvtier::daemon::testing {

inline Key key_of(std::uint64_t number) {
  std::array<std::byte, 8> bytes{};
  std::memcpy(bytes.data(), &number, sizeof number);
  return {xxh3_128(bytes)};
}

}  // namespace kvtier::daemon::testing
