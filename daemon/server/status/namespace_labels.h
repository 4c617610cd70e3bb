// Which namespaces are shown by name: a label of their own in the metrics, a row on the page.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/server/status/snapshot.h"

namespace kvtier::daemon {

// The first so many that come have a label, the largest first where several come at once. One that
// has a label keeps it and none moves in later, so that no series of counters ever goes back. Owned
// by the control thread.
class NamespaceLabels {
 public:
  explicit NamespaceLabels(std::size_t labels_max) : labels_max_(labels_max) {}
  // Fills `named` and `others`.
  void fill(const Namespaces& namespaces, const Tenants& tenants, Snapshot& snapshot);

 private:
  std::size_t labels_max_;
  std::vector<std::uint16_t> named_;
  std::uint16_t seen_ = 0;  // namespaces looked at so far
};

Snapshot::NamespaceView view_of(const KnownNamespace& known, const Tenants& tenants);
// The numbers of the namespaces with the most bytes, at most `count`, from number `first` on.
std::vector<std::uint16_t> largest_namespaces(const Namespaces& namespaces, std::uint16_t first,
                                              std::size_t count);

}  // namespace kvtier::daemon
