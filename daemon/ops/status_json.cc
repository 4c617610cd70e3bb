#include <nlohmann/json.hpp>

#include "core/base/shown.h"
#include "daemon/ops/scrape.h"

namespace kvtier::daemon::ops {
namespace {

using Json = nlohmann::json;

Json by_tier(const std::array<std::uint64_t, kTiers>& values) {
  Json json;
  for (const Tier tier : kAllTiers) json[name(tier)] = values[index_of(tier)];
  return json;
}

Json of(const Lookups& lookups) {
  Json json;
  for (const Tier tier : kAllTiersWithRemote) json[name(tier)] = lookups.hits[index_of(tier)];
  json["misses"] = lookups.misses;
  json["looked_up"] = lookups.looked_up();
  return json;
}

Json of(Tier tier, const Snapshot& s) {
  const auto& view = s.tiers[index_of(tier)];
  Json removals;
  for (std::size_t r = 0; r < kRemovals; ++r)
    removals[name(static_cast<Removal>(r))] = view.removals[r];
  return {{"tier", name(tier)},
          {"online", view.online},
          {"note", view.note},
          {"goes_by_age", view.goes_by_age},
          {"used_bytes", view.used_bytes},
          {"reserved_bytes", view.reserved_bytes},
          {"taken_bytes", view.taken_bytes},
          {"cap_bytes", view.cap_bytes},
          {"blocks", view.blocks},
          {"hits", s.lookups.hits[index_of(tier)]},
          {"insertions", view.insertions},
          {"hinted_blocks", view.hinted_blocks},
          {"hinted_bytes", view.hinted_bytes},
          {"hinted_bytes_max", view.hinted_bytes_max},
          {"demoted_blocks", view.demoted_blocks},
          {"removals", removals}};
}

Json of(const Snapshot::NamespaceView& ns) {
  return {{"id", ns.id},
          {"model", shown(ns.model, kTextMax)},
          {"adapter", shown(ns.adapter, kTextMax)},
          {"tenant", shown(ns.tenant, kTextMax)},
          {"format", ns.format},
          {"blocks", ns.blocks},
          {"bytes", by_tier(ns.bytes)},
          {"evictions", by_tier(ns.evictions)},
          {"lookups", of(ns.lookups)}};
}

Json of(const Snapshot::SessionView& session) {
  return {{"id", session.id},
          {"pid", session.process},
          {"name", shown(session.name, kTextMax)},
          {"connected_s", session.connected_for.count() / 1000},
          {"silent_s", session.silent_for.count() / 1000},
          {"leases", session.leases},
          {"leased_blocks", session.leased_blocks},
          {"namespaces", session.namespaces}};
}

Json of(const Snapshot::DiskView& disk) {
  return {{"directory", shown(disk.directory, kTextMax)},
          {"online", disk.online},
          {"state", disk.state},
          {"why", shown(disk.why, 4 * kTextMax)},
          {"used_bytes", disk.used_bytes},
          {"taken_bytes", disk.taken_bytes},
          {"cap_bytes", disk.cap_bytes},
          {"file_bytes", disk.file_bytes},
          {"index_memory_bytes", disk.index_memory_bytes},
          {"blocks", disk.blocks},
          {"bytes_written", disk.bytes_written},
          {"bytes_written_per_day", disk.bytes_written_per_day},
          {"bytes_read", disk.bytes_read},
          {"failures", disk.failures},
          {"corrupt", disk.corrupt},
          {"given_up", disk.given_up},
          {"bad_bytes", disk.bad_bytes}};
}

Json of(const Snapshot::GpuView& gpu) {
  return {{"uuid", kvtier::to_string(gpu.uuid)},
          {"number", gpu.number},
          {"name", gpu.name},
          {"used_bytes", gpu.used_bytes},
          {"reserved_bytes", gpu.reserved_bytes},
          {"taken_bytes", gpu.taken_bytes},
          {"cap_bytes", gpu.cap_bytes},
          {"blocks", gpu.blocks}};
}

Json of(const Snapshot::Events& events) {
  if (!events.configured) return {};
  return {{"listening", events.listening},
          {"batches", events.batches},
          {"stored", events.stored},
          {"removed", events.removed},
          {"lost", events.lost},
          {"walks", events.walks},
          {"replayed", events.replayed},
          {"snapshots", events.snapshots},
          {"queued_bytes", events.queued_bytes},
          {"queue_bytes_max", events.queue_bytes_max},
          {"kept_bytes", events.kept_bytes},
          {"subscriptions", events.subscriptions}};
}

Json of(const Snapshot::RemoteView& remote) {
  if (!remote.configured) return {};
  Json dropped;
  for (std::size_t r = 0; r < kRemoteDropNames.size(); ++r)
    dropped[kRemoteDropNames[r]] = remote.counts.drops[r];
  return {{"url", shown(remote.url, kTextMax)},
          {"state", remote.state},
          {"online", remote.online},
          {"why", shown(remote.why, 4 * kTextMax)},
          {"blocks", remote.blocks},
          {"only_there_blocks", remote.only_there},
          {"lookups", remote.counts.asked},
          {"found_blocks", remote.counts.found_blocks},
          {"late_lookups", remote.counts.late},
          {"stale_blocks", remote.counts.stale},
          {"blocks_read", remote.store.records_read},
          {"bytes_read", remote.store.bytes_read},
          {"blocks_written", remote.counts.written},
          {"bytes_written", remote.store.bytes_written},
          {"corrupt", remote.store.corrupt},
          {"late", remote.store.late},
          {"dropped_writes", std::move(dropped)},
          {"write_queue_blocks", remote.queued_blocks}};
}

Json history(const std::vector<History::Point>& points) {
  Json list = Json::array();
  for (const auto& point : points) {
    Json json = of(point.lookups);
    json["at"] = point.at;
    json["used_bytes"] = by_tier(point.used_bytes);
    list.push_back(std::move(json));
  }
  return {{"every_s", kHistoryEvery.count()}, {"points", std::move(list)}};
}

template <class Of>
Json list_of(const std::vector<Of>& items) {
  Json list = Json::array();
  for (const Of& item : items) list.push_back(of(item));
  return list;
}

}  // namespace

std::string status_json(const Scrape& scrape) {
  const Snapshot& s = *scrape.snapshot;
  Json tiers = Json::array();
  for (const Tier tier : kAllTiers) tiers.push_back(of(tier, s));
  Json problems = Json::array();
  for (const Problem& problem : scrape.problems)
    problems.push_back({{"at", problem.at}, {"level", problem.level}, {"text", problem.text}});
  const Json json{{"version", s.version},
                  {"boot_id", to_hex(s.boot_id)},
                  {"uptime_s", s.uptime.count() / 1000},
                  {"age_s", scrape.age.count()},
                  {"ready", scrape.ready},
                  {"sick", scrape.sick ? Json(*scrape.sick) : Json()},
                  {"tiers", std::move(tiers)},
                  {"lookups", of(s.lookups)},
                  {"namespaces", list_of(s.largest)},
                  {"namespaces_known", s.namespaces},
                  {"sessions", list_of(s.sessions)},
                  {"sessions_open", s.sessions_open},
                  {"disks", list_of(s.disks)},
                  {"gpus", list_of(s.gpus)},
                  {"leases", s.leases},
                  {"leased_blocks", s.leased_blocks},
                  {"reserved_slots", s.reserved_slots},
                  {"quarantined_slots", s.quarantined_slots},
                  {"blocks", s.blocks},
                  {"blocks_max", s.blocks_max},
                  {"orphans", s.orphans},
                  {"faults", s.faults},
                  {"dropped_write_backs", s.told.dropped_in_all()},
                  {"dropped_disk_writes", s.disk_counts.dropped_writes},
                  {"left_out_blocks", s.left_out.blocks},
                  {"left_out_in_memory_blocks", s.left_out.in_memory},
                  {"write_chance_min", s.write_chance_min},
                  {"write_queue_blocks", s.write_queue_blocks},
                  {"prefetching_blocks", s.prefetching_blocks},
                  {"scrub",
                   {{"running", s.scrub.running},
                    {"progress", s.scrub.progress},
                    {"passes", s.scrub.passes},
                    {"records", s.scrub.shown().records},
                    {"corrupt", s.scrub.shown().corrupt}}},
                  {"events", of(s.events)},
                  {"remote", of(s.remote)},
                  {"control_lag_max_s", scrape.lag.greatest().count()},
                  {"control_turn_max_s", std::chrono::duration<double>(s.turn_longest).count()},
                  {"resident_bytes", scrape.process.resident_bytes},
                  {"history", history(scrape.history)},
                  {"problems", std::move(problems)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvtier::daemon::ops
