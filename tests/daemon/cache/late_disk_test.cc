// A disk that could not be used when the daemon started, and can later.
#include <deque>

#include "daemon/session/admin/admin_jobs.h"
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

constexpr CacheSizes kSizes{.device_slots = 0, .disk_slots = 32, .disks = 2};

class LateDiskTest : public ::testing::Test {
 protected:
  LateDiskTest() {
    cache.disk().later = [this](std::function<void()> task) { tasks.push_back(std::move(task)); };
    host_memory().on_created = [this](storage::Extent& extent) {
      for (std::size_t d = 0; d < stores().size(); ++d) (void)stores()[d].register_extent(extent);
    };
    cache.on_ready = [](SessionId, LeaseId, std::span<const BlockCache::Landed>) {};
    EXPECT_TRUE(cache.recover());
    ns = cache.open_namespace(encode(small_namespace("m"))).value();
  }

  // With the blocks on both disks, of which the second is to come late.
  FakeDisks& filled() {
    before.put_on_disk(old_ns, blocks);
    for (const auto& block : blocks) on[before.disk_of(block)].push_back(block);
    before.store()[1].come_late();
    return before.store();
  }
  FakeDisks& stores() { return before.store(); }
  MemoryTier& host_memory() { return cache.memory(Tier::host); }
  bool online() { return cache.disk().devices()[1]->online(); }
  void step() {
    const auto task = std::move(tasks.front());
    tasks.pop_front();
    task();
  }
  void finish() {
    while (!tasks.empty()) step();
  }
  TierSet tiers(const TestBlock& block) {
    const BlockId id = cache.catalogue().find_any(block.key());
    return id == kNoBlock ? TierSet{} : cache.catalogue().block(id).tiers;
  }
  bool put(const TestBlock& block) {
    const auto slots = cache.reserve(1, TestCache::kWriter, ns, Tier::host, 1, 0, 0);
    if (slots.empty()) return false;
    fill_record(host_memory().slot(place_named(slots[0])),
                cache.catalogue().namespaces()[ns].layout, block);
    return cache.commit(
        1, ns,
        {block.key(), block.identity.parent, block.identity.block_index, block.proof(), slots});
  }
  std::vector<Key> order_now() {
    std::vector<Key> keys;
    for (BlockId id = cache.catalogue().oldest(Tier::disk, kRecordBytes, 1); id != kNoBlock;
         id = cache.catalogue().evicted_after(id, Tier::disk)) {
      keys.insert(keys.begin(), cache.catalogue().block(id).key);
    }
    return keys;
  }

  TestCache before{kSizes};
  const std::uint16_t old_ns = before.open(small_namespace("m"));
  const std::vector<TestBlock> blocks = before.prefix(old_ns, 20, 1);
  std::array<std::vector<TestBlock>, 2> on;

  std::unique_ptr<storage::MemoryExtents> host = storage::make_memfd_extents(Tier::host, {});
  DirectoryWriter directory = DirectoryWriter::create(400, std::array<std::byte, 16>{}).value();
  std::deque<std::function<void()>> tasks;
  BlockCache cache{TestCache::options(kSizes),
                   {{}, host.get(), TestCache::ports(filled()), &directory}};
  std::uint16_t ns = 0;
  static constexpr TierSet kHost{2}, kDisk{4};
};

TEST_F(LateDiskTest, the_others_serve_meanwhile_and_it_says_why_it_is_not_there) {
  EXPECT_FALSE(online());
  EXPECT_EQ(cache.disk().devices()[1]->why(), "not opened by the test");
  EXPECT_EQ(cache.disk().unknown_directory(), "/disk1");
  for (const auto& block : on[0]) EXPECT_EQ(directory.find(block.key()), kDisk);
  for (const auto& block : on[1]) EXPECT_TRUE(directory.find(block.key()).empty());
  ASSERT_TRUE(put(before.prefix(old_ns, 1, 900)[0]));
  stores().complete_all();
  EXPECT_EQ(cache.disk().counts().dropped_writes, 0U);
}

