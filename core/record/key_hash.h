// For containers in memory, of keys that nobody can choose at will: they are hashes themselves.
#pragma once

#include <cstddef>

#include "kvtier/key.h"

namespace kvtier {

struct KeyHash {
  std::size_t operator()(const Key& key) const noexcept { return key.tail(); }
};

}  // namespace kvtier
