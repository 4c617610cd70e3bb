// What a client does to memory that it shares with others costs at most what lies in that memory.
#include <fcntl.h>

#include <set>

#include "tests/daemon/support/server_fixture.h"
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = WireClient::Builder;

constexpr TierSet kOnDisk = TierSet{}.with(Tier::disk);
constexpr TierSet kInHost = TierSet{}.with(Tier::host);

class SharedMemoryTest : public ::testing::Test {
 protected:
  std::string config() const {
    return small_config(scratch) + disk_config((scratch / "disk").string()) +
           "scrub_mib_per_s = 0\n[device]\ncapacity = '1MiB'\nextent_size = '1MiB'\n";
  }
  WireClient client() const { return WireClient::greeted((scratch / "s").string()); }
  // Read-only sessions aside, every client can do it.
  static void take_pages_out(int fd) {
    struct stat info {};
    ASSERT_EQ(::fstat(fd, &info), 0);
    ASSERT_EQ(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, info.st_size), 0);
  }
  static void drop_host(WireClient& client) {
    ASSERT_TRUE(client.request([](Builder m) { m.initDrop().setTiers(kInHost.bits); }));
  }

  Scratch scratch;
  Kvtierd daemon{scratch, config()};
  const Namespace ns = small_namespace("m");
};

