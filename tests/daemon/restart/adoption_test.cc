// A cache that takes over the extents of another one, and a disk beside them.
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

using storage::SlotState;

constexpr std::size_t kHost = index_of(Tier::host);

// Copies of the descriptors of everything that `cache` has in memory.
std::vector<std::unique_ptr<storage::Extent>> extents_of(TestCache& cache) {
  std::vector<std::unique_ptr<storage::Extent>> extents;
  const auto copy = [&](storage::Extent& extent) {
    extents.push_back(storage::adopt_memfd_extent(UniqueFd(::dup(extent.memory_fd())),
                                                  UniqueFd(::dup(extent.table().fd())))
                          .value());
  };
  for (const Tier tier : {Tier::device, Tier::host}) cache->memory(tier).each_extent(copy);
  return extents;
}

std::span<const std::byte> nothing_known(const NamespaceId&) {
  return {};
}

// A cache that has died, and the one after it.
class Adoption : public ::testing::Test {
 protected:
  std::vector<ProcessId> adopt(TestCache& into,
                               std::vector<std::unique_ptr<storage::Extent>> extents) {
    const auto encoded = encode(ns);
    return into
        ->adopt({std::move(extents),
                 [&](const NamespaceId& id) {
                   return id == id_of(ns) ? std::span<const std::byte>(encoded)
                                          : std::span<const std::byte>();
                 }})
        .value();
  }
  void adopt_all() { adopt(next, extents_of(first)); }
  std::uint64_t in_state(TestCache& cache, SlotState state) {
    std::uint64_t found = 0;
    for (const Tier tier : {Tier::device, Tier::host}) {
      cache->memory(tier).each_extent([&](storage::Extent& extent) {
        for (std::uint32_t slot = 0; slot < extent.shape().slots(); ++slot)
          found += extent.table().entry(slot).state == state ? 1 : 0;
      });
    }
    return found;
  }

  const Namespace ns = small_namespace("m");
  TestCache first{CacheSizes{}, false};
  TestCache next{CacheSizes{}, false};
};

TEST_F(Adoption, eviction_orders_are_as_they_were) {
  const auto n = first.open(ns);
  const auto a = first.prefix(n, 6, 1), b = first.prefix(n, 6, 1000), c = first.prefix(n, 6, 2000);
  for (const auto* blocks : {&a, &b, &c}) {
    ASSERT_EQ(first.put_all(n, *blocks), 6U);
    ASSERT_EQ(first.put_all(n, *blocks, Tier::device), 6U);
  }
  for (const auto* blocks : {&b, &a, &c}) first->release(1, first.lease(n, *blocks).lease);
  for (const Tier tier : {Tier::device, Tier::host})
    ASSERT_EQ(first.order(tier, kRecordBytes).size(), 18U);
  adopt_all();
  for (const Tier tier : {Tier::device, Tier::host})
    EXPECT_EQ(next.order(tier, kRecordBytes), first.order(tier, kRecordBytes)) << name(tier);
}

TEST_F(Adoption, the_clock_goes_on_past_the_largest_stamp) {
  const auto n = first.open(ns);
  const auto a = first.prefix(n, 2, 1), b = first.prefix(n, 2, 1000);
  ASSERT_EQ(first.put_all(n, a), 2U);
  for (int i = 0; i < 9; ++i) first->release(1, first.lease(n, a).lease);
  adopt_all();
  const std::uint64_t before = next.find(a[0].key())->last_access;
  const auto m = next.open(ns);
  ASSERT_EQ(next.put_all(m, b), 2U);
  EXPECT_GT(next.find(b[0].key())->last_access, before);
}

TEST_F(Adoption, a_key_that_two_slots_claim_has_one_and_the_other_is_free) {
  const auto n = first.open(ns);
  const auto a = first.prefix(n, 3, 1);
  ASSERT_EQ(first.put_all(n, a), 3U);
  TestCache twin{CacheSizes{}, false};
  (void)twin->memory(Tier::host).take(kRecordBytes);
  const auto t = twin.open(ns);
  ASSERT_EQ(twin.put_all(t, a), 3U);
  auto extents = extents_of(first);
  // Under another number, as the extents of one daemon are.
  for (auto& extent : extents_of(twin)) {
    auto header = storage::slot_table_header(storage::ExtentId(9), Tier::host, extent->shape());
    auto table = storage::SlotTable::create(header).value();
    for (std::uint32_t slot = 0; slot < extent->shape().slots(); ++slot) {
      if (extent->table().entry(slot).state != SlotState::sealed) continue;
      table.set_reserved(slot, {1, 1});
      table.set_sealed(slot, extent->table().entry(slot));
    }
    extents.push_back(storage::adopt_memfd_extent(UniqueFd(::dup(extent->memory_fd())),
                                                  UniqueFd(::dup(table.fd())))
                          .value());
  }
  ASSERT_EQ(extents.size(), 2U);
  adopt(next, std::move(extents));
  EXPECT_EQ(next->catalogue().size(), 3U);
  EXPECT_EQ(in_state(next, SlotState::sealed), 3U);
  EXPECT_EQ(in_state(next, SlotState::free), 29U);
  EXPECT_EQ(next->memory(Tier::host).used_bytes(), 3 * kRecordBytes);
  const auto m = next.open(ns);
  EXPECT_EQ(next.lease(m, a).slots.size(), 3U);
}

