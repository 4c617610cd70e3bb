#include "daemon/cache/cached_namespaces.h"

#include "core/record/digest.h"

namespace kvtier::daemon {

namespace {

constexpr std::uint32_t kForgottenMax = 1U << 16;  // in one turn

// That blocks are known to be in the remote tier keeps no namespace where another has no room.
void forget_what_is_only_remote(Catalogue& catalogue) {
  for (std::uint32_t left = kForgottenMax; left > 0; --left) {
    const BlockId oldest = catalogue.oldest_only_remote();
    if (oldest == kNoBlock) return;
    catalogue.unset_remote(oldest);
  }
}

}  // namespace

Result<std::uint16_t> CachedNamespaces::open(std::span<const std::byte> encoded, UserId owner) {
  forget_misfits(encoded);
  forget_others_orphans(encoded);
  const auto known = catalogue_.namespaces().find(NamespaceId{xxh3_128(encoded)});
  const TenantId before = known ? catalogue_.namespaces()[*known].tenant : kDefaultTenant;
  auto ns = catalogue_.open_namespace(encoded, owner);
  if (!ns && ns.error().code == Errc::no_space) {
    forget_what_is_only_remote(catalogue_);
    forget_unused();
    ns = catalogue_.open_namespace(encoded, owner);
  }
  if (ns && known) {
    const KnownNamespace& of = catalogue_.namespaces()[*ns];
    disk_.move_usage(before, of.tenant, of.bytes[index_of(Tier::disk)]);
  }
  if (ns && catalogue_.namespaces()[*ns].blocks != 0) placements_.remember(*ns);
  if (ns) host_.expect(catalogue_.namespaces()[*ns].layout.record_bytes);
  return ns;
}

bool CachedNamespaces::knows(std::span<const std::byte> encoded) const {
  const auto known = catalogue_.namespaces().find(NamespaceId{xxh3_128(encoded)});
  return known && !catalogue_.namespaces()[*known].closed;
}

void CachedNamespaces::forget_unused() {
  // What a disk that comes late says of namespaces comes before its blocks.
  if (!disk_.unknown_directory().empty()) return;
  for (const NamespaceId& id : catalogue_.namespaces().forget_unused()) disk_.forget_namespace(id);
}

std::vector<std::uint16_t> CachedNamespaces::close(const NamespaceFilter& filter) {
  std::vector<std::uint16_t> numbers;
  Namespaces& known = catalogue_.namespaces();
  for (std::uint16_t ns = 0; ns < known.size(); ++ns) {
    if (known[ns].closed || !filter.matches(known[ns])) continue;
    known.close(ns);
    numbers.push_back(ns);
  }
  return numbers;
}

// Orphans whose size is not that of the records of the namespace they claim to be of.
void CachedNamespaces::forget_misfits(std::span<const std::byte> encoded) {
  const auto known = catalogue_.namespaces().find(NamespaceId{xxh3_128(encoded)});
  if (!known || !catalogue_.namespaces()[*known].is_orphan()) return;
  const auto ns = decode_namespace(encoded);
  if (!ns) return;
  const auto& orphan = catalogue_.namespaces()[*known];
  if (RecordLayout::of(*ns).record_bytes == orphan.layout.record_bytes) return;
  counts_.faults += orphan.blocks;
  removal_.drop(*known, TierSet{}.with(Tier::device).with(Tier::host).with(Tier::disk),
                Removal::forgotten);
}

// Orphans in memory count for the default tenant, and lie in its extents and eviction orders: those
// that turn out to be another's go. Those on disk move to its orders.
void CachedNamespaces::forget_others_orphans(std::span<const std::byte> encoded) {
  if (catalogue_.tenants().size() == 1) return;
  const auto known = catalogue_.namespaces().find(NamespaceId{xxh3_128(encoded)});
  if (!known || !catalogue_.namespaces()[*known].is_orphan()) return;
  const auto& bytes = catalogue_.namespaces()[*known].bytes;
  if (bytes[index_of(Tier::device)] + bytes[index_of(Tier::host)] == 0) return;
  const auto ns = decode_namespace(encoded);
  if (!ns || catalogue_.tenants().of_salt(ns->tenant) == kDefaultTenant) return;
  removal_.drop(*known, TierSet{}.with(Tier::device).with(Tier::host), Removal::forgotten);
}

}  // namespace kvtier::daemon
