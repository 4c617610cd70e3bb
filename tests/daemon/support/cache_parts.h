// What stands below BlockCache, each part by itself: a catalogue, real memory, a disk tier over
// FakeStores, and room in them. Wired as BlockCache does it, without leases, loans or commits.
#pragma once

#include <deque>

#include "daemon/cache/room/room.h"
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {

struct CacheParts {
  explicit CacheParts(const CacheSizes& sizes = {})
      : options(TestCache::options(sizes)),
        stores(sizes.disks),
        device_memory(storage::make_memfd_extents(Tier::device, {})),
        host_memory(storage::make_memfd_extents(Tier::host, {})),
        directory(DirectoryWriter::create(sizes.blocks_max, std::array<std::byte, 16>{}).value()),
        catalogue(sizes.blocks_max, directory, options.tenants),
        memory({options.device, options.host}, {{device_memory.get()}, host_memory.get(), {}},
               catalogue.tenants()),
        disk(options.disk, TestCache::ports(stores), catalogue, memory.host()),
        remote(options.remote, nullptr, catalogue),
        placements(catalogue, memory, disk, remote),
        eviction(catalogue, placements),
        emptying(catalogue, memory, eviction, later),
        room(catalogue, memory, disk, placements, eviction, emptying) {
    catalogue.on_evictable = [this](Tier tier, Place at, TenantId tenant, bool evictable,
                                    std::uint32_t count) {
      if (tier == Tier::disk) return disk.set_evictable(at, evictable, count);
      memory.of(tier, at).set_evictable(at, tenant, evictable, count);
    };
    disk.on_unheld = [this](BlockId id) { placements.settle(id); };
    memory.host().on_created = [this](storage::Extent& extent) {
      for (std::size_t d = 0; d < stores.size(); ++d) (void)stores[d].register_extent(extent);
    };
  }

  std::uint16_t open(const Namespace& ns) { return catalogue.open_namespace(encode(ns)).value(); }
  const KnownNamespace& known(std::uint16_t ns) { return catalogue.namespaces()[ns]; }
  std::vector<TestBlock> prefix(std::uint16_t ns, std::size_t blocks, Token first) {
    return prefix_of(known(ns).id, blocks, first);
  }
  // Seals the block's record in a slot of its own; kNoBlock where there is no room.
  BlockId put(std::uint16_t ns, const TestBlock& block, Tier tier = Tier::host) {
    MemoryTier& into = memory.of(tier, std::uint32_t{0});
    const auto at = room.slot(into, known(ns).tenant, known(ns).layout.record_bytes);
    if (!at) return kNoBlock;
    into.table(*at).set_reserved(at->slot, {1});
    fill_record(into.slot(*at), known(ns).layout, block);
    BlockId id = catalogue.find(ns, block.key());
    if (id == kNoBlock) {
      id = catalogue.add(ns, block.key(), block.identity.parent, block.identity.block_index);
      catalogue.set_last_access(id, catalogue.tick());
    }
    placements.seal(id, into, *at, block.identity.parent);
    return id;
  }
  std::vector<BlockId> put_all(std::uint16_t ns, std::span<const TestBlock> blocks) {
    std::vector<BlockId> ids;
    for (const TestBlock& block : blocks) ids.push_back(put(ns, block));
    return ids;
  }
  // The block is on disk, and nowhere else.
  BlockId put_on_disk(std::uint16_t ns, const TestBlock& block) {
    const BlockId id = put(ns, block);
    disk.committed(id);
    stores.complete_all();
    placements.remove(id, Tier::host, Removal::drop);
    return id;
  }
  TierSet tiers(const TestBlock& block) {
    const BlockId id = catalogue.find_any(block.key());
    return id == kNoBlock ? TierSet{} : catalogue.block(id).tiers;
  }
  // Turns of the loop, once `later` puts tasks here.
  void in_turns() {
    later = [this](std::function<void()> task) { turns.push_back(std::move(task)); };
  }
  void turn() {
    const auto task = std::move(turns.front());
    turns.pop_front();
    task();
  }

  const BlockCache::Options options;
  FakeDisks stores;
  std::unique_ptr<storage::MemoryExtents> device_memory, host_memory;
  DirectoryWriter directory;
  Later later;
  std::deque<std::function<void()>> turns;
  Catalogue catalogue;
  MemoryTiers memory;
  DiskTier disk;
  RemoteTier remote;
  Placements placements;
  Eviction eviction;
  Emptying emptying;
  Room room;
  CacheCounts counts;
  static constexpr TierSet kDevice{1}, kHost{2}, kDisk{4};
};

}  // namespace kvtier::daemon::testing
