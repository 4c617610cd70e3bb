// What the daemon tells of tenants and sessions, and to whom.
#include "daemon/server/server.h"

namespace kvtier::daemon {

void Server::fill_tenants(const Peer& peer, wire::Status::Builder status) const {
  const Tenants& tenants = cache_->catalogue().tenants();
  std::vector<TenantId> shown;
  for (TenantId tenant = 0; tenant < tenants.size(); ++tenant) {
    if (access_.is_admin(peer) || access_.may_use(tenant, peer)) shown.push_back(tenant);
  }
  auto list = status.initTenants(static_cast<unsigned>(shown.size()));
  for (unsigned i = 0; i < list.size(); ++i) fill_tenant(list[i], shown[i]);
}

void Server::fill_tenant(wire::Tenant::Builder out, TenantId tenant) const {
  const Catalogue& catalogue = cache_->catalogue();
  out.setName(catalogue.tenants()[tenant].name);
  out.setIsolated(catalogue.tenants()[tenant].isolated);
  out.setNamespaces(catalogue.namespaces().of_tenant(tenant));
  auto used = out.initUsedBytes(kTiers);
  auto quota = out.initQuotaBytes(kTiers);
  auto guaranteed = out.initGuaranteedBytes(kTiers);
  for (const Tier tier : kAllTiers) {
    const auto t = static_cast<unsigned>(index_of(tier));
    const TenantLimits& limits = catalogue.tenants().limits(tenant, tier);
    const std::uint64_t parts = tier == Tier::device ? cache_->devices() : 1;
    std::uint64_t bytes = tier == Tier::disk ? cache_->disk().used_by(tenant) : 0;
    for (std::uint32_t part = 0; tier != Tier::disk && part < parts; ++part)
      bytes += cache_->memory(tier, part).used_by(tenant);
    used.set(t, bytes);
    quota.set(t, limits.quota == kNoQuota ? kNoQuota : limits.quota * parts);
    guaranteed.set(t, limits.guaranteed * parts);
  }
}

void Server::fill_peers(const Peer& peer, wire::Status::Builder status) const {
  std::vector<const Session*> shown;
  for (const auto& [id, session] : sessions_) {
    if (shown.size() == limits::kPeersListedMax) break;
    if (access_.is_admin(peer) || session->peer().uid == peer.uid) shown.push_back(session.get());
  }
  auto list = status.initPeers(static_cast<unsigned>(shown.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    const Session& session = *shown[i];
    const auto held = cache_->held_by(session.id());
    auto out = list[i];
    out.setSession(session.id());
    out.setName(session.name());
    out.setPid(static_cast<std::uint32_t>(session.peer().pid));
    out.setUid(session.peer().uid);
    out.setGid(session.peer().gid);
    out.setReadOnly(session.read_only());
    out.setAdmin(access_.is_admin(session.peer()));
    out.setLeases(static_cast<std::uint32_t>(held.leases));
    out.setLeasedBlocks(held.leased_blocks);
    out.setReservedSlots(cache_->reservations().held_by_session(session.id()));
    out.setUnsentBytes(session.unsent_bytes());
  }
}

}  // namespace kvtier::daemon
