#include "client/session/thread/reports.h"

#include <utility>

#include "client/session/limits.h"
#include "client/session/thread/wire_values.h"

namespace kvtier::session {
namespace {

// What has come since it was reported last.
std::uint64_t since(const Counters::Counter& counter, std::uint64_t& reported) {
  const std::uint64_t total = Counters::get(counter);
  return total - std::exchange(reported, total);
}

}  // namespace

void Reports::note_bad(const Key& key) {
  const std::lock_guard lock(mutex_);
  if (bad_keys_.size() < kBadKeysMax) bad_keys_.push_back(key);
}

void Reports::begin(Clock::time_point now) {
  next_ = now + conversation_.connection()->lease_time() / 3;
}

void Reports::send(Clock::time_point now) {
  soon_ = false;
  begin(now);
  conversation_.tell([&](wire::Message::Builder m) { fill(m.initReport()); });
}

void Reports::fill(wire::Report::Builder out) {
  std::vector<Key> bad;
  {
    const std::lock_guard lock(mutex_);
    bad.swap(bad_keys_);
  }
  std::vector<std::pair<std::uint32_t, std::uint64_t>> missed;
  for (const auto& ns : namespaces_.all()) {
    if (ns->state != NamespaceEntry::State::open) continue;
    if (const std::uint64_t blocks = ns->missed.exchange(0))
      missed.emplace_back(ns->handle, blocks);
  }
  out.setHeaderFaults(since(counters_.header_faults, reported_.header_faults));
  out.setProofFaults(since(counters_.proof_faults, reported_.proof_faults));
  out.setChecksumFaults(since(counters_.checksum_faults, reported_.checksum_faults));
  auto dropped = out.initDropped(kDropReasons);
  for (unsigned i = 0; i < kDropReasons; ++i)
    dropped.set(i, since(counters_.dropped[i], reported_.dropped[i]));
  auto list = out.initMissed(static_cast<unsigned>(missed.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    list[i].setNs(missed[i].first);
    list[i].setBlocks(missed[i].second);
  }
  auto keys = out.initBadKeys(static_cast<unsigned>(bad.size()));
  for (unsigned i = 0; i < keys.size(); ++i) keys.set(i, data(bad[i]));
  // One that has no remote tier may be older than that tier.
  const unsigned tiers = has_remote_ ? kTiersWithRemote : kTiers;
  auto loads = out.initLoads(tiers);
  for (unsigned t = 0; t < tiers; ++t)
    fill_timing(counters_.loads[t], reported_.loads[t], loads[t]);
  fill_timing(counters_.write_backs, reported_.write_backs, out.initWriteBacks());
}

void Reports::fill_timing(const Timing& timing, ReportedTiming& told,
                          wire::Report::Timing::Builder to) {
  auto buckets = to.initBuckets(static_cast<unsigned>(timing.buckets.size()));
  for (unsigned i = 0; i < buckets.size(); ++i)
    buckets.set(i, since(timing.buckets[i], told.buckets[i]));
  to.setSumUs(since(timing.sum_us, told.sum_us));
  to.setBytes(since(timing.bytes, told.bytes));
}

}  // namespace kvtier::session