TEST_F(Adoption, a_namespace_that_nobody_knows_has_orphans_until_a_client_opens_it) {
  const auto n = first.open(ns);
  const auto a = first.prefix(n, 3, 1), b = first.prefix(n, 1, 1000);
  ASSERT_EQ(first.put_all(n, a), 3U);
  ASSERT_TRUE(next->adopt({extents_of(first), nothing_known}));
  EXPECT_EQ(next->catalogue().namespaces().orphan_blocks(), 3U);
  const auto m = next.open(ns);
  EXPECT_EQ(next->catalogue().namespaces().orphan_blocks(), 0U);
  EXPECT_EQ(next.lease(m, a).slots.size(), 3U);
  EXPECT_TRUE(next.put(m, b[0]));
}

TEST_F(Adoption, slots_of_another_size_than_their_namespaces_records_are_not_served) {
  const auto n = first.open(ns);
  ASSERT_EQ(first.put_all(n, first.prefix(n, 3, 1)), 3U);
  const Namespace wide = small_namespace("w", true);
  // A damaged table: narrow slots that claim to be of a wide namespace.
  first->memory(Tier::host).each_extent([&](storage::Extent& extent) {
    for (std::uint32_t slot = 0; slot < extent.shape().slots(); ++slot) {
      auto entry = extent.table().entry(slot);
      if (entry.state != SlotState::sealed) continue;
      entry.ns = id_of(wide);
      extent.table().set_free(slot);
      extent.table().set_reserved(slot, {1, 1});
      extent.table().set_sealed(slot, entry);
    }
  });
  ASSERT_TRUE(next->adopt({extents_of(first), nothing_known}));
  EXPECT_EQ(next->catalogue().size(), 3U);
  EXPECT_TRUE(next->open_namespace(encode(wide)));
  EXPECT_EQ(next->catalogue().size(), 0U);
  EXPECT_EQ(next->memory(Tier::host).used_bytes(), 0U);
}

TEST_F(Adoption, stamps_that_no_clock_has_come_to_are_damage) {
  const auto n = first.open(ns);
  const auto a = first.prefix(n, 2, 1);
  ASSERT_EQ(first.put_all(n, a), 2U);
  const Place at = first.find(a[1].key())->places[kHost];
  first->memory(Tier::host).table(at).set_last_access(at.slot, ~0ULL);
  adopt_all();
  EXPECT_EQ(next->catalogue().size(), 1U);
  const auto m = next.open(ns);
  EXPECT_TRUE(next.put(m, a[1]));
  EXPECT_LT(next.find(a[1].key())->last_access, 100U);
}

TEST_F(Adoption, slots_being_filled_stay_quarantined_for_the_process_that_fills_them) {
  const auto n = first.open(ns);
  const ProcessId writer{100, 1}, other{200, 2};
  ASSERT_EQ(first->reserve(1, writer, n, Tier::host, 3).size(), 3U);
  ASSERT_EQ(first->reserve(2, other, n, Tier::device, 2).size(), 2U);
  first->end_session(2);  // quarantined by the first daemon already
  const auto writers = adopt(next, extents_of(first));
  EXPECT_EQ(writers, (std::vector<ProcessId>{writer, other}));
  EXPECT_EQ(next->reservations().quarantined(), 5U);
  EXPECT_EQ(in_state(next, SlotState::quarantined), 5U);
  next->end_process(writer);
  EXPECT_EQ(in_state(next, SlotState::quarantined), 2U);
  next->end_process(other);
  EXPECT_EQ(next->memory(Tier::host).used_bytes(), 0U);
  EXPECT_EQ(next->memory(Tier::device).used_bytes(), 0U);
}

