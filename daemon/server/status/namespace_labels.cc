#include "daemon/server/status/namespace_labels.h"

#include <algorithm>
#include <numeric>

#include "core/base/units.h"

namespace kvtier::daemon {
namespace {

std::uint64_t bytes_of(const KnownNamespace& known) noexcept {
  return std::accumulate(known.bytes.begin(), known.bytes.end(), std::uint64_t{0});
}

void add(const KnownNamespace& known, Snapshot::NamespaceView& to) noexcept {
  to.blocks += known.blocks;
  to.lookups += known.lookups;
  for (std::size_t t = 0; t < kTiers; ++t) {
    to.bytes[t] += known.bytes[t];
    to.evictions[t] += known.evictions[t];
  }
}

}  // namespace

Snapshot::NamespaceView view_of(const KnownNamespace& known, const Tenants& tenants) {
  Snapshot::NamespaceView view;
  view.tenant = tenants[known.tenant].name;
  view.id = to_hex(known.id);
  view.model = known.ns.model;
  view.adapter = known.ns.adapter;
  if (!known.is_orphan()) view.format = name(known.ns.format);
  add(known, view);
  return view;
}

std::vector<std::uint16_t> largest_namespaces(const Namespaces& namespaces, std::uint16_t first,
                                              std::size_t count) {
  std::vector<std::uint16_t> numbers(namespaces.size() - first);
  std::iota(numbers.begin(), numbers.end(), first);
  count = std::min(count, numbers.size());
  const auto larger = [&](std::uint16_t a, std::uint16_t b) {
    return bytes_of(namespaces[a]) > bytes_of(namespaces[b]);
  };
  std::partial_sort(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(count),
                    numbers.end(), larger);
  numbers.resize(count);
  return numbers;
}

void NamespaceLabels::fill(const Namespaces& namespaces, const Tenants& tenants,
                           Snapshot& snapshot) {
  if (seen_ < namespaces.size() && named_.size() < labels_max_) {
    const auto fresh = largest_namespaces(namespaces, seen_, labels_max_ - named_.size());
    named_.insert(named_.end(), fresh.begin(), fresh.end());
  }
  seen_ = namespaces.size();
  std::vector<bool> is_named(namespaces.size());
  for (const std::uint16_t number : named_) {
    is_named[number] = true;
    if (namespaces[number].vacant) continue;
    snapshot.named.push_back(view_of(namespaces[number], tenants));
  }
  snapshot.others.id = snapshot.others.model = snapshot.others.tenant = "other";
  for (std::uint16_t number = 0; number < namespaces.size(); ++number) {
    if (!is_named[number]) add(namespaces[number], snapshot.others);
  }
}

}  // namespace kvtier::daemon
