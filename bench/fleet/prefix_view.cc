#include "bench/fleet/prefix_view.h"

#include <algorithm>

namespace kvtier::bench {

void PrefixView::told(std::uint32_t host, const Key& key, bool there) {
  const auto number = static_cast<std::uint16_t>(host);
  if (there) {
    Hosts& hosts = hosts_[key];
    const auto at = std::ranges::lower_bound(hosts, number);
    if (at == hosts.end() || *at != number) hosts.insert(at, number);
    return;
  }
  const auto found = hosts_.find(key);
  if (found == hosts_.end()) return;
  Hosts& hosts = found->second;
  const auto at = std::ranges::lower_bound(hosts, number);
  if (at != hosts.end() && *at == number) hosts.erase(at);
  if (hosts.empty()) hosts_.erase(found);
}

void PrefixView::find(std::span<const Key> keys, std::span<std::uint32_t> lengths) const {
  std::ranges::fill(lengths, 0U);
  Hosts with, going_on;  // those that have all blocks so far
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto found = hosts_.find(keys[i]);
    if (found == hosts_.end()) return;
    if (i == 0) {
      with = found->second;
    } else {
      going_on.clear();
      std::ranges::set_intersection(with, found->second, std::back_inserter(going_on));
      with.swap(going_on);
    }
    if (with.empty()) return;
    for (const std::uint16_t host : with) lengths[host] = static_cast<std::uint32_t>(i + 1);
  }
}

}  // namespace kvtier::bench
