// What a router knows of the hosts' caches: which blocks each has told of as stored, in whatever
// tier, and not yet as removed.
#pragma once

#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvtier/key.h"

namespace kvtier::bench {

class PrefixView {
 public:
  void told(std::uint32_t host, const Key& key, bool there);
  // How many leading blocks each host has, by its number; `lengths` has a place for each.
  void find(std::span<const Key> keys, std::span<std::uint32_t> lengths) const;

 private:
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept { return key.tail(); }
  };
  using Hosts = boost::container::small_vector<std::uint16_t, 4>;  // in order
  std::unordered_map<Key, Hosts, Hash> hosts_;
};

}  // namespace kvtier::bench
