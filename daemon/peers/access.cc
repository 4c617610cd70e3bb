#include "daemon/peers/access.h"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

namespace kvtier::daemon {
namespace {

std::optional<std::uint32_t> number_in(const std::string& text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

Error unknown(const std::string& setting, const char* kind, const std::string& name) {
  return make_error(Errc::invalid, setting + ": no " + kind + " '" + name +
                                       "' on this system; give a name that `getent " +
                                       (kind[0] == 'u' ? "passwd" : "group") +
                                       "` knows, or a number");
}

Result<uid_t> user_of(const std::string& setting, const std::string& name) {
  if (const auto number = number_in(name)) return uid_t{*number};
  const passwd* found = ::getpwnam(name.c_str());
  if (found == nullptr) return unknown(setting, "user", name);
  return found->pw_uid;
}

Result<gid_t> group_of(const std::string& setting, const std::string& name) {
  if (const auto number = number_in(name)) return gid_t{*number};
  const group* found = ::getgrnam(name.c_str());
  if (found == nullptr) return unknown(setting, "group", name);
  return found->gr_gid;
}

Result<Principals> resolved(const std::string& setting, const Config::Principals& names) {
  Principals all;
  for (const std::string& name : names.users) {
    const auto user = user_of(setting + " users", name);
    if (!user) return user.error();
    all.users.insert(*user);
  }
  for (const std::string& name : names.groups) {
    const auto group = group_of(setting + " groups", name);
    if (!group) return group.error();
    all.groups.insert(*group);
  }
  return all;
}

// The default tenant first, made up where it is not configured.
std::vector<Config::Tenant> in_order(const Config& config) {
  std::vector<Config::Tenant> all{{}};
  all.front().name = kDefaultTenantName;
  for (const auto& tenant : config.tenants) {
    if (tenant.name == kDefaultTenantName) {
      all.front() = tenant;
    } else {
      all.push_back(tenant);
    }
  }
  return all;
}

}  // namespace

bool Principals::contains(const Peer& peer) const noexcept {
  return users.contains(peer.uid) || groups.contains(peer.gid) ||
         std::ranges::any_of(peer.groups, [&](gid_t group) { return groups.contains(group); });
}

Result<Access> Access::resolve(const Config& config) {
  Access access;
  access.own_ = ::geteuid();
  if (!config.access.admin_group.empty()) {
    const auto group = group_of("[access] admin_group", config.access.admin_group);
    if (!group) return group.error();
    access.admin_group_ = *group;
  }
  auto readers = resolved("[access] read_only", config.access.read_only);
  if (!readers) return readers.error();
  access.read_only_ = std::move(*readers);
  for (const auto& tenant : in_order(config)) {
    auto users = resolved("[[tenant]] '" + tenant.name + "'", tenant.members);
    if (!users) return users.error();
    access.tenants_.push_back(std::move(*users));
  }
  return access;
}

bool Access::is_admin(const Peer& peer) const noexcept {
  return peer.uid == 0 || peer.uid == own_ || (admin_group_ && peer.in_group(*admin_group_));
}

bool Access::read_only(const Peer& peer) const noexcept {
  return read_only_.contains(peer);
}

bool Access::may_use(TenantId tenant, const Peer& peer) const noexcept {
  if (tenant >= tenants_.size()) return false;
  return tenants_[tenant].empty() || tenants_[tenant].contains(peer);
}

Tenants tenants_of(const Config& config) {
  std::vector<Tenant> all;
  for (const auto& from : in_order(config)) {
    Tenant tenant{from.name, from.salts, from.isolated, {}};
    for (const Tier tier : kAllTiers) {
      const std::size_t t = index_of(tier);
      const std::uint64_t cap = capacity_of(config, tier);
      if (from.quota[t]) tenant.limits[t].quota = from.quota[t]->bytes_of(cap);
      if (from.guaranteed[t]) tenant.limits[t].guaranteed = from.guaranteed[t]->bytes_of(cap);
    }
    all.push_back(std::move(tenant));
  }
  return Tenants(std::move(all));
}

}  // namespace kvtier::daemon
