// What the daemon shows of itself to those who watch it over HTTP. Costs some tens of microseconds,
// a millisecond with thousands of namespaces.
#include <algorithm>

#include "daemon/limits.h"
#include "daemon/server/server.h"
#include "daemon/server/tier_note.h"
#include "daemon/version.h"

namespace kvtier::daemon {

using std::chrono::steady_clock;

Snapshot Server::snapshot() {
  const Turns::Scope turn(turns_);
  Snapshot s;
  const Catalogue& catalogue = cache_->catalogue();
  s.version = kVersion;
  s.boot_id = to_hex(Key{context_->boot_id});
  s.uptime = std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - started_);
  s.stopping = stopping_;
  for (const Tier tier : kAllTiers) s.tiers[index_of(tier)] = tier_view(tier);
  for (std::uint32_t i = 0; i < gpus_.size(); ++i) s.gpus.push_back(gpu_view(i));
  for (std::uint32_t i = 0; i < stores_.size(); ++i) s.disks.push_back(disk_view(i));
  labels_.fill(catalogue.namespaces(), catalogue.tenants(), s);
  for (const std::uint16_t ns :
       largest_namespaces(catalogue.namespaces(), 0, limits::kNamespacesShownMax)) {
    if (catalogue.namespaces()[ns].vacant) continue;
    s.largest.push_back(view_of(catalogue.namespaces()[ns], catalogue.tenants()));
  }
  s.namespaces = catalogue.namespaces().count();
  add_sessions(s);
  s.leases = cache_->leases();
  s.leased_blocks = cache_->leased_blocks();
  s.reserved_slots = cache_->reservations().reserved();
  s.quarantined_slots = cache_->reservations().quarantined();
  s.blocks = catalogue.size();
  s.blocks_max = catalogue.capacity();
  s.orphans = catalogue.namespaces().orphan_blocks();
  s.faults = cache_->counts().faults;
  s.refused_commits = cache_->counts().refused_commits;
  s.double_releases = cache_->counts().unknown_releases;
  s.frame_errors = context_->frame_errors;
  s.lookups = catalogue.namespaces().lookups();
  s.reuse_gap = cache_->counts().reuse_gap;
  s.turns_us = turns_.us();
  s.turn_longest = turns_.longest();
  s.turn_longest_cpu = turns_.longest_cpu();
  s.disk_counts = cache_->disk().counts();
  s.write_queue_blocks = cache_->disk().queued();
  s.write_queue_bytes = cache_->disk().queued_bytes();
  s.told = context_->told;
  add_scrub(s);
  return s;
}

Snapshot::TierView Server::tier_view(Tier tier) const {
  Snapshot::TierView view;
  const TierCounts& counts = cache_->catalogue().counts(tier);
  view.used_bytes = counts.bytes;
  view.blocks = counts.blocks;
  view.insertions = counts.insertions;
  view.removals = counts.removals;
  view.idle = counts.idle;
  if (tier == Tier::disk) {
    const DiskTier& disk = cache_->disk();
    view.online = any_online(disk);
    view.note = note_of(disk);
    view.taken_bytes = disk.taken_bytes();
    view.cap_bytes = disk.cap_bytes();
    for (const auto& device : disk.devices()) view.lifetimes += device->counts.lifetimes;
    return view;
  }
  for (std::uint32_t part = 0; part < (tier == Tier::device ? cache_->devices() : 1); ++part) {
    const MemoryTier& memory = cache_->memory(tier, part);
    view.reserved_bytes += cache_->reservations().bytes_in(tier, part);
    view.taken_bytes += memory.taken_bytes();
    view.cap_bytes += memory.cap_bytes();
    view.lifetimes += memory.lifetimes();
  }
  view.online = view.cap_bytes != 0;
  if (!view.online) view.note = kNoDeviceTier;
  return view;
}

Snapshot::GpuView Server::gpu_view(std::uint32_t device) const {
  const Gpu& gpu = gpus_[device];
  const MemoryTier& memory = cache_->memory(Tier::device, device);
  Snapshot::GpuView view;
  view.uuid = to_string(gpu.uuid);
  view.name = gpu.name;
  view.number = gpu.number;
  view.used_bytes = memory.block_bytes();
  view.reserved_bytes = cache_->reservations().bytes_in(Tier::device, device);
  view.taken_bytes = memory.taken_bytes();
  view.cap_bytes = memory.cap_bytes();
  view.blocks = memory.blocks();
  return view;
}

Snapshot::DiskView Server::disk_view(std::size_t number) const {
  const DiskDevice& device = *cache_->disk().devices()[number];
  const auto stats = stores_[number]->stats();
  Snapshot::DiskView view;
  view.directory = device.directory();
  view.why = device.why();
  view.online = device.online();
  view.used_bytes = device.space().bytes_in_use();
  view.taken_bytes = device.space().bytes_taken();
  view.cap_bytes = device.cap_bytes();
  view.file_bytes = stats.file_bytes;
  view.blocks = device.blocks();
  view.bytes_written = stats.bytes_written;
  view.bytes_written_per_day = write_rates_[number].bytes_per_day();
  view.records_read = stats.records_read;
  view.bytes_read = stats.bytes_read;
  view.failures = device.counts.failures;
  view.corrupt = device.counts.corrupt;
  view.memory_faults = stats.memory_faults;
  view.read_us = device.counts.read_us;
  view.write_us = device.counts.write_us;
  view.stuck_for = device.stuck_for();
  return view;
}

void Server::add_sessions(Snapshot& snapshot) const {
  const auto now = steady_clock::now();
  const auto seconds = [](steady_clock::duration time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time);
  };
  for (const auto& [id, session] : sessions_) {
    const auto held = cache_->held_by(id);
    snapshot.sessions.push_back({id, session->process().pid, session->name(),
                                 seconds(now - session->began()),
                                 seconds(now - session->last_heard()), held.leases,
                                 held.leased_blocks, session->namespaces().size()});
  }
  snapshot.sessions_open = static_cast<std::uint32_t>(sessions_.size());
  std::ranges::stable_sort(snapshot.sessions, std::ranges::greater(),
                           &Snapshot::SessionView::leased_blocks);
  if (snapshot.sessions.size() > limits::kSessionsShownMax)
    snapshot.sessions.resize(limits::kSessionsShownMax);
}

void Server::add_scrub(Snapshot& snapshot) const {
  auto& scrub = snapshot.scrub;
  scrub.running = scrubber_->running();
  scrub.passes = scrubber_->passes();
  if (!scrub.running && scrub.passes == 0) return;
  const Scrubber::Pass& pass = scrub.running ? scrubber_->current() : scrubber_->last();
  scrub.records = pass.records;
  scrub.bytes = pass.bytes;
  scrub.corrupt = pass.corrupt;
  scrub.skipped = pass.skipped;
  const auto there = static_cast<double>(cache_->catalogue().counts(Tier::disk).bytes);
  if (!scrub.running || there == 0) return;
  scrub.progress = std::min(1.0, static_cast<double>(pass.bytes) / there);
}

}  // namespace kvtier::daemon
