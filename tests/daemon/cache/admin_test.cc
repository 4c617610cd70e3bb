// What administrators do: pins, drops by prefix and generation, invalidation.
#include "daemon/session/admin/admin_jobs.h"

#include <deque>

#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

using Around = Selection::Around;

class AdminTest : public ::testing::Test {
 protected:
  explicit AdminTest(const CacheSizes& sizes = {})
      : cache(sizes),
        jobs(*cache, [this](std::function<void()> task) { later.push_back(std::move(task)); }) {}

  void run_all() {
    while (!later.empty()) {
      const auto task = std::move(later.front());
      later.pop_front();
      task();
    }
  }
  static Selection around(const TestBlock& block, Around around) {
    return {{}, block.key(), around};
  }
  static Selection of_model(const std::string& model,
                            NamespaceFilter::Revision rule = NamespaceFilter::Revision::any,
                            const std::string& revision = "") {
    NamespaceFilter filter;
    filter.model = model;
    filter.revision_rule = rule;
    filter.revision = revision;
    return {filter, {}, {}};
  }
  AdminJobs::Pinned pin(const Selection& selection, TierSet tiers, Pins::Time until) {
    AdminJobs::Pinned pinned;
    EXPECT_TRUE(jobs.pin(selection, tiers, until, [&](const auto& p) { pinned = p; }));
    run_all();
    return pinned;
  }
  AdminJobs::Removed drop(const Selection& selection, bool force = false, TierSet tiers = kAll) {
    AdminJobs::Removed removed;
    EXPECT_TRUE(jobs.drop(selection, tiers, force, [&](const auto& r) { removed = r; }));
    run_all();
    return removed;
  }
  AdminJobs::Invalidated invalidate(const std::string& model) {
    AdminJobs::Invalidated result;
    EXPECT_TRUE(jobs.invalidate(of_model(model).in, [&](const auto& r) { result = r; }));
    run_all();
    cache.store().complete_all();
    return result;
  }
  // Blocks that follow `parent`, with other tokens than any prefix that begins with less than
  // `first`.
  std::vector<TestBlock> branch(const TestBlock& parent, std::size_t blocks, Token first) {
    std::vector<TestBlock> blocks_made;
    BlockIdentity up = parent.identity;
    for (std::uint32_t i = 0; i < blocks; ++i) {
      const std::vector<Token> tokens(kBlockTokens, first + i);
      const Key key = chain_key(cache.known(ns).id, up.key, tokens);
      blocks_made.push_back({{cache.known(ns).id, key, up.key, up.block_index + 1}, tokens});
      up = blocks_made.back().identity;
    }
    return blocks_made;
  }
  // Other prompts, enough to evict all that can be.
  void press(Token first) {
    for (Token i = 0; i < 8; ++i) {
      cache.put_all(ns, cache.prefix(ns, 10, first + 1000 * i));
      cache.store().complete_all();
    }
  }
  std::size_t in(Tier tier, std::span<const TestBlock> blocks) {
    return static_cast<std::size_t>(
        std::ranges::count_if(blocks, [&](const auto& b) { return cache.tiers(b).has(tier); }));
  }

  static constexpr TierSet kHost{2}, kDisk{4}, kAll{7};
  TestCache cache;
  std::deque<std::function<void()>> later;
  AdminJobs jobs;
  const std::uint16_t ns = cache.open(small_namespace("m@1"));
  const Pins::Time start{std::chrono::hours(1)};
};