TEST_F(LateDiskTest, it_comes_in_steps_with_all_its_blocks_in_their_order) {
  stores()[1].set_online(true);
  EXPECT_FALSE(tasks.empty());
  EXPECT_FALSE(online());
  for (const auto& block : on[1]) EXPECT_TRUE(directory.find(block.key()).empty());
  finish();
  EXPECT_TRUE(online());
  EXPECT_EQ(cache.disk().unknown_directory(), "");
  EXPECT_EQ(order_now(), keys_of(on[1])) << "the head of a prefix is newer than its tail";
  for (const auto& block : blocks) EXPECT_EQ(directory.find(block.key()), kDisk);
  EXPECT_EQ(cache.disk().devices()[1]->space().bytes_in_use(), on[1].size() * kRecordBytes);
  const auto grant = cache.lease(1, ns, keys_of(blocks));
  EXPECT_EQ(grant.slots.size(), 20U);
  stores().complete_all();
}

TEST_F(LateDiskTest, a_block_in_memory_is_one_block_and_one_being_written_elsewhere_stays_there) {
  // Its write to the other disk is under way when the late one comes, the other's is done.
  const TestBlock& written = on[1][0];
  const TestBlock& writing = on[1][1];
  ASSERT_TRUE(put(written));
  stores().complete_all();
  ASSERT_TRUE(put(writing));
  stores()[1].set_online(true);
  finish();
  EXPECT_EQ(tiers(writing), kHost);
  stores().complete_all();
  for (const TestBlock* block : {&written, &writing}) {
    EXPECT_EQ(tiers(*block), TierSet{}.with(Tier::host).with(Tier::disk));
    const BlockId id = cache.catalogue().find_any(block->key());
    EXPECT_EQ(device_of(cache.catalogue().block(id).places[index_of(Tier::disk)]), 0U);
    EXPECT_FALSE(stores()[1].indexed(block->key()));
    EXPECT_TRUE(stores()[0].indexed(block->key()));
  }
  EXPECT_EQ(order_now().size(), on[1].size() - 2);
}

TEST_F(LateDiskTest, one_that_fails_while_it_is_taken_over_stays_offline_until_it_is_back) {
  stores()[1].set_online(true);
  step();
  stores()[1].set_online(false);
  finish();
  EXPECT_FALSE(online());
  EXPECT_TRUE(directory.find(on[1][0].key()).empty());
  stores()[1].set_online(true);
  EXPECT_TRUE(online());
  finish();
  EXPECT_EQ(directory.find(on[1][0].key()), kDisk);
}

TEST_F(LateDiskTest, what_was_invalidated_meanwhile_is_forgotten_when_it_comes) {
  AdminJobs admin(cache, cache.disk().later);
  std::vector<std::string> offline;
  NamespaceFilter of_m;
  of_m.model = "m";
  ASSERT_TRUE(admin.invalidate(
      of_m, [&](const AdminJobs::Invalidated& done) { offline = done.disks_offline; }));
  finish();
  stores().complete_all();
  finish();
  EXPECT_EQ(offline, std::vector<std::string>{"/disk1"});
  ASSERT_TRUE(cache.open_namespace(encode(small_namespace("m"))));
  stores()[1].set_online(true);
  finish();
  stores().complete_all();
  EXPECT_TRUE(online());
  for (const auto& block : blocks) EXPECT_TRUE(tiers(block).empty());
  EXPECT_EQ(stores().records(), 0U);
}

TEST_F(LateDiskTest, what_it_holds_cannot_be_dropped_before_it_is_known) {
  AdminJobs admin(cache, cache.disk().later);
  const auto refused = admin.drop({}, kDisk, false, [](const AdminJobs::Removed&) { FAIL(); });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::refused);
  EXPECT_NE(refused.error().message.find("/disk1"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(admin.drop({}, kHost, false, [](const AdminJobs::Removed&) {}));
  stores()[1].set_online(true);
  finish();
  EXPECT_TRUE(admin.drop({}, kDisk, false, [](const AdminJobs::Removed&) {}));
  finish();
  stores().complete_all();
  EXPECT_EQ(stores().records(), 0U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
