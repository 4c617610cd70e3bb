// Who may do what, by the peer's user and groups. Names are looked up once, when kvtierd starts.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/config/tenants.h"
#include "daemon/peers/peer.h"
#include "daemon/peers/rights.h"

namespace kvtier::daemon {

// Users and groups, by number.
struct Principals {
  std::set<uid_t> users;
  std::set<gid_t> groups;

  bool empty() const noexcept { return users.empty() && groups.empty(); }
  bool contains(const Peer& peer) const noexcept;
};

class Access {
 public:
  Access() = default;
  // Errors: invalid, naming the setting and the user or group that this system does not know.
  static Result<Access> resolve(const Config& config);

  // Root, the daemon's own user, and members of admin_group.
  bool is_admin(const Peer& peer) const noexcept;
  bool read_only(const Peer& peer) const noexcept;
  bool may_use(TenantId tenant, const Peer& peer) const noexcept;

 private:
  uid_t own_ = 0;
  std::optional<gid_t> admin_group_;
  Principals read_only_;
  std::vector<Principals> tenants_;  // by TenantId; empty: everybody
};

// The tenants as configured, the default one first, with their limits in bytes.
Tenants tenants_of(const Config& config);

}  // namespace kvtier::daemon
