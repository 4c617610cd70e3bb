// A restart of the disk tier: what kvtierd does between its start and its first answer.
#include <array>
#include <stdexcept>

#include "bench/support/records.h"
#include "bench/tiers/commands.h"
#include "bench/tiers/indexed_store.h"
#include "bench/tiers/sparse_store.h"
#include "core/base/units.h"
#include "daemon/cache/block_cache.h"

namespace kvtier::bench {

using namespace storage;

double restart_seconds(std::uint32_t blocks, const std::filesystem::path& parent) {
  const ScratchDirectory scratch(parent);
  const std::uint32_t per_segment = slots_per_segment(kIndexSegmentBytes, kSmallestRecord);
  const auto store_options =
      sparse_options(scratch.path() / "disk", kIndexSegmentBytes, blocks / per_segment + 1);
  make_indexed_store(store_options, blocks);

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
