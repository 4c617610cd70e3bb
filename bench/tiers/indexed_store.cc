#include "bench/tiers/indexed_store.h"

#include <algorithm>
#include <random>

#include "bench/support/records.h"
#include "bench/tiers/sparse_store.h"
#include "core/record/digest.h"
#include "storage/index/index.h"
#include "storage/index/segments.h"
#include "storage/index/store_directory.h"

namespace kvtier::bench {

using namespace storage;

namespace {

constexpr std::uint32_t kPrefixBlocks = 125;
constexpr std::uint32_t kBatch = 4096;
constexpr std::size_t kRun = 1'000'000;

void commit_sorted(Index& index, std::vector<DiskEntry>& run) {
  std::sort(run.begin(), run.end(),
            [](const DiskEntry& a, const DiskEntry& b) { return a.identity.key < b.identity.key; });
  Index::Batch batch;
  for (std::size_t i = 0; i < run.size(); ++i) {
    batch.put(run[i]);
    // Half of the prefixes have been used since they were written.
    if (run[i].last_access % 2 == 0) batch.touch(run[i].identity.key, run[i].last_access);
    if (i % kBatch == kBatch - 1 || i + 1 == run.size()) need(index.commit(batch));
  }
  run.clear();
}

// Prefix after prefix. Committed in sorted runs: the database then has the levels of one that grew
// for days, but is made in a minute.
void fill_index(Index& index, const NamespaceId& ns, std::uint32_t blocks) {
  const auto places = places_of(blocks);
  const std::uint32_t per_segment = slots_per_segment(kIndexSegmentBytes, kSmallestRecord);
  std::vector<DiskEntry> run;
  Key parent;
  for (std::uint32_t i = 0; i < blocks; ++i) {
    DiskEntry entry;
    entry.identity = {ns, key_of_number(i), parent, i % kPrefixBlocks};
    entry.at = location_of_place(places[i], per_segment);
    entry.record_bytes = kSmallestRecord;
    entry.last_access = 1 + mixed(i / kPrefixBlocks) % blocks;
    parent = (i + 1) % kPrefixBlocks == 0 ? Key{} : entry.identity.key;
    run.push_back(entry);
    if (run.size() == kRun || i + 1 == blocks) commit_sorted(index, run);
  }
}

}  // namespace

std::vector<std::uint32_t> places_of(std::uint32_t blocks) {
  std::vector<std::uint32_t> places(blocks);
  for (std::uint32_t i = 0; i < blocks; ++i) places[i] = i;
  std::shuffle(places.begin(), places.end(), std::mt19937_64(1));
  return places;
}

Key key_of_number(std::uint64_t number) {
  return {xxh3_128(std::as_bytes(std::span(&number, 1)))};
}

void make_indexed_store(const RecordStoreOptions& options, std::uint32_t blocks) {
  const auto directory = need(StoreDirectory::open(options));
  const std::uint32_t per_segment = slots_per_segment(kIndexSegmentBytes, kSmallestRecord);
  for (std::uint32_t segment = 0; segment * std::uint64_t{per_segment} < blocks; ++segment) {
    (void)make_sparse_segment(directory, segment, kIndexSegmentBytes, kSmallestRecord);
  }
  const Namespace ns = namespace_of_records(kSmallestRecord);
  const auto index = need(Index::open({.directory = directory.index(),
                                       .store = directory.id(),
                                       .bytes_max = index_capacity_bytes(options)}));
  Index::Batch batch;
  batch.put_namespace(id_of(ns), encode(ns));
  need(index->commit(batch));
  fill_index(*index, id_of(ns), blocks);
  need(index->mark_complete());
}

}  // namespace kvtier::bench
