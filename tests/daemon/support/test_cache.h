// A BlockCache over real memory and a FakeStore, and the steps tests are made of.
#pragma once

#include <gtest/gtest.h>

#include "daemon/cache/block_cache.h"
#include "tests/daemon/support/fake_store.h"
#include "tests/daemon/support/records.h"

namespace kvtier::daemon::testing {

struct CacheSizes {
  std::uint32_t blocks_max = 400;
  std::uint32_t device_slots = 24, host_slots = 40, disk_slots = 96;  // of kRecordBytes
  std::uint32_t extent_slots = 16, segment_slots = 16;
  std::uint32_t write_queue_max = 64, writes_submitted_max = 64;
  std::uint32_t disks = 1;  // each of disk_slots
  std::uint32_t gpus = 1;   // each of device_slots
  bool hbm = false;         // the daemon cannot address the device tier
  Admission admission = Admission::all;
  std::vector<Tenant> tenants{};  // the default one first; none: it alone
  std::uint32_t leased_percent = 100;
  Hints::Options hints{};
};

// Memory that the daemon has but cannot address, as a GPU's.
class HbmExtents final : public storage::MemoryExtents {
 public:
  static constexpr std::uint64_t kGranularity = 4 * kRecordBytes;
  Tier tier() const noexcept override { return Tier::device; }
  std::uint64_t granularity() const noexcept override { return kGranularity; }
  void prepare(std::uint64_t, std::uint64_t) override {}
  Result<std::unique_ptr<storage::Extent>> create(storage::ExtentId id,
                                                  storage::Extent::Shape shape) override {
    EXPECT_EQ(shape.bytes % kGranularity, 0U);
    if (fails) return make_error(Errc::no_space, "out of memory");
    auto memory = make_memfd("hbm", shape.bytes);
    auto table = storage::SlotTable::create(storage::slot_table_header(id, Tier::device, shape));
    return std::make_unique<storage::Extent>(id, Tier::device, shape, std::move(*memory), Mapping(),
                                             std::move(*table), storage::Extent::Kind::cuda);
  }
  bool fails = false;
};

struct Ready {
  SessionId session;
  LeaseId lease;
  std::uint32_t block;
  SlotName slot;
  friend bool operator==(const Ready&, const Ready&) = default;
};

class TestCache {
 public:
  static constexpr std::uint64_t kSegmentHeaderBytes = 4096;

  explicit TestCache(const CacheSizes& sizes = {}, bool with_disk = true)
      : store_(sizes.disks),
        device_memory_(device_memory(sizes)),
        host_memory_(storage::make_memfd_extents(Tier::host, {})),
        directory_(DirectoryWriter::create(sizes.blocks_max, std::array<std::byte, 16>{}).value()),
        cache_(options(sizes),
               {device_ports(), host_memory_.get(),
                with_disk ? ports(store_) : std::vector<DiskTier::Port>{}, &directory_}) {
    cache_.on_ready = [this](SessionId session, LeaseId lease,
                             std::span<const BlockCache::Landed> landed) {
      for (const auto& block : landed) ready.push_back({session, lease, block.block, block.slot});
    };
    MemoryTier& host = cache_.memory(Tier::host);
    host.on_created = [this](storage::Extent& extent) {
      for (std::size_t d = 0; d < store_.size(); ++d) (void)store_[d].register_extent(extent);
    };
    host.on_retired = [this](storage::Extent& extent) {
      for (std::size_t d = 0; d < store_.size(); ++d) store_[d].forget_extent(extent.id(), [] {});
    };
  }

  BlockCache* operator->() noexcept { return &cache_; }
  BlockCache& operator*() noexcept { return cache_; }
  FakeDisks& store() noexcept { return store_; }
  static std::vector<DiskTier::Port> ports(FakeDisks& stores) {
    std::vector<DiskTier::Port> ports;
    for (std::size_t d = 0; d < stores.size(); ++d)
      ports.push_back({&stores[d], "/disk" + std::to_string(d)});
    return ports;
  }
  // The number of the disk that a block lies on.
  std::uint32_t disk_of(const TestBlock& block) {
    return device_of(find(block.key())->places[index_of(Tier::disk)]);
  }
  const DirectoryWriter& directory() const noexcept { return directory_; }
  std::vector<Ready> ready;  // events so far

  std::uint16_t open(const Namespace& ns) { return cache_.open_namespace(encode(ns)).value(); }
  const KnownNamespace& known(std::uint16_t ns) { return cache_.catalogue().namespaces()[ns]; }
  std::vector<TestBlock> prefix(std::uint16_t ns, std::size_t blocks, Token first) {
    return prefix_of(known(ns).id, blocks, first);
  }
  std::span<std::byte> record(SlotName slot) {
    const Place at = place_named(slot);
    for (const Tier tier : {Tier::device, Tier::host}) {
      MemoryTier& memory = cache_.memory(tier, at);
      if (memory.extent(storage::ExtentId(at.container)) != nullptr) return memory.slot(at);
    }
    return {};
  }
  const Block* find(const Key& key) {
    const BlockId id = cache_.catalogue().find_any(key);
    return id == kNoBlock ? nullptr : &cache_.catalogue().block(id);
  }
  TierSet tiers(const TestBlock& block) {
    const Block* found = find(block.key());
    return found == nullptr ? TierSet{} : found->tiers;
  }

