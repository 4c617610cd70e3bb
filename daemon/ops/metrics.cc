// The metrics of docs/metrics.md.
#include <prometheus/text_serializer.h>

#include <limits>
#include <map>
#include <sstream>

#include "core/base/shown.h"
#include "daemon/ops/scrape.h"

namespace kvtier::daemon::ops {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;
using View = Snapshot::NamespaceView;

class Families {
 public:
  // Values of one name may come with different labels, one call each, one after the other.
  void gauge(const char* name, const char* help, double value, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.gauge.value = value;
    add(name, help, MetricType::Gauge, std::move(metric));
  }
  void gauge(const char* name, const char* help, std::uint64_t value, Labels labels = {}) {
    gauge(name, help, static_cast<double>(value), std::move(labels));
  }
  void counter(const char* name, const char* help, double value, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.counter.value = value;
    add(name, help, MetricType::Counter, std::move(metric));
  }
  void counter(const char* name, const char* help, std::uint64_t value, Labels labels = {}) {
    counter(name, help, static_cast<double>(value), std::move(labels));
  }
  // `unit`: seconds in one of the histogram's. `first`: the first bucket shown; those below are in
  // it.
  void histogram(const char* name, const char* help, const Histogram& from, double unit,
                 Labels labels = {}, std::size_t first = 0) {
    ClientMetric metric;
    metric.label = std::move(labels);
    std::uint64_t below = 0;
    for (std::size_t bucket = 0; bucket < kLog2Buckets; ++bucket) {
      below += from.counts()[bucket];
      if (bucket < first) continue;
      // Times are cut to whole units: what is counted as 2^b - 1 took less than 2^b.
      const double bound = unit * static_cast<double>(std::uint64_t{1} << bucket);
      metric.histogram.bucket.push_back({below, bound});
    }
    metric.histogram.sample_count = from.total();
    metric.histogram.sample_sum = static_cast<double>(from.sum()) * unit;
    add(name, help, MetricType::Histogram, std::move(metric));
  }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  void add(const char* name, const char* help, MetricType type, ClientMetric metric) {
    const auto [at, fresh] = by_name_.try_emplace(name, families_.size());
    if (fresh) families_.push_back({name, help, type, {}});
    families_[at->second].metric.push_back(std::move(metric));
  }
  std::vector<MetricFamily> families_;
  std::map<std::string, std::size_t> by_name_;
};

constexpr double kMicroseconds = 1e-6;
constexpr double kSeconds = 1;
constexpr std::size_t kFrom16us = 4;

Labels of_tier(Tier tier) {
  return {{"tier", name(tier)}};
}

Labels of_namespace(const View& ns) {
  return {{"namespace", ns.id.substr(0, 12)},
          {"model", shown(ns.model, kTextMax)},
          {"tenant", shown(ns.tenant, kTextMax)}};
}

Labels of_namespace(const View& ns, Tier tier) {
  Labels labels = of_namespace(ns);
  labels.push_back({"tier", name(tier)});
  return labels;
}

void add_tiers(Families& f, const Snapshot& s) {
  for (const Tier tier : kAllTiers) {
    const auto& view = s.tiers[index_of(tier)];
    const Labels labels = of_tier(tier);
    f.gauge("kvtier_tier_online", "Whether the tier can be used", view.online ? 1.0 : 0.0, labels);
    f.gauge("kvtier_tier_used_bytes", "Records in the tier", view.used_bytes, labels);
    f.gauge("kvtier_tier_reserved_bytes",
            "Slots that clients may fill, quarantined ones too; no client fills a disk's",
            view.reserved_bytes, labels);
    f.gauge("kvtier_tier_taken_bytes", "Extents or segments, taken of the system", view.taken_bytes,
            labels);
    f.gauge("kvtier_tier_capacity_bytes", "The tier's cap", view.cap_bytes, labels);
    f.gauge("kvtier_tier_blocks", "Blocks in the tier", view.blocks, labels);
    f.gauge("kvtier_tier_goes_by_age",
            "Whether the block goes that was used longest ago: by the policy, or since that does "
            "better",
            view.goes_by_age ? 1.0 : 0.0, labels);
    f.counter("kvtier_insertions_total",
              "Blocks that came into the tier, recovered ones too; less all removals: "
              "kvtier_tier_blocks",
              view.insertions, labels);
    for (std::size_t r = 0; r < kRemovals; ++r) {
      Labels why = labels;
      why.push_back({"reason", name(static_cast<Removal>(r))});
      f.counter("kvtier_removals_total", "Blocks that left the tier", view.removals[r], why);
    }
    f.histogram("kvtier_block_lifetime_seconds", "How long blocks that left had been in the tier",
                view.lifetimes, kSeconds, labels);
    f.histogram("kvtier_eviction_idle_seconds", "How long evicted blocks had not been used",
                view.idle, kSeconds, labels);
  }
  f.histogram("kvtier_reuse_gap_seconds", "Time between two uses of a block", s.reuse_gap,
              kSeconds);
}

void add_namespace(Families& f, const View& ns) {
  f.counter("kvtier_looked_up_blocks_total", "Blocks looked up whose fate is known: hits + misses",
            ns.lookups.looked_up(), of_namespace(ns));
  f.counter("kvtier_miss_blocks_total", "Blocks looked up that were not there or not of use",
            ns.lookups.misses, of_namespace(ns));
  f.gauge("kvtier_namespace_blocks", "Blocks of the namespace, in whichever tiers", ns.blocks,
          of_namespace(ns));
  for (const Tier tier : kAllTiersWithRemote) {
    f.counter("kvtier_hit_blocks_total", "Blocks looked up that came from the tier",
              ns.lookups.hits[index_of(tier)], of_namespace(ns, tier));
  }
  for (const Tier tier : kAllTiers) {
    const std::size_t t = index_of(tier);
    const Labels labels = of_namespace(ns, tier);
    f.gauge("kvtier_namespace_used_bytes", "Records of the namespace in the tier", ns.bytes[t],
            labels);
    f.counter("kvtier_namespace_evictions_total", "Blocks of the namespace evicted from the tier",
              ns.evictions[t], labels);
  }
}

void add_namespaces(Families& f, const Snapshot& s) {
  for (const View& ns : s.named) add_namespace(f, ns);
  add_namespace(f, s.others);
  f.gauge("kvtier_namespaces", "Namespaces known", std::uint64_t{s.namespaces});
}

void add_clients(Families& f, const Snapshot& s) {
  for (const Tier tier : kAllTiersWithRemote) {
    const Transfers& loads = s.told.loads[index_of(tier)];
    f.histogram("kvtier_client_load_seconds",
                "From a load's start to its last layer, by the slowest tier of its blocks; "
                "reported by clients",
                loads.us, kMicroseconds, of_tier(tier), kFrom16us);
    f.counter("kvtier_client_loaded_bytes_total",
              "Records loaded, by the slowest tier of each load; reported by clients", loads.bytes,
              of_tier(tier));
  }
  f.histogram("kvtier_client_write_back_seconds",
              "From a write-back's request to its last commit; reported by clients",
              s.told.write_backs.us, kMicroseconds, {}, kFrom16us);
  f.counter("kvtier_client_written_back_bytes_total", "Records written back; reported by clients",
            s.told.write_backs.bytes);
  for (std::size_t r = 0; r < kDropReasons; ++r) {
    f.counter("kvtier_write_backs_dropped_total",
              "Blocks that clients computed and did not write back; reported by clients",
              s.told.dropped[r], {{"reason", kDropReasonNames[r]}});
  }
  f.counter("kvtier_block_faults_total", "Records that did not hold when they were used",
            s.told.header_faults, {{"kind", "header"}});
  f.counter("kvtier_block_faults_total", "", s.told.proof_faults, {{"kind", "proof"}});
  std::uint64_t checksum = s.told.checksum_faults, io = 0;
  for (const auto& disk : s.disks) {
    checksum += disk.corrupt;
    io += disk.failures;
  }
  f.counter("kvtier_block_faults_total", "", checksum, {{"kind", "checksum"}});
  f.counter("kvtier_block_faults_total", "", io, {{"kind", "io"}});
  f.counter("kvtier_commits_refused_total", "Slots whose record was not what its commit said",
            s.refused_commits);
  f.counter("kvtier_double_releases_total", "Releases of leases that were not there",
            s.double_releases);
  f.counter("kvtier_frame_errors_total", "Sessions ended for what they sent", s.frame_errors);
  f.gauge("kvtier_sessions", "Open sessions", std::uint64_t{s.sessions_open});
  f.gauge("kvtier_leases", "Leases, those that wait for their last read too", s.leases);
  f.gauge("kvtier_leased_blocks", "Blocks of leases not ended: looked up, not counted yet",
          s.leased_blocks);
  f.gauge("kvtier_reserved_slots", "Slots that clients may fill", s.reserved_slots);
  f.gauge("kvtier_quarantined_slots", "Slots whose session ended before its process",
          s.quarantined_slots);
}

// Of a daemon that has no remote tier there is none of it.
void add_remote(Families& f, const Snapshot::RemoteView& remote) {
  if (!remote.configured) return;
  const RemoteCounts& counts = remote.counts;
  const storage::RemoteStats& store = remote.store;
  f.gauge("kvtier_remote_online", "Whether records can be read from the remote tier",
          remote.online ? 1.0 : 0.0);
  f.gauge("kvtier_remote_writable", "Whether records can be written to it",
          remote.state == "online" ? 1.0 : 0.0);
  f.counter("kvtier_remote_state_changes_total", "Times that this changed", counts.health_changes);
  f.gauge("kvtier_remote_connections", "Connections that are open and ready",
          std::uint64_t{store.connections});
  f.gauge("kvtier_remote_known_blocks", "Blocks known to be there", remote.blocks);
  f.gauge("kvtier_remote_only_blocks", "Of those, blocks that this host has nowhere else",
          remote.only_there);
  f.counter("kvtier_remote_lookups_total", "Questions for blocks that nothing was known of",
            counts.asked);
  f.counter("kvtier_remote_lookups_late_total", "Of those, that their leases did not wait for",
            counts.late);
  f.counter("kvtier_remote_lookups_failed_total", "And that were refused or not answered",
            counts.failed);
  f.counter("kvtier_remote_lookups_spared_total",
            "Lookups that were not sent: it was not there a moment ago", counts.known_absent);
  f.counter("kvtier_remote_found_blocks_total", "Blocks that lookups found there",
            counts.found_blocks);
  f.histogram("kvtier_remote_lookup_seconds", "From a question to its answer", counts.lookup_us,
              kMicroseconds, {}, kFrom16us);
  f.counter("kvtier_remote_read_blocks_total", "Records read from there", store.records_read);
  f.counter("kvtier_remote_read_bytes_total", "Their bytes", store.bytes_read);
  f.histogram("kvtier_remote_read_seconds", "From a read's request to its end", counts.read_us,
              kMicroseconds, {}, kFrom16us);
  constexpr const char* kFailed = "Reads that brought nothing, by reason";
  f.counter("kvtier_remote_reads_failed_total", kFailed, store.not_found, {{"reason", "gone"}});
  f.counter("kvtier_remote_reads_failed_total", kFailed, store.late, {{"reason", "late"}});
  f.counter("kvtier_remote_reads_failed_total", kFailed, store.corrupt, {{"reason", "corrupt"}});
  f.counter("kvtier_remote_reads_failed_total", kFailed, store.reads_refused,
            {{"reason", "refused"}});
  f.counter("kvtier_remote_reads_failed_total", kFailed, store.read_failures, {{"reason", "io"}});
  f.counter("kvtier_remote_written_blocks_total", "Records written there", counts.written);
  f.counter("kvtier_remote_written_bytes_total", "Their bytes", store.bytes_written);
  f.histogram("kvtier_remote_write_seconds", "From a write's request to its end", counts.write_us,
              kMicroseconds, {}, kFrom16us);
  for (std::size_t r = 0; r < kRemoteDropNames.size(); ++r) {
    f.counter("kvtier_remote_writes_dropped_total", "Blocks that were to go there and did not",
              counts.drops[r], {{"reason", kRemoteDropNames[r]}});
  }
  f.gauge("kvtier_remote_write_queue_blocks", "Blocks that wait to go there, or are on their way",
          remote.queued_blocks);
  f.gauge("kvtier_remote_write_queue_bytes", "Host memory that is held for them",
          remote.queued_bytes);
}

void add_hints(Families& f, const Snapshot& s) {
  each_hint_count(s.hints, [&](HintKind kind, HintOutcome outcome, std::uint64_t blocks) {
    f.counter("kvtier_hints_total", "Blocks that hints named, by what became of them", blocks,
              {{"kind", name(kind)}, {"outcome", name(outcome)}});
  });
  for (const Tier tier : {Tier::device, Tier::host}) {
    const auto& view = s.tiers[index_of(tier)];
    const Labels labels = of_tier(tier);
    f.gauge("kvtier_hint_kept_blocks", "Blocks in the tier that hints keep, or prefer",
            view.hinted_blocks, labels);
    f.gauge("kvtier_hint_kept_bytes", "Their records", view.hinted_bytes, labels);
    f.gauge("kvtier_hint_kept_bytes_max", "What all users' hints together may keep, or prefer",
            view.hinted_bytes_max, labels);
    f.gauge("kvtier_hint_demoted_blocks", "Blocks in the tier that are the first to go",
            view.demoted_blocks, labels);
  }
  f.gauge("kvtier_hint_prefetching_blocks",
          "Blocks that hints asked for and that wait for the disk, or are being read",
          s.prefetching_blocks);
}

void add_events(Families& f, const Snapshot& s) {
  const Snapshot::Events& events = s.events;
  f.gauge("kvtier_events_listening", "Whether events are published", events.listening ? 1.0 : 0.0);
  f.counter("kvtier_event_batches_total", "Batches of events published", events.batches);
  f.counter("kvtier_event_blocks_total", "Blocks in them, once a tier", events.stored,
            {{"event", "stored"}});
  f.counter("kvtier_event_blocks_total", "", events.removed, {{"event", "removed"}});
  f.counter("kvtier_events_lost_total",
            "Changes for which the queue had no room; a walk over all blocks makes up for them",
            events.lost);
  f.counter("kvtier_event_walks_total", "Such walks begun, the one at the start too", events.walks);
  f.counter("kvtier_event_batches_replayed_total", "Batches of answers to subscribers that asked",
            events.replayed);
  f.counter("kvtier_event_snapshots_total", "Of those answers, the ones with all blocks",
            events.snapshots);
  f.gauge("kvtier_event_queue_bytes", "What waits to be published", events.queued_bytes);
  f.gauge("kvtier_event_queue_capacity_bytes", "How much may wait", events.queue_bytes_max);
  f.gauge("kvtier_event_replay_bytes", "Batches kept for replays", events.kept_bytes);
  f.gauge("kvtier_event_subscriptions", "Subscriptions that are open",
          std::uint64_t{events.subscriptions});
}

void add_disks(Families& f, const Snapshot& s) {
  for (const auto& disk : s.disks) {
    const Labels labels{{"directory", shown(disk.directory, kTextMax)}};
    f.gauge("kvtier_disk_online", "Whether the directory can be read", disk.online ? 1.0 : 0.0,
            labels);
    for (const char* state : {"online", "read-only", "late", "offline"}) {
      Labels of = labels;
      of.push_back({"state", state});
      f.gauge("kvtier_disk_state", "1 for what the directory is", disk.state == state ? 1.0 : 0.0,
              of);
    }
    f.gauge("kvtier_disk_used_bytes", "Slots in use", disk.used_bytes, labels);
    f.gauge("kvtier_disk_taken_bytes", "Segments, taken of the file system", disk.taken_bytes,
            labels);
    f.gauge("kvtier_disk_capacity_bytes", "The cap of segments", disk.cap_bytes, labels);
    f.gauge("kvtier_disk_file_bytes", "Allocated under the directory, index included",
            disk.file_bytes, labels);
    f.gauge("kvtier_disk_index_memory_bytes", "Memory of the directory's index",
            disk.index_memory_bytes, labels);
    f.gauge("kvtier_disk_blocks", "Blocks on the disk", disk.blocks, labels);
    f.counter("kvtier_disk_written_bytes_total", "Records written", disk.bytes_written, labels);
    f.counter("kvtier_disk_read_bytes_total", "Records read", disk.bytes_read, labels);
    f.gauge("kvtier_disk_written_per_day_bytes",
            "Bytes written a day, at the rate of the last 24 hours", disk.bytes_written_per_day,
            labels);
    f.counter("kvtier_disk_failures_total", "Reads and writes that the device failed",
              disk.failures, labels);
    f.counter("kvtier_disk_corrupt_records_total", "Records that did not hold when read",
              disk.corrupt, labels);
    f.counter("kvtier_disk_given_up_records_total",
              "Records that a failed sync left in doubt, and that are on disk no more",
              disk.given_up, labels);
    f.gauge("kvtier_disk_bad_bytes",
            "Of places that are not used again: what was written there could not be read",
            disk.bad_bytes, labels);
    f.counter("kvtier_disk_memory_faults_total",
              "Records that held on disk, but not in the memory where they landed",
              disk.memory_faults, labels);
    f.gauge("kvtier_disk_stuck_seconds", "How long no operation has come back while some are due",
            std::chrono::duration<double>(disk.stuck_for).count(), labels);
    f.histogram("kvtier_disk_read_seconds", "Reads, from the control thread and back to it",
                disk.read_us, kMicroseconds, labels, kFrom16us);
    f.histogram("kvtier_disk_write_seconds", "Writes, from the control thread and back to it",
                disk.write_us, kMicroseconds, labels, kFrom16us);
  }
  for (std::size_t r = 0; r < DiskTier::kDropNames.size(); ++r) {
    f.counter("kvtier_disk_writes_dropped_total", "Blocks not written to disk",
              s.disk_counts.drops[r], {{"reason", DiskTier::kDropNames[r]}});
  }
  f.gauge("kvtier_disk_left_out_blocks",
          "Blocks that were to be written since the start, and have not gone to disk",
          s.left_out.blocks);
  f.gauge("kvtier_disk_left_out_in_memory_blocks",
          "Of those, the ones in host memory, which are offered again when they are used",
          s.left_out.in_memory);
  f.gauge("kvtier_disk_write_chance_min",
          "By expected_reuse: the chance to be used again from which on a block is written",
          s.write_chance_min);
  f.counter("kvtier_disk_writes_moved_total", "Writes sent to another disk, theirs being offline",
            s.disk_counts.moved_writes);
  f.gauge("kvtier_disk_write_queue_blocks", "Blocks on their way to disk", s.write_queue_blocks);
  f.gauge("kvtier_disk_write_queue_bytes", "Host memory held by them", s.write_queue_bytes);
  f.gauge("kvtier_orphan_blocks", "Blocks on disk of namespaces known by their id alone",
          s.orphans);
  f.gauge("kvtier_scrub_running", "Whether a scrub is under way", s.scrub.running ? 1.0 : 0.0);
  f.gauge("kvtier_scrub_progress_ratio", "How far the scrub is that is under way",
          s.scrub.progress);
  f.counter("kvtier_scrub_passes_total", "Scrubs ended", s.scrub.passes);
  f.gauge("kvtier_scrub_records", "Records checked by the scrub under way, or the last",
          s.scrub.shown().records);
  f.gauge("kvtier_scrub_corrupt_records", "Of those, records that did not hold",
          s.scrub.shown().corrupt);
}

void add_gpus(Families& f, const Snapshot& s) {
  for (const auto& gpu : s.gpus) {
    const Labels labels{{"gpu", std::to_string(gpu.number)}, {"uuid", to_string(gpu.uuid)}};
    f.gauge("kvtier_gpu_used_bytes", "Records on the GPU", gpu.used_bytes, labels);
    f.gauge("kvtier_gpu_reserved_bytes", "Slots that clients may fill, quarantined ones too",
            gpu.reserved_bytes, labels);
    f.gauge("kvtier_gpu_taken_bytes", "Extents, taken of the GPU's memory", gpu.taken_bytes,
            labels);
    f.gauge("kvtier_gpu_capacity_bytes", "The cap", gpu.cap_bytes, labels);
    f.gauge("kvtier_gpu_blocks", "Blocks on the GPU", gpu.blocks, labels);
  }
}

void add_daemon(Families& f, const Scrape& scrape) {
  const Snapshot& s = *scrape.snapshot;
  f.gauge("kvtier_build_info", "Always 1", 1.0, {{"version", s.version}});
  f.gauge("kvtier_ready", "Whether /readyz says so", scrape.ready ? 1.0 : 0.0);
  f.gauge("kvtier_healthy", "Whether /healthz says so", scrape.sick ? 0.0 : 1.0);
  f.gauge("kvtier_uptime_seconds", "Since the start",
          std::chrono::duration<double>(s.uptime).count());
  f.gauge("kvtier_snapshot_age_seconds", "How old these figures are", scrape.age.count());
  f.gauge("kvtier_index_blocks", "Blocks in the index, and so in the directory", s.blocks);
  f.gauge("kvtier_index_capacity_blocks", "How many it can hold", s.blocks_max);
  f.histogram("kvtier_control_turn_seconds", "Turns of the control loop", s.turns_us,
              kMicroseconds);
  f.gauge("kvtier_control_turn_max_seconds", "The longest turn of the last 30 to 60 seconds",
          std::chrono::duration<double>(s.turn_longest).count());
  f.gauge("kvtier_control_turn_cpu_max_seconds", "The most processor time that one of them used",
          std::chrono::duration<double>(s.turn_longest_cpu).count());
  f.histogram("kvtier_control_lag_seconds", "How late the control loop ran what it was asked to",
              scrape.lag.us(), kMicroseconds);
  f.gauge("kvtier_control_lag_max_seconds", "The greatest of the last 30 to 60 seconds",
          scrape.lag.greatest().count());
  f.counter("kvtier_http_requests_total", "Requests to this listener", scrape.http.requests);
  f.counter("kvtier_http_bad_requests_total", "Of those, refused or cut off",
            scrape.http.bad_requests);
  f.counter("kvtier_http_refused_connections_total",
            "Connections closed because there was no place", scrape.http.refused_connections);
}

void add_process(Families& f, const ProcessStats& p) {
  f.counter("process_cpu_seconds_total", "User and system time", p.cpu_seconds);
  f.gauge("process_start_time_seconds", "Since the epoch", p.start_time_seconds);
  f.gauge("process_resident_memory_bytes", "The tiers' memory that has been touched too",
          p.resident_bytes);
  f.gauge("process_resident_shared_memory_bytes", "Of that, shared: mostly the tiers",
          p.resident_shared_bytes);
  f.gauge("process_virtual_memory_bytes", "Virtual memory", p.virtual_bytes);
  f.gauge("process_open_fds", "Open descriptors", p.open_fds);
  f.gauge("process_max_fds", "How many may be open", p.max_fds);
  f.gauge("process_threads", "Threads", p.threads);
}

}  // namespace

std::string metrics_text(const Scrape& scrape) {
  Families families;
  add_daemon(families, scrape);
  add_tiers(families, *scrape.snapshot);
  add_namespaces(families, *scrape.snapshot);
  add_clients(families, *scrape.snapshot);
  add_hints(families, *scrape.snapshot);
  add_events(families, *scrape.snapshot);
  add_disks(families, *scrape.snapshot);
  add_gpus(families, *scrape.snapshot);
  add_remote(families, scrape.snapshot->remote);
  add_process(families, scrape.process);
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families.take());
  return out.str();
}

}  // namespace kvtier::daemon::ops
