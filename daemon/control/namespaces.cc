#include "daemon/control/namespaces.h"

#include "client/record/digest.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

Result<std::uint16_t> Namespaces::open(std::span<const std::byte> encoded) {
  const NamespaceId id{xxh3_128(encoded)};
  if (const auto known = find(id)) {
    // The digest is fast, not secure: what was hashed decides.
    const auto& bytes = known_[*known].encoded;
    if (std::equal(bytes.begin(), bytes.end(), encoded.begin(), encoded.end())) return *known;
    return make_error(Errc::refused, "another namespace with the same id is open: change the model "
                                     "name or the tenant salt");
  }
  auto ns = decode_namespace(encoded);
  if (!ns) return ns.error();
  if (known_.size() >= limits::kNamespacesMax) {
    return make_error(Errc::no_space, "too many namespaces (" +
                                          std::to_string(limits::kNamespacesMax) +
                                          "): restart kvtierd to forget unused ones");
  }
  const auto number = static_cast<std::uint16_t>(known_.size());
  const RecordLayout layout = RecordLayout::of(*ns);
  known_.push_back({id, std::move(*ns), {encoded.begin(), encoded.end()}, layout, 0, {}});
  by_id_.emplace(id, number);
  return number;
}

std::optional<std::uint16_t> Namespaces::find(const NamespaceId& id) const {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return std::nullopt;
  return found->second;
}

}  // namespace kvtier::daemon