  // Commits one filled block; false if there was no slot or it was not taken.
  bool put(std::uint16_t ns, const TestBlock& block, Tier tier = Tier::host, SessionId session = 1,
           std::uint32_t gpu = 0) {
    const auto slots = cache_.reserve(session, kWriter, ns, tier, 1, gpu);
    if (slots.empty()) return false;
    if (!record(slots[0]).empty()) fill_record(record(slots[0]), known(ns).layout, block);
    return commit(ns, block, slots, session);
  }
  bool commit(std::uint16_t ns, const TestBlock& block, std::span<const SlotName> slots,
              SessionId session = 1) {
    return cache_.commit(
        session, ns,
        {block.key(), block.identity.parent, block.identity.block_index, block.proof(), slots});
  }
  // In order; how many were taken.
  std::size_t put_all(std::uint16_t ns, std::span<const TestBlock> blocks, Tier tier = Tier::host) {
    std::size_t taken = 0;
    for (const TestBlock& block : blocks) taken += put(ns, block, tier) ? 1 : 0;
    return taken;
  }
  BlockCache::Grant lease(std::uint16_t ns, std::span<const TestBlock> prefix,
                          SessionId session = 1, std::uint32_t gpu = 0) {
    return cache_.lease(session, ns, keys_of(prefix), gpu);
  }
  void hint(std::uint16_t ns, std::span<const TestBlock> prefix, const Hint& hint,
            SessionId session = 1, Hints::Time now = {}) {
    cache_.hint(session, ns, keys_of(prefix), hint, 0, now);
  }
  std::uint64_t hints(HintKind kind, HintOutcome outcome) const {
    return cache_.hints().counts().of(kind, outcome);
  }
  // It goes with its last hold, and is found by nobody from now on.
  void remove(std::uint16_t ns, const Key& key) {
    const BlockId id = cache_.catalogue().find(ns, key);
    BlockCache::Removed removed;
    if (id != kNoBlock) cache_.remove({&id, 1}, TierSet{7}, true, removed);
  }
  // Puts blocks that are on disk and nowhere else.
  void put_on_disk(std::uint16_t ns, std::span<const TestBlock> blocks) {
    ASSERT_EQ(put_all(ns, blocks), blocks.size());
    store_.complete_all();
    cache_.drop(ns, TierSet{}.with(Tier::device).with(Tier::host));
    for (const TestBlock& block : blocks) ASSERT_EQ(tiers(block), TierSet{}.with(Tier::disk));
  }

  // The eviction order, newest first.
  std::vector<Key> order(Tier tier, std::uint64_t record_bytes, std::uint32_t device = 0) {
    std::vector<Key> keys;
    for (BlockId id = cache_.catalogue().oldest(tier, record_bytes, device); id != kNoBlock;) {
      keys.insert(keys.begin(), cache_.catalogue().block(id).key);
      id = cache_.catalogue().evicted_after(id, tier);
    }
    return keys;
  }

  static constexpr ProcessId kWriter{100, 1};

  static BlockCache::Options options(const CacheSizes& sizes) {
    BlockCache::Options options;
    options.blocks_max = sizes.blocks_max;
    options.device = {sizes.device_slots * kRecordBytes, sizes.extent_slots * kRecordBytes};
    options.host = {sizes.host_slots * kRecordBytes, sizes.extent_slots * kRecordBytes};
    const std::uint64_t segment_bytes = kSegmentHeaderBytes + sizes.segment_slots * kRecordBytes;
    options.disk.segment_bytes = segment_bytes;
    options.disk.segments_bytes = sizes.disk_slots / sizes.segment_slots * segment_bytes;
    options.disk.write_queue_max = sizes.write_queue_max;
    options.disk.write_queue_bytes_max = sizes.host_slots * kRecordBytes;
    options.disk.writes_submitted_max = sizes.writes_submitted_max;
    options.disk.admission = sizes.admission;
    options.tenants = Tenants(sizes.tenants);
    options.leased_percent = sizes.leased_percent;
    options.hints = sizes.hints;
    return options;
  }

 private:
  static std::vector<std::unique_ptr<storage::MemoryExtents>> device_memory(
      const CacheSizes& sizes) {
    std::vector<std::unique_ptr<storage::MemoryExtents>> memory;
    for (std::uint32_t gpu = 0; gpu < sizes.gpus; ++gpu) {
      if (sizes.hbm) {
        memory.push_back(std::make_unique<HbmExtents>());
      } else {
        memory.push_back(storage::make_memfd_extents(Tier::device, {}));
      }
    }
    return memory;
  }
  std::vector<storage::MemoryExtents*> device_ports() const {
    std::vector<storage::MemoryExtents*> ports;
    for (const auto& memory : device_memory_) ports.push_back(memory.get());
    return ports;
  }

  FakeDisks store_;
  std::vector<std::unique_ptr<storage::MemoryExtents>> device_memory_;
  std::unique_ptr<storage::MemoryExtents> host_memory_;
  DirectoryWriter directory_;
  BlockCache cache_;
};

}  // namespace kvtier::daemon::testing