// A daemon after `before`, with its disks and its host memory.
struct Successor {
  explicit Successor(TestCache& before)
      : host(storage::make_memfd_extents(Tier::host, {})),
        directory(DirectoryWriter::create(400, std::array<std::byte, 16>{}).value()),
        cache(TestCache::options(CacheSizes{.device_slots = 0}),
              {{}, host.get(), TestCache::ports(before.store()), &directory}) {
    EXPECT_TRUE(cache.adopt({extents_of(before), nothing_known}));
    cache.memory(Tier::host).each_extent([&](storage::Extent& extent) {
      (void)before.store()[0].register_extent(extent);
    });
    EXPECT_TRUE(cache.recover());
  }
  TierSet tiers(const TestBlock& block) {
    const BlockId id = cache.catalogue().find_any(block.key());
    return id == kNoBlock ? TierSet{} : cache.catalogue().block(id).tiers;
  }
  std::unique_ptr<storage::MemoryExtents> host;
  DirectoryWriter directory;
  BlockCache cache;
};

TEST_F(Adoption, a_block_in_memory_and_on_disk_is_one_block) {
  TestCache before(CacheSizes{.device_slots = 0});
  const auto n = before.open(ns);
  const auto in_both = before.prefix(n, 4, 1), on_disk = before.prefix(n, 4, 1000);
  before.put_on_disk(n, on_disk);
  ASSERT_EQ(before.put_all(n, in_both), 4U);
  before.store().complete_all();
  // Used since, which the disk has not been told yet.
  before->release(1, before.lease(n, in_both).lease);
  Successor after(before);
  EXPECT_EQ(after.cache.catalogue().size(), 8U);
  for (const auto& block : in_both)
    EXPECT_EQ(after.tiers(block), TierSet{}.with(Tier::host).with(Tier::disk));
  for (const auto& block : on_disk) EXPECT_EQ(after.tiers(block), TierSet{}.with(Tier::disk));
  const BlockId oldest = after.cache.catalogue().oldest(Tier::disk, kRecordBytes);
  EXPECT_EQ(after.cache.catalogue().block(oldest).key, on_disk[3].key())
      << "the later of the two stamps counts";
  EXPECT_EQ(after.cache.disk().queued(), 0U) << "nothing is written again";
}

TEST_F(Adoption, what_waited_for_the_disk_is_written_by_the_next_daemon_and_nothing_else_is) {
  TestCache before(CacheSizes{.device_slots = 0});
  const auto n = before.open(ns);
  const auto forgotten = before.prefix(n, 2, 1), waiting = before.prefix(n, 3, 1000);
  ASSERT_EQ(before.put_all(n, forgotten), 2U);
  before.store().complete_all();
  before->drop(n, TierSet{}.with(Tier::disk));
  before.store().complete_all();
  ASSERT_EQ(before.put_all(n, waiting), 3U);
  Successor after(before);
  EXPECT_EQ(after.cache.disk().queued(), 3U);
  for (const auto& block : forgotten) EXPECT_EQ(after.tiers(block), TierSet{}.with(Tier::host));
}

TEST_F(Adoption, what_was_prefetched_goes_before_the_head_that_was_there) {
  TestCache before(CacheSizes{.device_slots = 0});
  const auto n = before.open(ns);
  const auto a = before.prefix(n, 3, 1);
  before.put_on_disk(n, a);
  ASSERT_TRUE(before.put(n, a[0]));
  before.hint(n, a, {HintKind::prefetch});
  before.store().complete_all();
  Successor after(before);
  const auto& catalogue = after.cache.catalogue();
  ASSERT_EQ(catalogue.counts(Tier::host).blocks, 3U);
  for (const Tier tier : {Tier::host, Tier::disk}) {
    BlockId at = catalogue.oldest(tier, kRecordBytes);
    for (const std::size_t i : {2U, 1U, 0U}) {
      ASSERT_NE(at, kNoBlock);
      EXPECT_EQ(catalogue.block(at).key, a[i].key());
      at = catalogue.evicted_after(at, tier);
    }
  }
}

TEST_F(Adoption, a_slot_that_a_disk_read_went_to_belongs_to_nobody_yet) {
  TestCache reading;
  const auto n = reading.open(ns);
  const auto a = reading.prefix(n, 2, 1);
  reading.put_on_disk(n, a);
  ASSERT_EQ(reading.lease(n, a).slots.size(), 2U);  // both on their way
  const auto writers = adopt(next, extents_of(reading));
  ASSERT_EQ(writers.size(), 1U);
  EXPECT_EQ(writers[0].start_time, 0U);
  EXPECT_EQ(next->reservations().quarantined(), 2U);
  EXPECT_EQ(next->catalogue().size(), 0U);
  next->end_process(writers[0]);
  EXPECT_EQ(next->memory(Tier::host).used_bytes(), 0U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