// Each record that was read into such an extent was taken for corrupt and lost its place on disk.
TEST_F(SharedMemoryTest, pages_that_a_client_takes_out_of_an_extent_cost_nobody_a_record_on_disk) {
  constexpr std::size_t kBlocks = 800, kPiece = 100;
  const auto blocks = prefix_of(id_of(ns), kBlocks, 1);
  WireClient honest = client();
  const auto handle = honest.open(ns);
  for (std::size_t i = 0; i < kBlocks; ++i) {
    ASSERT_TRUE(honest.put(handle, ns, blocks[i]));
    ASSERT_TRUE(i % kPiece != kPiece - 1 || honest.flush());
  }
  WireClient hostile = client();
  std::set<std::uint32_t> extents;
  for (const auto slot : hostile.reserve(hostile.open(ns), 100)) {
    if (extents.insert(static_cast<std::uint32_t>(slot >> 32)).second)
      take_pages_out(hostile.extent_fd(slot));
  }
  ASSERT_FALSE(extents.empty());
  hostile.close();
  const auto look = [&] {
    drop_host(honest);
    for (std::size_t at = 0; at < kBlocks; at += kPiece) {
      const auto piece = std::span(blocks).subspan(at, kPiece);
      EXPECT_EQ(honest.look(handle, ns, piece), std::vector(kPiece, WireClient::Seen::right)) << at;
    }
  };
  look();
  // And what is stored in them from now on is as good as ever.
  const auto others = prefix_of(id_of(ns), 100, 100'000);
  for (const auto& block : others) ASSERT_TRUE(honest.put(handle, ns, block));
  ASSERT_TRUE(honest.flush());
  look();
  EXPECT_EQ(honest.look(handle, ns, others), std::vector(100, WireClient::Seen::right));
  EXPECT_EQ(honest.status()->faults, 0U);
}

// A client that could write to an extent sealed it, and no other could map it any more.
TEST_F(SharedMemoryTest, no_memory_that_a_client_is_given_can_be_sealed_by_it) {
  WireClient writer = client();
  const auto handle = writer.open(ns);
  const auto host = writer.reserve(handle, 1), device = writer.reserve(handle, 1, Tier::device);
  ASSERT_EQ(host.size(), 1U);
  ASSERT_EQ(device.size(), 1U);
  const std::array all{writer.directory_fd(), writer.extent_fd(host[0]),
                       writer.extent_fd(device[0])};
  for (const int fd : all) {
    ASSERT_GE(fd, 0);
    for (const int seal :
         {F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE, F_SEAL_FUTURE_WRITE}) {
      EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, seal), -1);
      EXPECT_EQ(errno, EPERM);
    }
    const int seals = ::fcntl(fd, F_GET_SEALS);
    EXPECT_EQ(seals & (F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_SHRINK | F_SEAL_GROW);
  }
  EXPECT_EQ(::fallocate(all[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1)
      << "the directory is the daemon's alone";
  WireClient other = client();
  EXPECT_TRUE(other.put(other.open(ns), ns, prefix_of(id_of(ns), 1, 1)[0], {Tier::host}));
}

TEST_F(SharedMemoryTest, a_record_that_is_scribbled_over_is_found_bad_and_comes_from_disk_again) {
  const auto blocks = prefix_of(id_of(ns), 20, 1);
  WireClient c = client();
  const auto handle = c.open(ns);
  for (const auto& block : blocks) ASSERT_TRUE(c.put(handle, ns, block));
  ASSERT_TRUE(c.flush());
  for (std::size_t length = blocks.size(); length > 0; --length)
    ASSERT_TRUE(c.report_bad(handle, std::span(blocks).first(length), true));
  EXPECT_EQ(c.look(handle, ns, blocks), std::vector(20, WireClient::Seen::right));
  EXPECT_EQ(c.status()->faults, 20U);
}

// ---- the same within the cache

class SpoiltTest : public ::testing::Test {
 protected:
  SpoiltTest() : SpoiltTest(CacheSizes{}) {}
  explicit SpoiltTest(const CacheSizes& sizes) : cache(sizes) {}

  void put_everywhere() {
    ASSERT_EQ(cache.put_all(ns, blocks), blocks.size());
    cache.store().complete_all();
  }
  // Of the last block, in the slot that the lease has it in.
  void scribble(const BlockCache::Grant& held) {
    cache.record(held.slots.back())[cache.known(ns).layout.proof_offset] ^= std::byte{1};
  }
  bool believed() {
    const std::vector<Key> last{blocks.back().key()};
    return cache->report_bad(1, opened, last) == 0;
  }
  bool served() { return cache->catalogue().find(ns, blocks.back().key()) != kNoBlock; }
  // From disk, by the next lease.
  void expect_comes_from_disk() {
    cache.ready.clear();
    const auto held = cache.lease(ns, blocks);
    ASSERT_EQ(held.slots.size(), blocks.size());
    EXPECT_EQ(held.slots.back(), 0U);
    cache.store().complete_all();
    ASSERT_EQ(cache.ready.size(), 1U);
    EXPECT_TRUE(
        record_is(cache.record(cache.ready[0].slot), cache.known(ns).layout, blocks.back()));
    EXPECT_TRUE(cache->release(1, held.lease));
  }

  TestCache cache;
  const std::uint16_t ns = cache.open(small_namespace("m"));
  const std::vector<std::uint16_t> opened{ns};
  const std::vector<TestBlock> blocks = cache.prefix(ns, 3, 1);
};

TEST_F(SpoiltTest, a_record_that_is_bad_in_memory_keeps_its_intact_copy_on_disk) {
  put_everywhere();
  const auto held = cache.lease(ns, blocks);
  scribble(held);
  EXPECT_TRUE(believed());
  EXPECT_FALSE(served()) << "while somebody holds what is bad";
  EXPECT_EQ(cache.directory().find(blocks.back().key()), TierSet{});
  EXPECT_TRUE(cache->release(1, held.lease));
  EXPECT_EQ(cache.tiers(blocks.back()), kOnDisk);
  EXPECT_EQ(cache.directory().find(blocks.back().key()), kOnDisk);
  expect_comes_from_disk();
  EXPECT_EQ(cache->counts().faults, 1U);
}

TEST_F(SpoiltTest, a_record_that_is_bad_in_one_memory_tier_stays_in_the_other) {
  put_everywhere();
  ASSERT_EQ(cache.put_all(ns, blocks, Tier::device), blocks.size());
  const auto held = cache.lease(ns, blocks);
  ASSERT_EQ(held.tiers.back(), Tier::device);
  scribble(held);
  EXPECT_TRUE(believed());
  EXPECT_TRUE(cache->release(1, held.lease));
  EXPECT_EQ(cache.tiers(blocks.back()), kInHost.with(Tier::disk));
  const auto again = cache.lease(ns, blocks);
  ASSERT_EQ(again.tiers.back(), Tier::host);
  EXPECT_TRUE(record_is(cache.record(again.slots.back()), cache.known(ns).layout, blocks.back()));
}

TEST(SpoiltWithoutDiskTest, a_record_that_is_bad_in_its_only_place_is_forgotten) {
  TestCache cache({}, false);
  const auto ns = cache.open(small_namespace("m"));
  const auto blocks = cache.prefix(ns, 3, 1);
  ASSERT_EQ(cache.put_all(ns, blocks), blocks.size());
  const auto held = cache.lease(ns, blocks);
  cache.record(held.slots.back())[0] ^= std::byte{1};
  EXPECT_EQ(cache->report_bad(1, std::vector{ns}, std::vector{blocks.back().key()}), 0U);
  EXPECT_TRUE(cache->release(1, held.lease));
  EXPECT_EQ(cache.find(blocks.back().key()), nullptr);
  EXPECT_TRUE(cache.put(ns, blocks.back())) << "and may be stored anew";
}

TEST_F(SpoiltTest, a_record_that_goes_bad_while_it_waits_for_the_disk_is_not_made_good_by_it) {
  const auto slots = cache->reserve(1, TestCache::kWriter, ns, Tier::host, 3);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    fill_record(cache.record(slots[i]), cache.known(ns).layout, blocks[i]);
    ASSERT_TRUE(seal_checksums(cache.record(slots[i]).first(kRecordBytes)));
    ASSERT_TRUE(cache.commit(ns, blocks[i], {&slots[i], 1}));
  }
  const auto held = cache.lease(ns, blocks);
  cache.record(slots.back())[cache.known(ns).layout.header_bytes] ^= std::byte{1};
  EXPECT_TRUE(believed());
  EXPECT_TRUE(cache->release(1, held.lease));
  EXPECT_NE(cache.find(blocks.back().key()), nullptr) << "the write holds it";
  cache.store().complete_all();
  EXPECT_EQ(cache.find(blocks.back().key()), nullptr);
  EXPECT_FALSE(cache.store().indexed(blocks.back().key()));
  EXPECT_EQ(cache.store().records(), 2U);
}

TEST_F(SpoiltTest, a_pin_keeps_nothing_that_is_bad_and_everything_that_is_not) {
  put_everywhere();
  const BlockId last = cache->catalogue().find(ns, blocks.back().key());
  const auto until = std::chrono::steady_clock::now() + std::chrono::hours(1);
  ASSERT_EQ(cache->pins().pin(last, Tier::host, until), Pins::Outcome::pinned);
  ASSERT_EQ(cache->pins().pin(last, Tier::disk, until), Pins::Outcome::pinned);
  const auto held = cache.lease(ns, blocks);
  scribble(held);
  EXPECT_TRUE(believed());
  EXPECT_TRUE(cache->release(1, held.lease));
  EXPECT_EQ(cache.tiers(blocks.back()), kOnDisk);
  EXPECT_FALSE(cache->pins().until(last, Tier::host));
  EXPECT_TRUE(cache->pins().until(last, Tier::disk));
  expect_comes_from_disk();
}

TEST_F(SpoiltTest, what_is_forgotten_altogether_meanwhile_stays_nowhere) {
  put_everywhere();
  const auto held = cache.lease(ns, blocks);
  scribble(held);
  EXPECT_TRUE(believed());
  const BlockId last = cache->catalogue().find_any(blocks.back().key());
  BlockCache::Removed removed;
  cache->remove({&last, 1}, kInHost.with(Tier::disk).with(Tier::device), true, removed);
  EXPECT_TRUE(cache->release(1, held.lease));
  cache.store().complete_all();
  EXPECT_EQ(cache.find(blocks.back().key()), nullptr);
  EXPECT_EQ(cache.store().records(), 2U);
}

// The parent was read from the slot again, where it could be another one by then.
TEST_F(SpoiltTest, what_a_slot_table_says_of_a_loaded_record_is_not_taken_from_the_slot) {
  cache.put_on_disk(ns, blocks);
  const auto held = cache.lease(ns, blocks);
  cache.store().complete_all();
  ASSERT_EQ(cache.ready.size(), 3U);
  for (const Ready& ready : cache.ready) {
    const Place at = place_named(ready.slot);
    EXPECT_EQ(cache->memory(Tier::host).table(at).entry(at.slot).parent,
              blocks[ready.block].identity.parent);
  }
}

}  // namespace
}  // namespace kvtier::daemon::testing
