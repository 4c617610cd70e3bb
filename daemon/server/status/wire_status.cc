#include "daemon/server/status/wire_status.h"

#include <numeric>

namespace kvtier::daemon {
namespace {

template <std::size_t kBytes>
capnp::Data::Reader data_of(const std::array<std::byte, kBytes>& bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), kBytes};
}

std::uint64_t count_of(std::chrono::milliseconds time) {
  return static_cast<std::uint64_t>(time.count());
}

void render(const Snapshot& s, Tier tier, wire::Status::Tier::Builder out) {
  const auto& view = s.tiers[index_of(tier)];
  out.setTier(static_cast<std::uint8_t>(tier));
  out.setOnline(view.online);
  out.setNote(view.note);
  out.setUsedBytes(view.used_bytes);
  out.setReservedBytes(view.reserved_bytes);
  out.setTakenBytes(view.taken_bytes);
  out.setCapBytes(view.cap_bytes);
  out.setBlocks(view.blocks);
  out.setHits(s.lookups.hits[index_of(tier)]);
  out.setHitBytes(view.hit_bytes);
  out.setInsertions(view.insertions);
  out.setInsertedBytes(view.inserted_bytes);
  out.setEvictions(evictions(view.removals));
  out.setFailures(view.failures);
  out.setDroppedWrites(view.dropped_writes);
  out.setPinnedBlocks(view.pinned_blocks);
  out.setPinnedBytes(view.pinned_bytes);
  out.setPinnedBytesMax(view.pinned_bytes_max);
  out.setHintedBlocks(view.hinted_blocks);
  out.setHintedBytes(view.hinted_bytes);
  out.setHintedBytesMax(view.hinted_bytes_max);
  out.setDemotedBlocks(view.demoted_blocks);
}

void render_hints(const HintCounts& counts, wire::Status::Builder out) {
  struct Count {
    HintKind kind;
    HintOutcome outcome;
  };
  std::vector<Count> shown;
  each_hint_count(counts, [&](HintKind kind, HintOutcome outcome, std::uint64_t blocks) {
    if (blocks != 0) shown.push_back({kind, outcome});
  });
  auto list = out.initHints(static_cast<unsigned>(shown.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    list[i].setKind(static_cast<std::uint8_t>(shown[i].kind));
    list[i].setOutcome(name(shown[i].outcome));
    list[i].setBlocks(counts.of(shown[i].kind, shown[i].outcome));
  }
}

void render(const Snapshot::Events& events, wire::Status::Events::Builder out) {
  out.setListening(events.listening);
  out.setBatches(events.batches);
  out.setStored(events.stored);
  out.setRemoved(events.removed);
  out.setLost(events.lost);
  out.setWalks(events.walks);
  out.setReplayed(events.replayed);
  out.setSnapshots(events.snapshots);
  out.setQueuedBytes(events.queued_bytes);
  out.setQueueBytesMax(events.queue_bytes_max);
  out.setKeptBytes(events.kept_bytes);
  out.setSubscriptions(events.subscriptions);
}

void render(const Snapshot::RemoteView& remote, std::uint64_t hits,
            wire::Status::Remote::Builder out) {
  out.setUrl(remote.url);
  out.setState(remote.state);
  out.setOnline(remote.online);
  out.setWhy(remote.why);
  out.setBlocks(remote.blocks);
  out.setOnlyThere(remote.only_there);
  out.setHits(hits);
  out.setHitBytes(remote.hit_bytes);
  out.setLookups(remote.counts.asked);
  out.setLookupsLate(remote.counts.late);
  out.setFound(remote.counts.found_blocks);
  out.setBlocksRead(remote.store.records_read);
  out.setBytesRead(remote.store.bytes_read);
  out.setBlocksWritten(remote.counts.written);
  out.setBytesWritten(remote.store.bytes_written);
  out.setGone(remote.counts.stale);
  out.setCorrupt(remote.store.corrupt);
  out.setLate(remote.store.late);
  out.setDroppedWrites(
      std::accumulate(remote.counts.drops.begin(), remote.counts.drops.end(), std::uint64_t{0}));
  out.setQueuedBlocks(remote.queued_blocks);
  out.setConnections(remote.store.connections);
}

void render(const Snapshot::GpuView& gpu, wire::Status::Gpu::Builder out) {
  out.setUuid(data_of(gpu.uuid));
  out.setNumber(gpu.number);
  out.setName(gpu.name);
  out.setUsedBytes(gpu.used_bytes);
  out.setReservedBytes(gpu.reserved_bytes);
  out.setTakenBytes(gpu.taken_bytes);
  out.setCapBytes(gpu.cap_bytes);
  out.setBlocks(gpu.blocks);
}

void render(const Snapshot::DiskView& disk, wire::Status::Disk::Builder out) {
  out.setDirectory(disk.directory);
  out.setOnline(disk.online);
  out.setState(disk.state);
  out.setWhy(disk.why);
  out.setUsedBytes(disk.used_bytes);
  out.setTakenBytes(disk.taken_bytes);
  out.setCapBytes(disk.cap_bytes);
  out.setCapacityBytes(disk.capacity_bytes);
  out.setFileBytes(disk.file_bytes);
  out.setBlocks(disk.blocks);
  out.setBytesRead(disk.bytes_read);
  out.setBytesWritten(disk.bytes_written);
  out.setBytesWrittenPerDay(disk.bytes_written_per_day);
  out.setFailures(disk.failures);
  out.setCorrupt(disk.corrupt);
  out.setGivenUp(disk.given_up);
  out.setBadBytes(disk.bad_bytes);
}

void render(const Snapshot::TenantView& tenant, wire::Tenant::Builder out) {
  out.setName(tenant.name);
  out.setIsolated(tenant.isolated);
  out.setNamespaces(tenant.namespaces);
  auto used = out.initUsedBytes(kTiers);
  auto quota = out.initQuotaBytes(kTiers);
  auto guaranteed = out.initGuaranteedBytes(kTiers);
  for (unsigned t = 0; t < kTiers; ++t) {
    used.set(t, tenant.used_bytes[t]);
    quota.set(t, tenant.quota_bytes[t]);
    guaranteed.set(t, tenant.guaranteed_bytes[t]);
  }
}

void render(const Snapshot::SessionView& session, wire::Peer::Builder out) {
  out.setSession(session.id);
  out.setName(session.name);
  out.setPid(static_cast<std::uint32_t>(session.pid));
  out.setUid(session.uid);
  out.setGid(session.gid);
  out.setReadOnly(session.read_only);
  out.setAdmin(session.admin);
  out.setLeases(static_cast<std::uint32_t>(session.leases));
  out.setLeasedBlocks(session.leased_blocks);
  out.setReservedSlots(session.reserved_slots);
  out.setUnsentBytes(session.unsent_bytes);
}

void render(const Snapshot::SessionView& session, wire::SessionInfo::Builder out) {
  out.setId(session.id);
  out.setName(session.name);
  out.setPid(session.process);
  out.setAgeMs(count_of(session.connected_for));
  out.setSilentMs(count_of(session.silent_for));
  out.setLeases(session.leases);
  out.setBlocksLeased(session.leased_blocks);
  out.setSlotsReserved(session.reserved_slots);
  out.setNamespaces(static_cast<std::uint32_t>(session.namespaces));
}

void render(const Snapshot::Scrub::Pass& pass, wire::ScrubReport::Pass::Builder out) {
  out.setRecords(pass.records);
  out.setBytes(pass.bytes);
  out.setCorrupt(pass.corrupt);
  out.setSkipped(pass.skipped);
  out.setDurationMs(count_of(pass.took));
  out.setEndedAgoMs(count_of(pass.ended_ago));
}

template <class View, class List>
void render_each(const std::vector<View>& views, List list) {
  for (unsigned i = 0; i < list.size(); ++i) render(views[i], list[i]);
}

template <class View>
unsigned size_of(const std::vector<View>& views) {
  return static_cast<unsigned>(views.size());
}

}  // namespace

