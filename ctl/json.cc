#include "ctl/json.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "core/base/cuda_driver.h"
#include "kvtier/hint.h"
#include "kvtier/tier.h"

namespace kvtier::ctl {

std::string hex(capnp::Data::Reader data) {
  std::string text;
  char digits[3];
  for (const kj::byte b : data) {
    std::snprintf(digits, sizeof digits, "%02x", b);
    text += digits;
  }
  return text;
}

std::string tier_name(std::uint8_t tier) {
  return tier < kTiersWithRemote ? name(static_cast<Tier>(tier)) : "tier " + std::to_string(tier);
}

Json tiers_of(std::uint8_t bits) {
  Json tiers = Json::array();
  for (const Tier tier : kAllTiersWithRemote) {
    if (TierSet{bits}.has(tier)) tiers.push_back(name(tier));
  }
  return tiers;
}

namespace {

Json to_json(wire::Status::Tier::Reader tier) {
  Json json;
  json["tier"] = tier_name(tier.getTier());
  json["online"] = tier.getOnline();
  json["used_bytes"] = tier.getUsedBytes();
  json["reserved_bytes"] = tier.getReservedBytes();
  json["taken_bytes"] = tier.getTakenBytes();
  json["cap_bytes"] = tier.getCapBytes();
  json["blocks"] = tier.getBlocks();
  json["hits"] = tier.getHits();
  json["insertions"] = tier.getInsertions();
  json["evictions"] = tier.getEvictions();
  json["failures"] = tier.getFailures();
  json["dropped_writes"] = tier.getDroppedWrites();
  json["hit_bytes"] = tier.getHitBytes();
  json["inserted_bytes"] = tier.getInsertedBytes();
  json["pinned_blocks"] = tier.getPinnedBlocks();
  json["pinned_bytes"] = tier.getPinnedBytes();
  json["pinned_bytes_max"] = tier.getPinnedBytesMax();
  json["hinted_blocks"] = tier.getHintedBlocks();
  json["hinted_bytes"] = tier.getHintedBytes();
  json["hinted_bytes_max"] = tier.getHintedBytesMax();
  json["demoted_blocks"] = tier.getDemotedBlocks();
  json["note"] = text_of(tier.getNote());
  return json;
}

Json to_json(wire::Status::Gpu::Reader gpu) {
  Json json;
  GpuUuid uuid{};
  if (gpu.getUuid().size() == uuid.size())
    std::memcpy(uuid.data(), gpu.getUuid().begin(), uuid.size());
  json["gpu"] = gpu.getNumber();
  json["uuid"] = to_string(uuid);
  json["name"] = text_of(gpu.getName());
  json["used_bytes"] = gpu.getUsedBytes();
  json["reserved_bytes"] = gpu.getReservedBytes();
  json["taken_bytes"] = gpu.getTakenBytes();
  json["cap_bytes"] = gpu.getCapBytes();
  json["blocks"] = gpu.getBlocks();
  return json;
}

Json to_json(wire::Status::Disk::Reader disk) {
  Json json;
  json["directory"] = text_of(disk.getDirectory());
  json["online"] = disk.getOnline();
  // A daemon of an earlier version does not say.
  json["state"] = disk.hasState() ? text_of(disk.getState())
                                  : std::string(disk.getOnline() ? "online" : "offline");
  json["why"] = text_of(disk.getWhy());
  json["used_bytes"] = disk.getUsedBytes();
  json["taken_bytes"] = disk.getTakenBytes();
  json["cap_bytes"] = disk.getCapBytes();
  json["capacity_bytes"] = disk.getCapacityBytes();
  json["file_bytes"] = disk.getFileBytes();
  json["blocks"] = disk.getBlocks();
  json["bytes_read"] = disk.getBytesRead();
  json["bytes_written"] = disk.getBytesWritten();
  json["bytes_written_per_day"] = disk.getBytesWrittenPerDay();
  json["failures"] = disk.getFailures();
  json["corrupt"] = disk.getCorrupt();
  json["given_up"] = disk.getGivenUp();
  json["bad_bytes"] = disk.getBadBytes();
  return json;
}

// By kind, and in it by outcome: those that have come.
Json hints_of(wire::Status::Reader status) {
  Json json = Json::object();
  for (const auto count : status.getHints()) {
    const std::size_t kind = count.getKind();
    if (kind < kHintKinds)
      json[kHintKindNames[kind]][text_of(count.getOutcome())] = count.getBlocks();
  }
  return json;
}

// Null where none are published.
Json events_of(wire::Status::Reader status) {
  if (!status.hasEvents()) return {};
  const auto events = status.getEvents();
  Json json;
  json["listening"] = events.getListening();
  json["batches"] = events.getBatches();
  json["stored"] = events.getStored();
  json["removed"] = events.getRemoved();
  json["lost"] = events.getLost();
  json["walks"] = events.getWalks();
  json["replayed"] = events.getReplayed();
  json["snapshots"] = events.getSnapshots();
  json["queued_bytes"] = events.getQueuedBytes();
  json["queue_bytes_max"] = events.getQueueBytesMax();
  json["kept_bytes"] = events.getKeptBytes();
  json["subscriptions"] = events.getSubscriptions();
  return json;
}

// Null where there is none.
Json remote_of(wire::Status::Reader status) {
  if (!status.hasRemote()) return {};
  const auto remote = status.getRemote();
  Json json;
  json["url"] = text_of(remote.getUrl());
  json["state"] = text_of(remote.getState());
  json["online"] = remote.getOnline();
  json["why"] = text_of(remote.getWhy());
  json["blocks"] = remote.getBlocks();
  json["only_there_blocks"] = remote.getOnlyThere();
  json["hits"] = remote.getHits();
  json["hit_bytes"] = remote.getHitBytes();
  json["lookups"] = remote.getLookups();
  json["late_lookups"] = remote.getLookupsLate();
  json["found_blocks"] = remote.getFound();
  json["blocks_read"] = remote.getBlocksRead();
  json["bytes_read"] = remote.getBytesRead();
  json["blocks_written"] = remote.getBlocksWritten();
  json["bytes_written"] = remote.getBytesWritten();
  json["stale_blocks"] = remote.getGone();
  json["corrupt"] = remote.getCorrupt();
  json["late"] = remote.getLate();
  json["dropped_writes"] = remote.getDroppedWrites();
  json["write_queue_blocks"] = remote.getQueuedBlocks();
  json["connections"] = remote.getConnections();
  return json;
}

Json to_json(wire::ScrubReport::Pass::Reader pass) {
  Json json;
  json["records"] = pass.getRecords();
  json["bytes"] = pass.getBytes();
  json["corrupt"] = pass.getCorrupt();
  json["skipped"] = pass.getSkipped();
  json["duration_ms"] = pass.getDurationMs();
  return json;
}

}  // namespace

// By tier; null where there is no bound.
Json bytes_by_tier(capnp::List<std::uint64_t>::Reader bytes) {
  Json json = Json::object();
  for (unsigned t = 0; t < std::min<unsigned>(bytes.size(), kTiersWithRemote); ++t) {
    const bool bound = bytes[t] != ~std::uint64_t{0};
    json[name(static_cast<Tier>(t))] = bound ? Json(bytes[t]) : Json();
  }
  return json;
}

Json to_json(wire::Tenant::Reader tenant) {
  Json json;
  json["tenant"] = text_of(tenant.getName());
  json["isolated"] = tenant.getIsolated();
  json["namespaces"] = tenant.getNamespaces();
  json["used_bytes"] = bytes_by_tier(tenant.getUsedBytes());
  json["quota_bytes"] = bytes_by_tier(tenant.getQuotaBytes());
  json["guaranteed_bytes"] = bytes_by_tier(tenant.getGuaranteedBytes());
  return json;
}

Json to_json(wire::Peer::Reader peer) {
  Json json;
  json["session"] = peer.getSession();
  json["name"] = text_of(peer.getName());
  json["pid"] = peer.getPid();
  json["uid"] = peer.getUid();
  json["gid"] = peer.getGid();
  json["read_only"] = peer.getReadOnly();
  json["admin"] = peer.getAdmin();
  json["leases"] = peer.getLeases();
  json["leased_blocks"] = peer.getLeasedBlocks();
  json["reserved_slots"] = peer.getReservedSlots();
  json["unsent_bytes"] = peer.getUnsentBytes();
  return json;
}

Json to_json(wire::Status::Reader status) {
  Json json;
  json["version"] = text_of(status.getVersion());
  json["boot_id"] = hex(status.getBootId());
  json["pid"] = status.getPid();
  json["uptime_ms"] = status.getUptimeMs();
  json["tiers"] = Json::array();
  std::uint64_t hits = 0;
  for (const auto tier : status.getTiers()) {
    json["tiers"].push_back(to_json(tier));
    hits += tier.getHits();
  }
  json["gpus"] = Json::array();
  for (const auto gpu : status.getGpus()) json["gpus"].push_back(to_json(gpu));
  json["disks"] = Json::array();
  for (const auto disk : status.getDisks()) json["disks"].push_back(to_json(disk));
  json["orphans"] = status.getOrphans();
  json["blocks"] = status.getBlocks();
  json["blocks_max"] = status.getBlocksMax();
  json["namespaces"] = status.getNamespaces();
  json["sessions"] = status.getSessions();
  json["leases"] = status.getLeases();
  json["reserved_slots"] = status.getReservedSlots();
  json["quarantined_slots"] = status.getQuarantinedSlots();
  json["looked_up"] = status.getLookedUp();
  json["hits"] = hits + status.getRemote().getHits();
  json["misses"] = status.getMisses();
  json["faults"] = status.getFaults();
  json["dropped_write_backs"] = status.getDroppedWriteBacks();
  json["double_releases"] = status.getDoubleReleases();
  json["frame_errors"] = status.getFrameErrors();
  json["turned_away"] = status.getTurnedAway();
  json["denied"] = status.getDenied();
  json["refused_reports"] = status.getRefusedReports();
  json["hints"] = hints_of(status);
  json["prefetching_blocks"] = status.getPrefetching();
  json["events"] = events_of(status);
  json["remote"] = remote_of(status);
  json["tenants"] = Json::array();
  for (const auto tenant : status.getTenants()) json["tenants"].push_back(to_json(tenant));
  json["peers"] = Json::array();
  for (const auto peer : status.getPeers()) json["peers"].push_back(to_json(peer));
  return json;
}

Json to_json(wire::ScrubReport::Reader report) {
  Json json;
  json["running"] = report.getRunning();
  json["passes"] = report.getPasses();
  if (report.getRunning()) json["current"] = to_json(report.getCurrent());
  if (report.getPasses() != 0) {
    json["last"] = to_json(report.getLast());
    json["last"]["ended_ago_ms"] = report.getLast().getEndedAgoMs();
  }
  return json;
}

}  // namespace kvtier::ctl
