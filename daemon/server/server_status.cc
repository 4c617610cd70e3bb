// What the daemon tells of itself.
#include <unistd.h>

#include "daemon/server/server.h"
#include "daemon/server/tier_note.h"
#include "daemon/version.h"

namespace kvtier::daemon {

using std::chrono::steady_clock;

namespace {

std::uint64_t milliseconds(steady_clock::duration time) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(time).count());
}

void fill_pass(wire::ScrubReport::Pass::Builder out, const Scrubber::Pass& pass,
               steady_clock::duration took) {
  out.setRecords(pass.records);
  out.setBytes(pass.bytes);
  out.setCorrupt(pass.corrupt);
  out.setSkipped(pass.skipped);
  out.setDurationMs(milliseconds(took));
}

}  // namespace

std::string note_of(const DiskTier& disk) {
  if (!disk.present()) return "not configured: set [disk] directory";
  std::string note;
  for (const auto& device : disk.devices()) {
    if (!device->online()) {
      note += (note.empty() ? "" : "; ") + device->directory() + " is offline: " + device->why();
    }
  }
  return note;
}

bool any_online(const DiskTier& disk) {
  for (const auto& device : disk.devices()) {
    if (device->online()) return true;
  }
  return false;
}

void Server::fill_status(const Peer& peer, wire::Status::Builder status) const {
  status.setVersion(kVersion);
  status.setBootId({reinterpret_cast<const kj::byte*>(context_->boot_id.data()), 16});
  status.setPid(static_cast<std::uint32_t>(::getpid()));
  status.setUptimeMs(milliseconds(steady_clock::now() - started_));
  auto tiers = status.initTiers(kTiers);
  for (const Tier tier : kAllTiers) fill_tier(tiers[static_cast<unsigned>(tier)], tier);
  auto disks = status.initDisks(static_cast<unsigned>(stores_.size()));
  for (unsigned i = 0; i < disks.size(); ++i) fill_disk(disks[i], i);
  auto gpus = status.initGpus(static_cast<unsigned>(gpus_.size()));
  for (unsigned i = 0; i < gpus.size(); ++i) fill_gpu(gpus[i], i);
  status.setOrphans(cache_->catalogue().namespaces().orphan_blocks());
  status.setSessions(static_cast<std::uint32_t>(sessions_.size()));
  status.setLeases(cache_->leases());
  status.setReservedSlots(cache_->reservations().reserved());
  status.setQuarantinedSlots(cache_->reservations().quarantined());
  const Lookups lookups = cache_->catalogue().namespaces().lookups();
  status.setLookedUp(lookups.looked_up());
  status.setMisses(lookups.misses);
  status.setFaults(cache_->counts().faults);
  status.setDroppedWriteBacks(context_->told.dropped_in_all());
  status.setBlocks(cache_->catalogue().size());
  status.setBlocksMax(cache_->catalogue().capacity());
  status.setNamespaces(cache_->catalogue().namespaces().count());
  status.setDoubleReleases(cache_->counts().unknown_releases);
  status.setFrameErrors(context_->frame_errors);
  status.setTurnedAway(turned_away_);
  status.setDenied(context_->denied);
  status.setRefusedReports(context_->refused_reports);
  fill_tenants(peer, status);
  fill_peers(peer, status);
}

void Server::fill_tier(wire::Status::Tier::Builder out, Tier tier) const {
  const auto& in = cache_->catalogue().counts(tier);
  out.setTier(static_cast<std::uint8_t>(tier));
  out.setBlocks(in.blocks);
  out.setUsedBytes(in.bytes);
  out.setInsertions(in.insertions);
  out.setHits(cache_->catalogue().namespaces().lookups().hits[index_of(tier)]);
  out.setEvictions(in.evictions());
  out.setHitBytes(cache_->counts().hit_bytes[index_of(tier)]);
  out.setInsertedBytes(in.inserted_bytes);
  out.setPinnedBlocks(cache_->pins().blocks(tier));
  out.setPinnedBytes(cache_->pins().bytes(tier));
  out.setPinnedBytesMax(pinned_bytes_max(tier));
  if (tier == Tier::disk) {
    const DiskTier& disk = cache_->disk();
    out.setOnline(any_online(disk));
    out.setTakenBytes(disk.taken_bytes());
    out.setCapBytes(disk.cap_bytes());
    out.setFailures(disk.counts().failures);
    out.setDroppedWrites(disk.counts().dropped_writes);
    out.setNote(note_of(disk));
    return;
  }
  std::uint64_t reserved = 0, taken = 0, cap = 0;
  for (std::uint32_t part = 0; part < (tier == Tier::device ? cache_->devices() : 1); ++part) {
    reserved += cache_->reservations().bytes_in(tier, part);
    taken += cache_->memory(tier, part).taken_bytes();
    cap += cache_->memory(tier, part).cap_bytes();
  }
  out.setOnline(cap != 0);
  out.setReservedBytes(reserved);
  out.setTakenBytes(taken);
  out.setCapBytes(cap);
  if (cap == 0) out.setNote(kNoDeviceTier);
}