void render(const Snapshot& s, wire::Status::Builder out) {
  out.setVersion(s.version);
  out.setBootId(data_of(s.boot_id));
  out.setPid(static_cast<std::uint32_t>(s.pid));
  out.setUptimeMs(count_of(s.uptime));
  auto tiers = out.initTiers(kTiers);
  for (const Tier tier : kAllTiers) render(s, tier, tiers[static_cast<unsigned>(tier)]);
  render_each(s.gpus, out.initGpus(size_of(s.gpus)));
  render_each(s.disks, out.initDisks(size_of(s.disks)));
  render_each(s.tenants, out.initTenants(size_of(s.tenants)));
  render_each(s.sessions, out.initPeers(size_of(s.sessions)));
  out.setSessions(s.sessions_open);
  out.setNamespaces(s.namespaces);
  out.setLeases(s.leases);
  out.setReservedSlots(s.reserved_slots);
  out.setQuarantinedSlots(s.quarantined_slots);
  out.setBlocks(s.blocks);
  out.setBlocksMax(s.blocks_max);
  out.setOrphans(s.orphans);
  out.setLookedUp(s.lookups.looked_up());
  out.setMisses(s.lookups.misses);
  out.setFaults(s.faults);
  out.setDroppedWriteBacks(s.told.dropped_in_all());
  out.setDoubleReleases(s.double_releases);
  out.setFrameErrors(s.frame_errors);
  out.setTurnedAway(s.turned_away);
  out.setDenied(s.denied);
  out.setRefusedReports(s.refused_reports);
  out.setPrefetching(s.prefetching_blocks);
  render_hints(s.hints, out);
  if (s.events.configured) render(s.events, out.initEvents());
  if (s.remote.configured)
    render(s.remote, s.lookups.hits[index_of(Tier::remote)], out.initRemote());
}

void render(const Snapshot::Scrub& scrub, wire::ScrubReport::Builder out) {
  out.setRunning(scrub.running);
  out.setPasses(scrub.passes);
  if (scrub.current) render(*scrub.current, out.initCurrent());
  if (scrub.last) render(*scrub.last, out.initLast());
}

void render(std::span<const Snapshot::SessionView> sessions, wire::Message::Builder out) {
  auto list = out.initSessionsReply(static_cast<unsigned>(sessions.size()));
  for (unsigned i = 0; i < list.size(); ++i) render(sessions[i], list[i]);
}

}  // namespace kvtier::daemon
