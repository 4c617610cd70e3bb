// The namespaces the daemon knows, by a small number. Their count is bounded: in all, and for each
// tenant and user. One without a block that no session has open is forgotten.
//
// A number means the same namespace for as long as a session has it open or a block of it is there.
// One that was closed (its model's weights were updated) takes nothing any more; whoever opens it
// anew gets another number, so that what the one held can never be served as the other's.
//
// A namespace may be known by its id alone: records of it were found on disk, but not what it is
// (an index rebuilt from the segments has no encodings). Its blocks are orphans until a client
// opens it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "daemon/cache/catalogue/user_id.h"
#include "daemon/config/tenants.h"
#include "daemon/telemetry.h"
#include "kvtier/namespace.h"
#include "kvtier/record_layout.h"

namespace kvtier::daemon {

struct KnownNamespace {
  NamespaceId id;
  Namespace ns;
  std::vector<std::byte> encoded;  // empty: known by its id alone
  RecordLayout layout;             // then record_bytes only
  std::uint64_t blocks = 0;
  std::array<std::uint64_t, 3> bytes{};  // of records, per tier
  bool remembered = false;               // by every store, since this daemon started
  bool vacant = false;                   // no namespace: the number is nobody's
  UserId owner = kNoUser;                // who made it
  TenantId tenant = kDefaultTenant;      // the default one where the salt is not known
  Lookups lookups;
  std::array<std::uint64_t, kTiers> evictions{};
  bool closed = false;            // invalidated
  std::uint32_t opened = 0;       // by sessions that have not ended
  std::uint64_t incarnation = 0;  // differs whenever the number is given to another namespace
  bool is_orphan() const noexcept { return encoded.empty() && !vacant; }
  bool unused() const noexcept { return blocks == 0 && opened == 0; }
};

class Namespaces {
 public:
  // `tenants` outlives this.
  explicit Namespaces(const Tenants& tenants) : tenants_(&tenants), of_tenant_(tenants.size()) {}

  // The number of this namespace, a new one if it is not known yet: then `owner` made it. One known
  // by its id alone is adopted; if its records have another size than they should, it must have no
  // blocks. Errors: no_space, malformed, invalid, refused.
  Result<std::uint16_t> open(std::span<const std::byte> encoded, UserId owner = kNoUser);
  // Forgets those without a block that no session has open; their numbers are nobody's then.
  // Returns the ids of those whose encoding somebody may have been asked to remember.
  std::vector<NamespaceId> forget_unused();
  // The number of a namespace that is known by the size of its records. Errors: no_space.
  Result<std::uint16_t> add_orphan(const NamespaceId& id, std::uint64_t record_bytes);
  // Blocks of namespaces known by their id alone.
  std::uint64_t orphan_blocks() const noexcept;
  // Of all namespaces, those that are there no more too.
  Lookups lookups() const noexcept;
  // The number that this id has now.
  std::optional<std::uint16_t> find(const NamespaceId& id) const;
  void close(std::uint16_t ns) noexcept { known_[ns].closed = true; }

  KnownNamespace& operator[](std::uint16_t ns) noexcept { return known_[ns]; }
  const KnownNamespace& operator[](std::uint16_t ns) const noexcept { return known_[ns]; }
  // Numbers in use are below it; vacant ones are among them.
  std::uint16_t size() const noexcept { return static_cast<std::uint16_t>(known_.size()); }
  std::uint16_t count() const noexcept {
    return static_cast<std::uint16_t>(known_.size() - vacant_.size());
  }
  // Looked up in a namespace that is not known.
  void missed(std::uint64_t blocks) noexcept { past_lookups_.misses += blocks; }
  // How many are the tenant's.
  std::uint32_t of_tenant(TenantId tenant) const noexcept { return of_tenant_[tenant]; }

 private:
  std::uint16_t number_for(KnownNamespace&& fresh);
  void vacate(std::uint16_t number);
  Result<void> check_room(TenantId tenant, UserId owner) const;

  const Tenants* tenants_;
  std::vector<std::uint32_t> of_tenant_;  // namespaces that are not orphans
  std::map<UserId, std::uint32_t> of_user_;
  std::vector<KnownNamespace> known_;
  std::vector<std::uint16_t> vacant_;
  std::map<NamespaceId, std::uint16_t> by_id_;
  std::uint32_t orphans_ = 0;
  std::uint64_t incarnations_ = 0;
  Lookups past_lookups_;  // of namespaces whose number another has now
};

}  // namespace kvtier::daemon