std::uint64_t Server::pinned_bytes_max(Tier tier) const {
  std::size_t parts = 1;
  if (tier == Tier::device) parts = cache_->devices();
  if (tier == Tier::disk) parts = cache_->disk().devices().size();
  std::uint64_t bytes = 0;
  for (std::uint32_t part = 0; part < parts; ++part) bytes += cache_->pinned_bytes_max(tier, part);
  return bytes;
}

void Server::fill_gpu(wire::Status::Gpu::Builder out, std::uint32_t device) const {
  const Gpu& gpu = gpus_[device];
  const MemoryTier& memory = cache_->memory(Tier::device, device);
  out.setUuid({reinterpret_cast<const kj::byte*>(gpu.uuid.data()), gpu.uuid.size()});
  out.setNumber(gpu.number);
  out.setName(gpu.name);
  out.setUsedBytes(memory.block_bytes());
  out.setReservedBytes(cache_->reservations().bytes_in(Tier::device, device));
  out.setTakenBytes(memory.taken_bytes());
  out.setCapBytes(memory.cap_bytes());
  out.setBlocks(memory.blocks());
}

void Server::fill_disk(wire::Status::Disk::Builder out, std::size_t number) const {
  const DiskDevice& device = *cache_->disk().devices()[number];
  const auto stats = stores_[number]->stats();
  out.setDirectory(device.directory());
  out.setOnline(device.online());
  out.setWhy(device.why());
  out.setUsedBytes(device.space().bytes_in_use());
  out.setTakenBytes(device.space().bytes_taken());
  out.setCapBytes(device.cap_bytes());
  out.setCapacityBytes(config_.disk.capacity_bytes);
  out.setFileBytes(stats.file_bytes);
  out.setBlocks(device.blocks());
  out.setBytesRead(stats.bytes_read);
  out.setBytesWritten(stats.bytes_written);
  out.setBytesWrittenPerDay(write_rates_[number].bytes_per_day());
  out.setFailures(device.counts.failures);
  out.setCorrupt(device.counts.corrupt);
}

void Server::fill_sessions(wire::Message::Builder reply) const {
  auto list = reply.initSessionsReply(static_cast<unsigned>(sessions_.size()));
  unsigned i = 0;
  for (const auto& [id, session] : sessions_) session->fill(list[i++]);
}

std::string Server::name_of_part(Tier tier, std::uint32_t device) const {
  if (tier == Tier::disk) return cache_->disk().devices()[device]->directory();
  if (tier == Tier::device && device < gpus_.size())
    return "GPU " + std::to_string(gpus_[device].number) + " (" + gpus_[device].name + ")";
  return "host memory";
}

void Server::fill_scrub(wire::ScrubReport::Builder report) const {
  const auto now = steady_clock::now();
  report.setRunning(scrubber_->running());
  report.setPasses(scrubber_->passes());
  if (scrubber_->running()) {
    const auto& pass = scrubber_->current();
    fill_pass(report.initCurrent(), pass, now - pass.began);
  }
  if (scrubber_->passes() == 0) return;
  const auto& pass = scrubber_->last();
  fill_pass(report.initLast(), pass, pass.ended - pass.began);
  report.getLast().setEndedAgoMs(milliseconds(now - pass.ended));
}

}  // namespace kvtier::daemon
