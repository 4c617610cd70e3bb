// A cache with a remote tier, over a FakeRemote whose values another may share.
#pragma once

#include <deque>

#include "tests/daemon/support/fake_remote.h"
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {

class RemoteCache {
 public:
  explicit RemoteCache(
      const CacheSizes& sizes = {},
      std::shared_ptr<FakeRemote::Values> values = std::make_shared<FakeRemote::Values>(),
      const std::function<void(BlockCache::Options&)>& change = {})
      : remote(std::move(values)),
        host_memory_(storage::make_memfd_extents(Tier::host, {})),
        directory_(DirectoryWriter::create(sizes.blocks_max, std::array<std::byte, 16>{}).value()),
        cache(options(sizes, change), {{}, host_memory_.get(), {}, &directory_, {}, &remote}) {
    cache.on_ready = [this](SessionId, LeaseId, std::span<const BlockCache::Landed> landed) {
      for (const auto& block : landed) ready.push_back(block);
    };
    cache.memory(Tier::host).on_created = [this](storage::Extent& extent) {
      (void)remote.register_extent(extent);
    };
    cache.memory(Tier::host).on_retired = [this](storage::Extent& extent) {
      remote.forget_extent(extent.id(), [] {});
    };
    cache.remote().after = [this](std::chrono::milliseconds, std::function<void()> task) {
      timers.push_back(std::move(task));
    };
    remote.say(storage::RemoteState::online);
  }

  std::uint16_t open(const Namespace& ns) { return cache.open_namespace(encode(ns)).value(); }
  const KnownNamespace& known(std::uint16_t ns) { return cache.catalogue().namespaces()[ns]; }
  std::vector<TestBlock> prefix(std::uint16_t ns, std::size_t blocks, Token first) {
    return prefix_of(known(ns).id, blocks, first);
  }
  bool put(std::uint16_t ns, const TestBlock& block) {
    const auto slots = cache.reserve(1, TestCache::kWriter, ns, Tier::host, 1);
    if (slots.empty()) return false;
    const Place at = place_named(slots[0]);
    fill_record(cache.memory(Tier::host).slot(at), known(ns).layout, block);
    return cache.commit(
        1, ns,
        {block.key(), block.identity.parent, block.identity.block_index, block.proof(), slots});
  }
  void put_all(std::uint16_t ns, std::span<const TestBlock> blocks) {
    for (const TestBlock& block : blocks) ASSERT_TRUE(put(ns, block));
  }
  // The values are there, and this cache knows nothing of them.
  void put_remote(std::uint16_t ns, std::span<const TestBlock> blocks) {
    for (const TestBlock& block : blocks) {
      std::vector<std::byte> value(known(ns).layout.record_bytes);
      fill_record(value, known(ns).layout, block);
      ASSERT_TRUE(seal_checksums(value));
      remote.values()[block.key()] = std::move(value);
    }
  }
  // Whether the remote tier was asked; `answers` counts the answers.
  bool ask(std::uint16_t ns, std::span<const TestBlock> blocks,
           std::optional<std::uint32_t> first = 0) {
    const auto keys = keys_of(blocks);
    return cache.remote().ask({ns, keys, first}, [this] { ++answers; });
  }
  BlockCache::Grant lease(std::uint16_t ns, std::span<const TestBlock> blocks) {
    return cache.lease(1, ns, keys_of(blocks), kNoDevice);
  }
  // As a client's request does it.
  BlockCache::Grant ask_and_lease(std::uint16_t ns, std::span<const TestBlock> blocks) {
    if (ask(ns, blocks)) remote.end_one();
    return lease(ns, blocks);
  }
  TierSet tiers(const TestBlock& block) {
    const BlockId id = cache.catalogue().find_any(block.key());
    return id == kNoBlock ? TierSet{} : cache.catalogue().block(id).tiers;
  }
  void end_timers() {
    while (!timers.empty()) {
      const auto task = std::move(timers.front());
      timers.pop_front();
      task();
    }
  }
  std::size_t asked_for(FakeRemote::Asked::What what) const {
    return static_cast<std::size_t>(
        std::ranges::count(remote.asked(), what, &FakeRemote::Asked::what));
  }

  FakeRemote remote;
  std::vector<BlockCache::Landed> ready;
  std::deque<std::function<void()>> timers;
  std::size_t answers = 0;

 private:
  static BlockCache::Options options(const CacheSizes& sizes,
                                     const std::function<void(BlockCache::Options&)>& change) {
    BlockCache::Options options = TestCache::options(sizes);
    options.device = {};
    if (change) change(options);
    return options;
  }
  std::unique_ptr<storage::MemoryExtents> host_memory_;
  DirectoryWriter directory_;

 public:
  BlockCache cache;
};

inline constexpr TierSet kHostOnly = TierSet{}.with(Tier::host);
inline constexpr TierSet kRemoteOnly = TierSet{}.with(Tier::remote);
inline constexpr TierSet kHostAndRemote = kHostOnly.with(Tier::remote);

}  // namespace kvtier::daemon::testing