TEST_F(AdminTest, a_pinned_prefix_stays_in_its_tier_under_pressure_until_its_lifetime_ends) {
  const auto prefix = cache.prefix(ns, 8, 1);
  ASSERT_EQ(cache.put_all(ns, prefix), 8U);
  cache.store().complete_all();
  const auto pinned =
      pin(around(prefix[7], Around::ancestors), kHost, start + std::chrono::seconds(10));
  EXPECT_EQ(pinned.blocks, 8U);
  EXPECT_EQ(pinned.bytes, 8 * kRecordBytes);
  press(10'000);
  EXPECT_EQ(in(Tier::host, prefix), 8U);
  jobs.end_pins(start + std::chrono::seconds(9));
  run_all();
  EXPECT_EQ(cache->pins().blocks(Tier::host), 8U);
  jobs.end_pins(start + std::chrono::seconds(10));
  run_all();
  EXPECT_EQ(cache->pins().bytes(Tier::host), 0U);
  press(50'000);
  EXPECT_EQ(in(Tier::host, prefix), 0U);
}

TEST_F(AdminTest, pins_hold_at_most_their_share_of_a_tier_and_others_still_find_room) {
  const auto prefix = cache.prefix(ns, 40, 1);
  ASSERT_EQ(cache.put_all(ns, prefix), 40U);
  cache.store().complete_all();
  const auto pinned = pin(of_model("m"), kHost, start);
  EXPECT_EQ(pinned.blocks, 10U);  // a quarter of 40 slots
  EXPECT_EQ(pinned.no_room, 30U);
  EXPECT_LE(cache->pins().bytes(Tier::host), cache->pinned_bytes_max(Tier::host, 0));
  EXPECT_EQ(cache.put_all(ns, cache.prefix(ns, 30, 5000)), 30U);
}

TEST_F(AdminTest, a_block_pinned_again_has_the_new_lifetime_and_holds_nothing_twice) {
  const auto block = cache.prefix(ns, 1, 1);
  ASSERT_EQ(cache.put_all(ns, block), 1U);
  cache.store().complete_all();
  pin(around(block[0], Around::block), kHost, start);
  pin(around(block[0], Around::block), kHost, start + std::chrono::seconds(5));
  EXPECT_EQ(cache->pins().blocks(Tier::host), 1U);
  jobs.end_pins(start + std::chrono::seconds(4));
  run_all();
  EXPECT_EQ(cache->pins().blocks(Tier::host), 1U);
  std::uint64_t unpinned = 0;
  ASSERT_TRUE(jobs.unpin({}, kAll, [&](const std::uint64_t& n) { unpinned = n; }));
  run_all();
  EXPECT_EQ(unpinned, 1U);
  EXPECT_EQ(cache.find(block[0].key())->holds[index_of(Tier::host)], 0U);
}

// It was shown as pinned for 292 years meanwhile: what was left had overflowed.
TEST_F(AdminTest, a_pin_that_is_being_taken_away_has_no_time_left) {
  const auto block = cache.prefix(ns, 1, 1);
  ASSERT_EQ(cache.put_all(ns, block), 1U);
  cache.store().complete_all();
  pin(around(block[0], Around::block), kHost, start + std::chrono::seconds(5));
  ASSERT_TRUE(jobs.unpin({}, kAll, [](const auto&) {}));
  const BlockId id = cache->catalogue().find(ns, block[0].key());
  ASSERT_TRUE(cache->pins().until(id, Tier::host));
  EXPECT_LE(*cache->pins().until(id, Tier::host) - start, std::chrono::seconds(0));
}

TEST_F(AdminTest, when_the_pins_of_a_prefix_end_its_tail_is_evicted_before_its_head_again) {
  const auto prefix = cache.prefix(ns, 6, 1);
  ASSERT_EQ(cache.put_all(ns, prefix), 6U);
  cache.store().complete_all();
  const auto pin_all = [&] {
    for (const std::size_t i : {3, 0, 5, 1, 4, 2})
      pin(around(prefix[i], Around::block), kHost, start);
    EXPECT_TRUE(cache.order(Tier::host, kRecordBytes).empty());
  };
  pin_all();
  jobs.end_pins(start);
  run_all();
  EXPECT_EQ(cache.order(Tier::host, kRecordBytes), keys_of(prefix));
  pin_all();
  ASSERT_TRUE(jobs.unpin(of_model("m"), kAll, [](const auto&) {}));
  run_all();
  EXPECT_EQ(cache.order(Tier::host, kRecordBytes), keys_of(prefix));
}

TEST_F(AdminTest, a_pin_ends_with_the_record_that_it_held_when_that_is_found_corrupt) {
  const auto prefix = cache.prefix(ns, 2, 1);
  cache.put_on_disk(ns, prefix);
  pin(of_model("m"), kDisk, start);
  EXPECT_EQ(cache->pins().blocks(Tier::disk), 2U);
  cache.store().spoil(prefix[1].key());
  cache.lease(ns, prefix);
  cache.store().complete_all();
  EXPECT_EQ(cache.find(prefix[1].key()), nullptr);
  EXPECT_EQ(cache->pins().blocks(Tier::disk), 1U);
}

TEST_F(AdminTest, a_pinned_record_that_the_scrub_finds_corrupt_is_forgotten_all_the_same) {
  const auto prefix = cache.prefix(ns, 1, 1);
  cache.put_on_disk(ns, prefix);
  pin(of_model("m"), kDisk, start);
  cache.store().spoil(prefix[0].key());
  Result<void> seen;
  const BlockId id = cache->catalogue().find_any(prefix[0].key());
  ASSERT_TRUE(cache->verify_on_disk(id, [&](const Result<void>& result) { seen = result; }));
  cache.store().complete_all();
  ASSERT_FALSE(seen);
  EXPECT_EQ(seen.error().code, Errc::corrupt);
  EXPECT_EQ(cache.find(prefix[0].key()), nullptr);
  EXPECT_EQ(cache->pins().blocks(Tier::disk), 0U);
}

TEST_F(AdminTest, a_drop_by_prefix_takes_a_block_and_all_that_begins_with_it_and_nothing_else) {
  const auto trunk = cache.prefix(ns, 6, 1);
  const auto fork = branch(trunk[2], 3, 900);    // beside what is dropped
  const auto under = branch(trunk[4], 4, 1900);  // below it
  const auto other = cache.prefix(ns, 5, 5000);
  const auto wide = cache.open(small_namespace("other@1"));
  const auto elsewhere = cache.prefix(wide, 3, 1);
  for (const auto* blocks : {&trunk, &fork, &under, &other})
    ASSERT_EQ(cache.put_all(ns, *blocks), blocks->size());
  ASSERT_EQ(cache.put_all(wide, elsewhere), 3U);
  cache.store().complete_all();
  EXPECT_EQ(drop(around(trunk[3], Around::descendants)).blocks, 3U + 4U);
  cache.store().complete_all();
  EXPECT_EQ(in(Tier::host, trunk), 3U);
  EXPECT_EQ(in(Tier::disk, trunk), 3U);
  for (const auto* kept : {&fork, &other, &elsewhere})
    EXPECT_EQ(in(Tier::disk, *kept), kept->size());
  for (const auto& block : under) {
    EXPECT_EQ(cache.find(block.key()), nullptr);
    EXPECT_FALSE(cache.store().indexed(block.key()));
  }
}

TEST_F(AdminTest, descendants_on_disk_alone_are_found_after_a_restart_too) {
  const auto prefix = cache.prefix(ns, 12, 1);
  cache.put_on_disk(ns, prefix);
  DirectoryWriter directory = DirectoryWriter::create(400, std::array<std::byte, 16>{}).value();
  const auto host = storage::make_memfd_extents(Tier::host, {});
  BlockCache again(TestCache::options({.device_slots = 0}),
                   {{}, host.get(), TestCache::ports(cache.store()), &directory});
  ASSERT_TRUE(again.recover());
  auto walk = SelectionWalk::over(again.catalogue(), around(prefix[4], Around::descendants));
  ASSERT_TRUE(walk);
  std::vector<Key> found;
  const auto note = [&](BlockId id) { found.push_back(again.catalogue().block(id).key); };
  while (walk->step(note)) {
  }
  EXPECT_EQ(found, keys_of(std::span(prefix).subspan(4)));
}

TEST_F(AdminTest, a_drop_says_what_it_left_and_with_force_leaves_nothing_to_be_found) {
  const auto prefix = cache.prefix(ns, 5, 1);
  ASSERT_EQ(cache.put_all(ns, prefix), 5U);
  cache.store().complete_all();
  const auto lease = cache.lease(ns, std::span(prefix).first(2));
  pin(around(prefix[3], Around::block), kHost, start);
  auto removed = drop(of_model("m"), false, kHost);
  EXPECT_EQ(removed.blocks, 2U);
  EXPECT_EQ(removed.in_use, 2U);
  EXPECT_EQ(removed.pinned, 1U);
  removed = drop(of_model("m"), true);
  EXPECT_EQ(removed.in_use, 2U);
  EXPECT_EQ(removed.pinned, 0U);
  for (const auto& block : prefix) EXPECT_TRUE(cache.directory().find(block.key()).empty());
  EXPECT_EQ(cache.lease(ns, prefix, 9).lease, 0U);
  // The one who reads it goes on, and it goes with the lease.
  EXPECT_TRUE(record_is(cache.record(lease.slots[1]), cache.known(ns).layout, prefix[1]));
  cache->release(1, lease.lease);
  cache.store().complete_all();
  EXPECT_EQ(cache->catalogue().size(), 0U);
  EXPECT_EQ(cache->memory(Tier::host).used_bytes(), 0U);
}

TEST_F(AdminTest, generations_of_a_model_are_told_apart_by_their_revision) {
  const auto second = cache.open(small_namespace("m@2"));
  const auto longer = cache.open(small_namespace("m2@1"));
  const auto none = cache.open(small_namespace("m"));
  for (const auto each : {ns, second, longer, none})
    ASSERT_EQ(cache.put_all(each, cache.prefix(each, 3, 1)), 3U);
  cache.store().complete_all();
  const auto blocks = [&](std::uint16_t of) { return cache.known(of).blocks; };
  EXPECT_EQ(drop(of_model("m", NamespaceFilter::Revision::is_not, "2")).blocks, 6U);
  EXPECT_EQ(blocks(ns) + blocks(none), 0U);
  EXPECT_EQ(blocks(second), 3U);
  EXPECT_EQ(drop(of_model("m", NamespaceFilter::Revision::is, "2")).blocks, 3U);
  EXPECT_EQ(blocks(longer), 3U);
  const auto unknown = jobs.drop(of_model("M"), kAll, false, [](const auto&) {});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Errc::not_found);
}

// The fault: old KV served for new weights.
TEST_F(AdminTest,
       after_an_invalidation_old_sessions_find_and_commit_nothing_and_new_ones_start_empty) {
  const auto prefix = cache.prefix(ns, 6, 1);
  ASSERT_EQ(cache.put_all(ns, std::span(prefix).first(4)), 4U);
  cache.store().complete_all();
  const auto held = cache.lease(ns, std::span(prefix).first(1));
  const auto slots = cache->reserve(1, TestCache::kWriter, ns, Tier::host, 1);
  std::vector<std::uint16_t> closed;
  jobs.on_closed = [&](std::uint16_t number) {
    closed.push_back(number);
    return 2U;
  };
  const auto result = invalidate("m");
  EXPECT_EQ(closed, std::vector<std::uint16_t>{ns});
  EXPECT_EQ(result.sessions, 2U);
  EXPECT_EQ(result.removed.in_use, 1U);
  EXPECT_TRUE(result.flushed);
  EXPECT_TRUE(result.disks_offline.empty());
  for (const auto& block : prefix) EXPECT_FALSE(cache.store().indexed(block.key()));

  fill_record(cache.record(slots[0]), cache.known(ns).layout, prefix[4]);
  EXPECT_FALSE(cache.commit(ns, prefix[4], slots));
  EXPECT_TRUE(cache->reserve(1, TestCache::kWriter, ns, Tier::host, 1).empty());
  EXPECT_EQ(cache.lease(ns, prefix).lease, 0U);

  // The same name with other weights: nothing of the old is there, not even what is still read.
  const auto anew = cache.open(small_namespace("m@1"));
  EXPECT_NE(anew, ns);
  EXPECT_EQ(cache.lease(anew, prefix, 5).lease, 0U);
  EXPECT_FALSE(cache.put(anew, prefix[0], Tier::host, 5));  // its key is still the old block's
  EXPECT_TRUE(cache.put(anew, prefix[4], Tier::host, 5));
  cache->release(1, held.lease);
  cache.store().complete_all();
  EXPECT_TRUE(cache.put(anew, prefix[0], Tier::host, 5));
  EXPECT_EQ(cache.lease(anew, std::span(prefix).first(2), 5).slots.size(), 1U);
}

TEST_F(AdminTest, an_invalidation_reaches_blocks_of_namespaces_that_are_known_by_their_id_alone) {
  const auto prefix = cache.prefix(ns, 3, 1);
  cache.put_on_disk(ns, prefix);
  DirectoryWriter directory = DirectoryWriter::create(400, std::array<std::byte, 16>{}).value();
  const auto host = storage::make_memfd_extents(Tier::host, {});
  cache.store()[0].lose_namespaces();
  BlockCache again(TestCache::options({.device_slots = 0}),
                   {{}, host.get(), TestCache::ports(cache.store()), &directory});
  ASSERT_TRUE(again.recover());
  ASSERT_EQ(again.catalogue().namespaces().orphan_blocks(), 3U);
  AdminJobs of_again(again, [](const std::function<void()>& task) { task(); });
  ASSERT_TRUE(of_again.invalidate(of_model("whatever").in, [](const auto&) {}));
  cache.store().complete_all();
  EXPECT_EQ(again.catalogue().size(), 0U);
  for (const auto& block : prefix) EXPECT_FALSE(cache.store().indexed(block.key()));
}

TEST_F(AdminTest, the_number_of_a_closed_namespace_is_used_again_once_nobody_needs_it) {
  Namespaces& known = cache->catalogue().namespaces();
  ++known[ns].opened;
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 2, 1)), 2U);
  cache.store().complete_all();
  invalidate("m");
  EXPECT_NE(cache.open(small_namespace("n@1")), ns);  // a session has it
  cache->forget_unused_namespaces();
  EXPECT_TRUE(known[ns].closed && !known[ns].vacant);
  --known[ns].opened;
  cache->forget_unused_namespaces();
  EXPECT_EQ(cache.open(small_namespace("o@1")), ns);
  EXPECT_EQ(known.find(id_of(small_namespace("m@1"))), std::nullopt);
}

