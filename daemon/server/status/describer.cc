#include "daemon/server/status/describer.h"

#include <unistd.h>

#include <algorithm>
#include <functional>

#include "daemon/version.h"

namespace kvtier::daemon {

namespace {

using std::chrono::milliseconds;

template <class Duration>
milliseconds in_ms(Duration time) {
  return std::chrono::duration_cast<milliseconds>(time);
}

// What is wrong with the disk tier as a whole: empty where all is well.
std::string note_of(const DiskTier& disk) {
  if (disk.devices().empty()) return "not configured: set [disk] directory";
  std::string note;
  for (const auto& device : disk.devices()) {
    if (!device->online()) {
      note += (note.empty() ? "" : "; ") + device->directory() + " is " + device->state_name() +
              ": " + device->why();
    }
  }
  return note;
}

Snapshot::Scrub::Pass view_of(const Scrubber::Pass& pass) {
  return {pass.records, pass.bytes, pass.corrupt, pass.skipped, {}, {}};
}

}  // namespace

Snapshot Describer::for_watchers() {
  Snapshot s = common();
  const Catalogue& catalogue = cache().catalogue();
  labels_.fill(catalogue.namespaces(), catalogue.tenants(), s);
  for (const std::uint16_t ns :
       largest_namespaces(catalogue.namespaces(), 0, limits::kNamespacesShownMax)) {
    if (catalogue.namespaces()[ns].vacant) continue;
    s.largest.push_back(daemon::view_of(catalogue.namespaces()[ns], catalogue.tenants()));
  }
  s.sessions = sessions();
  std::ranges::stable_sort(s.sessions, std::ranges::greater(),
                           &Snapshot::SessionView::leased_blocks);
  if (s.sessions.size() > limits::kSessionsShownMax) s.sessions.resize(limits::kSessionsShownMax);
  return s;
}

Snapshot Describer::for_peer(const Peer& peer) const {
  Snapshot s = common();
  const bool admin = of_.access.is_admin(peer);
  const Tenants& tenants = cache().catalogue().tenants();
  for (TenantId id = 0; id < tenants.size(); ++id) {
    if (admin || of_.access.may_use(id, peer)) s.tenants.push_back(tenant(id));
  }
  const auto now = Clock::now();
  for (const auto& [id, open] : of_.sessions.sessions()) {
    if (s.sessions.size() == limits::kPeersListedMax) break;
    if (admin || open->peer().uid == peer.uid) s.sessions.push_back(session(*open, now));
  }
  return s;
}

std::vector<Snapshot::SessionView> Describer::sessions() const {
  const auto now = Clock::now();
  std::vector<Snapshot::SessionView> views;
  for (const auto& [id, open] : of_.sessions.sessions()) views.push_back(session(*open, now));
  return views;
}

Snapshot Describer::common() const {
  Snapshot s;
  const Catalogue& catalogue = cache().catalogue();
  s.version = kVersion;
  s.boot_id = of_.tiers.boot_id();
  s.pid = ::getpid();
  s.uptime = in_ms(Clock::now() - started_);
  s.stopping = stopping_;
  for (const Tier t : kAllTiers) {
    Snapshot::TierView& view = s.tiers[index_of(t)] = tier(t);
    const HitDensity* density = catalogue.hit_density();
    view.goes_by_age = density == nullptr || density->oldest_is_better(t);
  }
  for (std::uint32_t i = 0; i < of_.tiers.backing().gpus().size(); ++i) s.gpus.push_back(gpu(i));
  for (std::size_t i = 0; i < of_.tiers.backing().disks().size(); ++i) s.disks.push_back(disk(i));
  s.namespaces = catalogue.namespaces().count();
  s.sessions_open = static_cast<std::uint32_t>(of_.sessions.sessions().size());
  s.leases = cache().leases();
  s.leased_blocks = cache().leased_blocks();
  s.reserved_slots = cache().reservations().reserved();
  s.quarantined_slots = cache().reservations().quarantined();
  s.blocks = catalogue.size();
  s.blocks_max = catalogue.capacity();
  s.orphans = catalogue.namespaces().orphan_blocks();
  s.faults = cache().counts().faults;
  s.refused_commits = cache().counts().refused_commits;
  s.double_releases = cache().counts().unknown_releases;
  s.reuse_gap = cache().counts().reuse_gap;
  s.lookups = catalogue.namespaces().lookups();
  const SessionCounts& counts = of_.sessions.counts();
  s.frame_errors = counts.frame_errors;
  s.denied = counts.denied;
  s.refused_reports = counts.refused_reports;
  s.told = counts.told;
  s.turned_away = of_.sessions.turned_away();
  s.turns_us = of_.turns.us();
  s.turn_longest = of_.turns.longest();
  s.turn_longest_cpu = of_.turns.longest_cpu();
  s.disk_counts = cache().disk().counts();
  s.left_out = cache().disk().left_out();
  s.write_chance_min = cache().disk().write_chance_min();
  s.write_queue_blocks = cache().disk().queued();
  s.write_queue_bytes = cache().disk().queued_bytes();
  s.hints = cache().hints().counts();
  s.prefetching_blocks = cache().hints().prefetching();
  s.scrub = scrub();
  s.events = events();
  s.remote = remote();
  return s;
}

Snapshot::RemoteView Describer::remote() const {
  const RemoteTier& tier = cache().remote();
  Snapshot::RemoteView view;
  if (!tier.configured()) return view;
  view.configured = true;
  view.online = tier.readable();
  view.url = of_.remote_url;
  view.state = tier.state_name();
  view.why = tier.why();
  view.blocks = cache().catalogue().remote();
  view.only_there = cache().catalogue().only_remote();
  view.hit_bytes = cache().counts().hit_bytes[index_of(Tier::remote)];
  view.queued_blocks = tier.writes().queued();
  view.queued_bytes = tier.writes().queued_bytes();
  view.lookups_under_way = tier.lookups_under_way();
  view.counts = tier.counts();
  view.store = tier.stats();
  return view;
}

Snapshot::TierView Describer::tier(Tier tier) const {
  Snapshot::TierView view;
  const TierCounts& counts = cache().catalogue().counts(tier);
  view.used_bytes = counts.bytes;
  view.blocks = counts.blocks;
  view.insertions = counts.insertions;
  view.inserted_bytes = counts.inserted_bytes;
  view.removals = counts.removals;
  view.idle = counts.idle;
  view.hit_bytes = cache().counts().hit_bytes[index_of(tier)];
  view.pinned_blocks = cache().pins().blocks(tier);
  view.pinned_bytes = cache().pins().bytes(tier);
  view.pinned_bytes_max = pinned_bytes_max(tier);
  view.hinted_blocks = cache().hints().blocks(tier);
  view.hinted_bytes = cache().hints().bytes(tier);
  view.demoted_blocks = counts.demoted;
  if (tier == Tier::disk) {
    const DiskTier& disk = cache().disk();
    view.online =
        std::ranges::any_of(disk.devices(), [](const auto& device) { return device->readable(); });
    view.note = note_of(disk);
    view.taken_bytes = disk.taken_bytes();
    view.cap_bytes = disk.cap_bytes();
    view.failures = disk.counts().failures;
    view.dropped_writes = disk.counts().dropped_writes;
    for (const auto& device : disk.devices()) view.lifetimes += device->counts.lifetimes;
    return view;
  }
  for (std::uint32_t part = 0; part < (tier == Tier::device ? cache().devices() : 1); ++part) {
    const MemoryTier& memory = cache().memory(tier, part);
    view.reserved_bytes += cache().reservations().bytes_in(tier, part);
    view.taken_bytes += memory.taken_bytes();
    view.cap_bytes += memory.cap_bytes();
    view.lifetimes += memory.lifetimes();
    view.hinted_bytes_max += cache().hints().bytes_max(tier, part);
  }
  view.online = view.cap_bytes != 0;
  if (!view.online) view.note = "not configured: set [device] capacity";
  return view;
}

std::uint64_t Describer::pinned_bytes_max(Tier tier) const {
  std::size_t parts = 1;
  if (tier == Tier::device) parts = cache().devices();
  if (tier == Tier::disk) parts = cache().disk().devices().size();
  std::uint64_t bytes = 0;
  for (std::uint32_t part = 0; part < parts; ++part) bytes += cache().pinned_bytes_max(tier, part);
  return bytes;
}

Snapshot::GpuView Describer::gpu(std::uint32_t number) const {
  const auto& gpu = of_.tiers.backing().gpus()[number];
  const MemoryTier& memory = cache().memory(Tier::device, number);
  Snapshot::GpuView view;
  view.uuid = gpu.uuid;
  view.name = gpu.name;
  view.number = gpu.number;
  view.used_bytes = memory.block_bytes();
  view.reserved_bytes = cache().reservations().bytes_in(Tier::device, number);
  view.taken_bytes = memory.taken_bytes();
  view.cap_bytes = memory.cap_bytes();
  view.blocks = memory.blocks();
  return view;
}

Snapshot::DiskView Describer::disk(std::size_t number) const {
  const DiskDevice& device = *cache().disk().devices()[number];
  const auto& disk = of_.tiers.backing().disks()[number];
  const auto stats = disk.store->stats();
  Snapshot::DiskView view;
  view.directory = device.directory();
  view.why = device.why();
  view.online = device.readable();
  view.state = device.state_name();
  view.used_bytes = device.space().bytes_in_use();
  view.taken_bytes = device.space().bytes_taken();
  view.cap_bytes = device.cap_bytes();
  view.capacity_bytes = of_.disk_capacity_bytes;
  view.file_bytes = stats.file_bytes;
  view.blocks = device.blocks();
  view.bytes_written = stats.bytes_written;
  view.bytes_written_per_day = disk.write_rate.bytes_per_day();
  view.records_read = stats.records_read;
  view.bytes_read = stats.bytes_read;
  view.failures = device.counts.failures;
  view.corrupt = device.counts.corrupt;
  view.memory_faults = stats.memory_faults;
  view.given_up = stats.records_given_up;
  view.bad_bytes = device.space().bad_bytes();
  view.index_memory_bytes = stats.index_memory_bytes;
  view.read_us = device.counts.read_us;
  view.write_us = device.counts.write_us;
  view.stuck_for = device.stuck_for();
  return view;
}

Snapshot::TenantView Describer::tenant(TenantId tenant) const {
  const Catalogue& catalogue = cache().catalogue();
  Snapshot::TenantView view;
  view.name = catalogue.tenants()[tenant].name;
  view.isolated = catalogue.tenants()[tenant].isolated;
  view.namespaces = catalogue.namespaces().of_tenant(tenant);
  for (const Tier tier : kAllTiers) {
    const std::size_t t = index_of(tier);
    const TenantLimits& limits = catalogue.tenants().limits(tenant, tier);
    const std::uint64_t parts = tier == Tier::device ? cache().devices() : 1;
    view.used_bytes[t] = tier == Tier::disk ? cache().disk().used_by(tenant) : 0;
    for (std::uint32_t part = 0; tier != Tier::disk && part < parts; ++part)
      view.used_bytes[t] += cache().memory(tier, part).used_by(tenant);
    view.quota_bytes[t] = limits.quota == kNoQuota ? kNoQuota : limits.quota * parts;
    view.guaranteed_bytes[t] = limits.guaranteed * parts;
  }
  return view;
}

Snapshot::SessionView Describer::session(const Session& session, Clock::time_point now) const {
  const auto held = cache().held_by(session.id());
  Snapshot::SessionView view;
  view.id = session.id();
  view.process = session.process().pid;
  view.pid = session.peer().pid;
  view.uid = session.peer().uid;
  view.gid = session.peer().gid;
  view.read_only = session.read_only();
  view.admin = of_.access.is_admin(session.peer());
  view.name = session.name();
  view.connected_for = in_ms(now - session.began());
  view.silent_for = in_ms(now - session.last_heard());
  view.leases = held.leases;
  view.leased_blocks = held.leased_blocks;
  view.reserved_slots = cache().reservations().held_by_session(session.id());
  view.namespaces = session.namespaces();
  view.unsent_bytes = session.unsent_bytes();
  return view;
}

Snapshot::Events Describer::events() const {
  Snapshot::Events view;
  if (!of_.events) return view;
  const events::EventCounts& counts = of_.events->counts();
  view.configured = true;
  view.listening = counts.listening;
  view.batches = counts.batches;
  view.stored = counts.stored;
  view.removed = counts.removed;
  view.lost = of_.events->lost();
  view.walks = counts.walks;
  view.replayed = counts.replayed;
  view.snapshots = counts.snapshots;
  view.queued_bytes = of_.events->queued_bytes();
  view.queue_bytes_max = of_.events->queue_bytes_max();
  view.kept_bytes = counts.kept_bytes;
  view.subscriptions = counts.subscriptions;
  return view;
}

Snapshot::Scrub Describer::scrub() const {
  const auto now = Clock::now();
  const Scrubber& scrubber = of_.scrubber;
  Snapshot::Scrub scrub;
  scrub.running = scrubber.running();
  scrub.passes = scrubber.passes();
  if (scrub.running) {
    scrub.current = view_of(scrubber.current());
    scrub.current->took = in_ms(now - scrubber.current().began);
    const auto there = static_cast<double>(cache().catalogue().counts(Tier::disk).bytes);
    if (there != 0)
      scrub.progress = std::min(1.0, static_cast<double>(scrub.current->bytes) / there);
  }
  if (scrub.passes != 0) {
    scrub.last = view_of(scrubber.last());
    scrub.last->took = in_ms(scrubber.last().ended - scrubber.last().began);
    scrub.last->ended_ago = in_ms(now - scrubber.last().ended);
  }
  return scrub;
}

}  // namespace kvtier::daemon
