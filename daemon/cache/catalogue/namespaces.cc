#include "daemon/cache/catalogue/namespaces.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/record/digest.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

Result<std::uint16_t> Namespaces::open(std::span<const std::byte> encoded, UserId owner) {
  const NamespaceId id{xxh3_128(encoded)};
  auto known = find(id);
  if (known && known_[*known].closed) known.reset();
  if (known && !known_[*known].is_orphan()) {
    // The digest is fast, not secure: what was hashed decides.
    const auto& bytes = known_[*known].encoded;
    if (std::equal(bytes.begin(), bytes.end(), encoded.begin(), encoded.end())) return *known;
    return make_error(Errc::refused,
                      "another namespace with the same id is open: change the model "
                      "name or the tenant salt");
  }
  auto ns = decode_namespace(encoded);
  if (!ns) return ns.error();
  const TenantId tenant = tenants_->of_salt(ns->tenant);
  if (known) {
    KnownNamespace& orphan = known_[*known];
    const RecordLayout layout = RecordLayout::of(*ns);
    KVTIER_CHECK(orphan.blocks == 0 || layout.record_bytes == orphan.layout.record_bytes);
    orphan.ns = std::move(*ns);
    orphan.encoded.assign(encoded.begin(), encoded.end());
    orphan.layout = layout;
    orphan.tenant = tenant;
    ++of_tenant_[tenant];
    --orphans_;
    return *known;
  }
  if (auto room = check_room(tenant, owner); !room) return room.error();
  KnownNamespace fresh{};
  fresh.id = id;
  fresh.tenant = tenant;
  fresh.owner = owner;
  fresh.layout = RecordLayout::of(*ns);
  fresh.ns = std::move(*ns);
  fresh.encoded.assign(encoded.begin(), encoded.end());
  ++of_tenant_[tenant];
  return number_for(std::move(fresh));
}

void Namespaces::vacate(std::uint16_t number) {
  KnownNamespace& old = known_[number];
  if (old.is_orphan()) {
    --orphans_;
  } else {
    --of_tenant_[old.tenant];
  }
  if (const auto of = of_user_.find(old.owner); of != of_user_.end() && --of->second == 0)
    of_user_.erase(of);
  past_lookups_ += old.lookups;
  if (const auto at = by_id_.find(old.id); at != by_id_.end() && at->second == number)
    by_id_.erase(at);
  old = {};
  old.vacant = old.closed = true;
  vacant_.push_back(number);
}

std::vector<NamespaceId> Namespaces::forget_unused() {
  std::vector<NamespaceId> forgotten;
  for (std::size_t at = 0; at < known_.size(); ++at) {
    const auto number = static_cast<std::uint16_t>(at);
    const KnownNamespace& known = known_[number];
    if (known.vacant || !known.unused()) continue;
    const NamespaceId id = known.id;
    const bool remembered = !known.is_orphan();
    vacate(number);
    // One that was closed may have been opened anew under another number.
    if (remembered && !by_id_.contains(id)) forgotten.push_back(id);
  }
  return forgotten;
}

std::uint16_t Namespaces::number_for(KnownNamespace&& fresh) {
  fresh.incarnation = ++incarnations_;
  if (fresh.owner != kNoUser) ++of_user_[fresh.owner];
  std::uint16_t number;
  if (vacant_.empty()) {
    number = static_cast<std::uint16_t>(known_.size());
    known_.emplace_back();
  } else {
    number = vacant_.back();
    vacant_.pop_back();
  }
  by_id_[fresh.id] = number;
  known_[number] = std::move(fresh);
  return number;
}

// One of several tenants may use up its own part of the table only, and no user all of it.
Result<void> Namespaces::check_room(TenantId tenant, UserId owner) const {
  const bool alone = tenants_->size() == 1;
  const char* const mend =
      "): those without a block go when the last session that has them open ends";
  if (!alone && of_tenant_[tenant] >= limits::kNamespacesPerTenantMax) {
    return make_error(Errc::no_space, "too many namespaces of the tenant '" +
                                          (*tenants_)[tenant].name + "' (" +
                                          std::to_string(limits::kNamespacesPerTenantMax) + mend);
  }
  const auto of = of_user_.find(owner);
  if (of != of_user_.end() && of->second >= limits::kNamespacesPerUserMax) {
    return make_error(Errc::no_space, "too many namespaces of user " + std::to_string(owner) +
                                          " (" + std::to_string(limits::kNamespacesPerUserMax) +
                                          mend);
  }
  if (count() < limits::kNamespacesMax) return {};
  return make_error(Errc::no_space,
                    "too many namespaces (" + std::to_string(limits::kNamespacesMax) + mend);
}

Result<std::uint16_t> Namespaces::add_orphan(const NamespaceId& id, std::uint64_t record_bytes) {
  if (orphans_ == limits::kOrphanNamespacesMax || count() >= limits::kNamespacesMax) {
    return make_error(Errc::no_space, "too many namespaces are known by their id alone");
  }
  KnownNamespace fresh{};
  fresh.id = id;
  fresh.layout.record_bytes = record_bytes;
  ++orphans_;
  return number_for(std::move(fresh));
}

std::uint64_t Namespaces::orphan_blocks() const noexcept {
  std::uint64_t blocks = 0;
  if (orphans_ == 0) return blocks;
  for (const KnownNamespace& known : known_) blocks += known.is_orphan() ? known.blocks : 0;
  return blocks;
}

Lookups Namespaces::lookups() const noexcept {
  Lookups sum = past_lookups_;
  for (const KnownNamespace& known : known_) sum += known.lookups;
  return sum;
}

std::optional<std::uint16_t> Namespaces::find(const NamespaceId& id) const {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return std::nullopt;
  return found->second;
}

}  // namespace kvtier::daemon