class ManyBlocksTest : public AdminTest {
 protected:
  ManyBlocksTest() : AdminTest({.blocks_max = 4000, .host_slots = 2000, .extent_slots = 500}) {}
};

TEST_F(ManyBlocksTest, a_drop_goes_in_steps_between_which_clients_are_served) {
  std::vector<TestBlock> all;
  for (Token first = 1; first < 1'500'000; first += 10'000) {
    const auto prefix = cache.prefix(ns, 10, first);
    ASSERT_EQ(cache.put_all(ns, prefix), 10U);
    all.insert(all.end(), prefix.begin(), prefix.end());
    cache.store().complete_all();
  }
  AdminJobs::Removed removed;
  int turns = 0;
  ASSERT_TRUE(jobs.drop(of_model("m"), kAll, false, [&](const auto& r) { removed = r; }));
  const auto last = std::span(all).last(10);
  const auto lease = cache.lease(ns, last);
  EXPECT_EQ(lease.slots.size(), 10U);
  for (; !later.empty(); ++turns) {
    const auto task = std::move(later.front());
    later.pop_front();
    const auto before = cache->catalogue().size();
    task();
    EXPECT_LE(before - cache->catalogue().size(), limits::kVisitStep);
  }
  EXPECT_GE(turns, 2);
  EXPECT_EQ(removed.blocks, all.size());  // the leased ones left the disk
  EXPECT_EQ(removed.in_use, 10U);
}

