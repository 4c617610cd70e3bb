#include "bench/fleet/shared_store.h"

#include <algorithm>

namespace kvtier::bench {

std::size_t SharedStore::find(std::span<const Key> keys) const {
  const auto missing = std::ranges::find_if_not(keys, [&](const Key& key) { return has(key); });
  return static_cast<std::size_t>(missing - keys.begin());
}

void SharedStore::use(std::span<const Key> keys) {
  for (std::size_t i = keys.size(); i-- > 0;) {
    const auto found = at_.find(keys[i]);
    if (found != at_.end()) {
      order_.splice(order_.end(), order_, found->second);
    } else {
      at_[keys[i]] = order_.insert(order_.end(), keys[i]);
    }
  }
  for (; at_.size() > blocks_max_; order_.pop_front()) at_.erase(order_.front());
}

}  // namespace kvtier::bench
