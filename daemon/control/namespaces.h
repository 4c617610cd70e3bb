// The namespaces the daemon knows, by a small number. They are never forgotten while it runs, so a number
// always means the same namespace; their count is bounded.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "kvtier/namespace.h"
#include "kvtier/record_layout.h"

namespace kvtier::daemon {

struct KnownNamespace {
  NamespaceId id;
  Namespace ns;
  std::vector<std::byte> encoded;
  RecordLayout layout;
  std::uint64_t blocks = 0;
  std::array<std::uint64_t, 3> bytes{};  // of records, per tier
};

class Namespaces {
 public:
  // The number of this namespace, a new one if it is not known yet. Errors: no_space, malformed, invalid.
  Result<std::uint16_t> open(std::span<const std::byte> encoded);
  std::optional<std::uint16_t> find(const NamespaceId& id) const;

  KnownNamespace& operator[](std::uint16_t ns) noexcept { return known_[ns]; }
  const KnownNamespace& operator[](std::uint16_t ns) const noexcept { return known_[ns]; }
  std::uint16_t size() const noexcept { return static_cast<std::uint16_t>(known_.size()); }

 private:
  std::vector<KnownNamespace> known_;
  std::map<NamespaceId, std::uint16_t> by_id_;
};

}  // namespace kvtier::daemon
