// The store that all hosts of a fleet share: keys alone. Of more than it has room for, those that
// were asked for or written longest ago go, as in a Redis with allkeys-lru, and the last of a
// prefix before the first.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>

#include "kvtier/key.h"

namespace kvtier::bench {

class SharedStore {
 public:
  explicit SharedStore(std::uint64_t blocks_max) : blocks_max_(blocks_max) {}

  // How many leading ones are there; it changes nothing.
  std::size_t find(std::span<const Key> keys) const;
  bool has(const Key& key) const { return at_.contains(key); }
  // Consecutive blocks of a prompt are asked for, or written where they are not there.
  void use(std::span<const Key> keys);
  std::uint64_t blocks() const noexcept { return at_.size(); }

 private:
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept { return key.tail(); }
  };
  std::uint64_t blocks_max_;
  std::list<Key> order_;  // oldest first
  std::unordered_map<Key, std::list<Key>::iterator, Hash> at_;
};

}  // namespace kvtier::bench
