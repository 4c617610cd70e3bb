// The block cache against a plain model of its rules, over a hundred thousand random operations.
#include "tests/daemon/support/random_cache.h"

namespace kvtier::daemon::testing {
namespace {

// What the operations brought about, so that a test which no longer tests anything is noticed.
struct Seen {
  std::array<std::uint64_t, kTiers> evictions{}, hits{};
  std::uint64_t refused_commits = 0, faults = 0, disk_failures = 0, dropped_writes = 0;
  std::uint64_t moved_writes = 0;

  void add(BlockCache& cache) {
    for (const Tier tier : kAllTiers) {
      const std::size_t t = index_of(tier);
      evictions[t] += cache.catalogue().counts(tier).evictions();
      hits[t] += cache.catalogue().namespaces().lookups().hits[t];
    }
    refused_commits += cache.counts().refused_commits;
    faults += cache.counts().faults;
    disk_failures += cache.disk().counts().failures;
    dropped_writes += cache.disk().counts().dropped_writes;
    moved_writes += cache.disk().counts().moved_writes;
  }
  void expect_much() const {
    for (const Tier tier : kAllTiers) {
      EXPECT_GT(evictions[index_of(tier)], 1000U) << name(tier);
      EXPECT_GT(hits[index_of(tier)], 1000U) << name(tier);
    }
    for (const std::uint64_t count : {refused_commits, faults, disk_failures, dropped_writes})
      EXPECT_GT(count, 100U);
  }
};

// The first operation after which cache and model differ says what differs.
void run(const RandomCache::Options& options, int operations, Seen& seen) {
  RandomCache random(options);
  const auto& faults = random.model().faults();
  int done = 0;
  for (; done < operations && faults.empty(); ++done) {
    random.step();
    if (done % 3 == 0) random.model().check();
  }
  random.finish();
  random.model().check();
  for (const auto& fault : faults)
    ADD_FAILURE() << "seed " << options.seed << ", operation " << done << ": " << fault;
  if (!faults.empty()) return;

  BlockCache& cache = *random.cache();
  seen.add(cache);
  EXPECT_EQ(cache.leases(), 0U) << "seed " << options.seed;
  EXPECT_EQ(cache.reservations().reserved() + cache.reservations().quarantined(), 0U);
  EXPECT_EQ(cache.disk().queued(), 0U);
  cache.catalogue().each([&](BlockId id) {
    EXPECT_TRUE(Catalogue::unheld(cache.catalogue().block(id)));
    return true;
  });
  EXPECT_EQ(random.flushes_done, random.flushes_wanted);

  random.drop_everything();
  random.model().check();
  EXPECT_TRUE(faults.empty()) << faults.front();
  EXPECT_EQ(cache.catalogue().size(), 0U);
  EXPECT_EQ(random.cache().directory().blocks(), 0U);
  EXPECT_EQ(random.cache().store().records(), 0U);
  for (const Tier tier : {Tier::device, Tier::host}) EXPECT_EQ(cache.memory(tier).used_bytes(), 0U);
  for (const Tier tier : kAllTiers) EXPECT_EQ(cache.catalogue().counts(tier).bytes, 0U);
}

class CacheModelTest : public ::testing::Test {};

TEST_F(CacheModelTest, with_records_of_one_size_the_cache_does_exactly_what_the_model_does) {
  Seen seen;
  for (std::uint32_t seed = 1; seed <= 40 && !HasFailure(); ++seed) run({.seed = seed}, 4000, seen);
  if (!HasFailure()) seen.expect_much();
}

TEST_F(CacheModelTest, with_records_of_two_sizes_the_cache_keeps_every_rule) {
  Seen seen;
  for (std::uint32_t seed = 101; seed <= 125 && !HasFailure(); ++seed) {
    run({.seed = seed, .wide_too = true}, 4000, seen);
  }
  if (!HasFailure()) seen.expect_much();
}

TEST_F(CacheModelTest, with_a_short_write_queue_writes_are_dropped_as_the_model_says) {
  Seen seen;
  for (std::uint32_t seed = 201; seed <= 212 && !HasFailure(); ++seed) {
    run({.seed = seed, .sizes = {.write_queue_max = 3, .writes_submitted_max = 2}}, 4000, seen);
  }
  EXPECT_GT(seen.dropped_writes, 1000U);
}

TEST_F(CacheModelTest, with_two_disks_that_come_and_go_the_cache_does_exactly_what_the_model_does) {
  Seen seen;
  for (std::uint32_t seed = 301; seed <= 345 && !HasFailure(); ++seed) {
    run({.seed = seed, .sizes = {.disk_slots = 48, .disks = 2}}, 4000, seen);
  }
  EXPECT_GT(seen.moved_writes, 100U);
  if (!HasFailure()) seen.expect_much();
}

TEST_F(CacheModelTest, with_three_disks_and_records_of_two_sizes_the_cache_keeps_every_rule) {
  Seen seen;
  for (std::uint32_t seed = 401; seed <= 412 && !HasFailure(); ++seed) {
    run({.seed = seed, .wide_too = true, .sizes = {.disk_slots = 32, .disks = 3}}, 4000, seen);
  }
}

TEST_F(CacheModelTest, with_second_hit_blocks_are_written_when_the_model_says) {
  Seen seen;
  for (std::uint32_t seed = 501; seed <= 512 && !HasFailure(); ++seed) {
    run({.seed = seed, .sizes = {.admission = Admission::second_hit}}, 4000, seen);
  }
  EXPECT_GT(seen.evictions[index_of(Tier::host)], 1000U);
  EXPECT_GT(seen.hits[index_of(Tier::disk)], 100U);
}

// Engines lease a prefix, add blocks behind it, and release it, whatever the disk does meanwhile: a
// prefix's tail is always evicted before its head.
TEST_F(CacheModelTest, at_rest_no_block_is_newer_than_its_parent) {
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    std::mt19937 random(seed);
    TestCache cache;
    const std::uint16_t ns = cache.open(small_namespace("m"));
    const auto complete_some = [&] {
      while (random() % 4 != 0 && !cache.store().under_way().empty()) {
        const auto under_way = cache.store().under_way();
        cache.store().complete(under_way[random() % under_way.size()]);
      }
    };
    std::map<Key, Key> parents;
    for (int turn = 0; turn < 1500; ++turn) {
      const auto prompt = cache.prefix(ns, 12, static_cast<Token>(1 + 100 * (random() % 16)));
      const auto grant = cache.lease(ns, prompt);
      const std::size_t cached = grant.slots.size();
      complete_some();
      const bool early = random() % 2 == 0;
      if (early && grant.lease != 0) cache->release(1, grant.lease);
      if (!early) {
        for (std::size_t i = cached; i < prompt.size() && cache.tiers(prompt[i]).empty(); ++i) {
          if (!cache.put(ns, prompt[i])) break;
          parents[prompt[i].key()] = prompt[i].identity.parent;
          complete_some();
        }
        if (grant.lease != 0) cache->release(1, grant.lease);
      }
      if (turn % 5 != 0) continue;
      cache.store().complete_all();
      for (const Tier tier : {Tier::host, Tier::disk}) {
        const auto order = cache.order(tier, kRecordBytes);
        for (auto block = order.begin(); block != order.end(); ++block) {
          const auto parent = std::find(block, order.end(), parents[*block]);
          ASSERT_EQ(parent, order.end())
              << "seed " << seed << ", turn " << turn << ", " << name(tier);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvtier::daemon::testing