TEST_F(ManyBlocksTest, so_many_commands_are_under_way_and_no_more) {
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 600, 1)), 600U);
  int done = 0;
  const auto begin = [&] { return jobs.unpin({}, kAll, [&](const auto&) { ++done; }); };
  for (std::uint32_t i = 0; i < limits::kAdminJobsMax; ++i) ASSERT_TRUE(begin());
  const auto refused = begin();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::no_space);
  run_all();
  EXPECT_EQ(done, static_cast<int>(limits::kAdminJobsMax));
  EXPECT_TRUE(begin());
}

// What the store is told beside what leaves its index.
TEST_F(AdminTest, what_is_dropped_from_disk_or_invalidated_is_erased_for_good) {
  using Of = storage::Erasure::Of;
  const auto prefix = cache.prefix(ns, 6, 1);
  ASSERT_EQ(cache.put_all(ns, prefix), 6U);
  cache.store().complete_all();
  const auto& erased = cache.store()[0].erased_for_good();
  drop(around(prefix[2], Around::descendants), false, kHost);
  EXPECT_TRUE(erased.empty()) << "the disk keeps them";

  pin(around(prefix[5], Around::block), kDisk, start);
  drop(around(prefix[2], Around::descendants));
  ASSERT_EQ(erased.size(), 3U) << "but for the pinned one";
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(erased[i].of, Of::key);
    EXPECT_EQ(erased[i].ns, cache.known(ns).id);
    EXPECT_TRUE(std::ranges::any_of(std::span(prefix).subspan(2, 3),
                                    [&](const auto& b) { return b.key() == erased[i].key; }));
  }
  drop(around(prefix[5], Around::block), true);
  ASSERT_EQ(erased.size(), 4U);
  EXPECT_EQ(erased[3].key, prefix[5].key());

  drop(of_model("m"));
  ASSERT_EQ(erased.size(), 5U);
  EXPECT_EQ(erased[4].of, Of::ns);
  drop({});
  ASSERT_EQ(erased.size(), 6U);
  EXPECT_EQ(erased[5].of, Of::all);
  const NamespaceId id = cache.known(ns).id;
  invalidate("m");
  ASSERT_EQ(erased.size(), 7U);
  EXPECT_EQ(erased[6].of, Of::ns);
  EXPECT_EQ(erased[6].ns, id);
}

}  // namespace
}  // namespace kvtier::daemon::testing
