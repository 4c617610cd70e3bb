// A restart of the disk tier: what kvtierd does between its start and its first answer.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <stdexcept>

#include "bench/support/records.h"
#include "bench/tiers/commands.h"
#include "bench/tiers/sparse_store.h"
#include "core/base/fd.h"
#include "core/base/units.h"
#include "core/record/digest.h"
#include "daemon/cache/block_cache.h"
#include "storage/index/index.h"
#include "storage/index/segments.h"
#include "storage/index/store_directory.h"

namespace kvtier::bench {
namespace {

using namespace storage;

constexpr std::uint64_t kIndexSegmentBytes = 1_GiB;
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

// Prefix after prefix; the places are those of a disk that has seen evictions, and so at random.
// Committed in sorted runs: the database then has the levels of one that grew for days, but is made
// in a minute.
void fill_index(Index& index, const NamespaceId& ns, std::uint32_t blocks) {
  std::vector<std::uint32_t> places(blocks);
  for (std::uint32_t i = 0; i < blocks; ++i) places[i] = i;
  std::shuffle(places.begin(), places.end(), std::mt19937_64(1));
  const std::uint32_t per_segment = slots_per_segment(kIndexSegmentBytes, kSmallestRecord);
  std::vector<DiskEntry> run;
  Key parent;
  for (std::uint32_t i = 0; i < blocks; ++i) {
    DiskEntry entry;
    const std::uint64_t number = i;
    entry.identity = {
        ns, {xxh3_128(std::as_bytes(std::span(&number, 1)))}, parent, i % kPrefixBlocks};
    entry.at = {places[i] / per_segment, places[i] % per_segment};
    entry.record_bytes = kSmallestRecord;
    entry.last_access = 1 + mixed(i / kPrefixBlocks) % blocks;
    parent = (i + 1) % kPrefixBlocks == 0 ? Key{} : entry.identity.key;
    run.push_back(entry);
    if (run.size() == kRun || i + 1 == blocks) commit_sorted(index, run);
  }
}

void make_store(const RecordStoreOptions& options, std::uint32_t blocks) {
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

}  // namespace

double restart_seconds(std::uint32_t blocks, const std::filesystem::path& parent) {
  const ScratchDirectory scratch(parent);
  const std::uint32_t per_segment = slots_per_segment(kIndexSegmentBytes, kSmallestRecord);
  const auto store_options =
      sparse_options(scratch.path() / "disk", kIndexSegmentBytes, blocks / per_segment + 1);
  make_store(store_options, blocks);

  const auto begin = std::chrono::steady_clock::now();
  const auto store = need(open_record_store(store_options, [](const std::function<void()>&) {}));
  auto directory = need(DirectoryWriter::create(blocks, std::array<std::byte, 16>{}));
  const auto host = make_memfd_extents(Tier::host, {});
  daemon::BlockCache::Options options;
  options.blocks_max = blocks;
  options.host = {64_MiB, 64_MiB};
  options.disk.segments_bytes = segment_capacity_bytes(store_options);
  options.disk.segment_bytes = kIndexSegmentBytes;
  daemon::BlockCache cache(options, {{}, host.get(), {{store.get(), {}}}, &directory});
  need(cache.recover());
  const double seconds = seconds_since(begin);
  if (cache.catalogue().counts(Tier::disk).blocks != blocks) {
    throw std::runtime_error("the restart lost blocks");
  }
  store->close();
  return seconds;
}

}  // namespace kvtier::bench
