// Slots that are lent: how many to whom, whose come home for whom, and what it costs to find out.
#include <time.h>

#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

Tenant tenant(const std::string& name, std::uint64_t quota_slots = kNoQuota,
              bool isolated = false) {
  Tenant of{name, {name}, isolated, {}};
  if (quota_slots != kNoQuota) {
    for (auto& limits : of.limits) limits.quota = quota_slots * kRecordBytes;
  }
  return of;
}
std::vector<Tenant> with_default(Tenant other) {
  return {{kDefaultTenantName, {}, false, {}}, std::move(other)};
}
Namespace of_tenant(const std::string& salt, const std::string& model = "m", bool wide = false) {
  Namespace ns = small_namespace(model, wide);
  ns.tenant = salt;
  return ns;
}
// Records of (1 + pages) * 4 KiB.
Namespace large_namespace(const std::string& model, std::uint32_t pages) {
  Namespace ns = small_namespace(model);
  ns.layers = pages;
  ns.head_dim_k = ns.head_dim_v = 4096 / (2 * kBlockTokens * 4);
  return ns;
}

constexpr ProcessId kMe{100, 1}, kOther{200, 1};

Borrower host_borrower(TestCache& cache, std::uint16_t ns, SessionId session = 1,
                       ProcessId process = kMe) {
  return cache->borrower(session, process, ns, Tier::host, 0, 0);
}

// Gives back what a recall asks of it, as a client does for which all lies idle.
struct Lent {
  SessionId session;
  std::uint16_t ns;
  std::vector<SlotName> slots;
};
void answer(TestCache& cache, const BlockCache::Recalls& recalls, std::vector<Lent>& all) {
  const auto give_back = [&](Lent& lent, auto&& unless) {
    std::vector<SlotName> stay;
    for (const SlotName slot : lent.slots) {
      if (unless(slot, stay.size())) {
        stay.push_back(slot);
      } else {
        cache->abandon(lent.session, slot);
      }
    }
    lent.slots = std::move(stay);
  };
  for (const auto& [session, recall] : recalls) {
    for (Lent& lent : all) {
      if (lent.session != session) continue;
      for (const auto extent : recall.extents)
        give_back(lent, [&](SlotName s, std::size_t) { return s >> 32 != extent.value; });
      for (const auto& keep : recall.keeps) {
        if (keep.ns == lent.ns)
          give_back(lent, [&](SlotName, std::size_t kept) { return kept < keep.slots; });
      }
    }
  }
}

// The walk ahead of evictions went on from a block that had been evicted, into no memory.
TEST(Loans, a_reserve_evicts_all_of_an_isolated_tenant_whose_blocks_are_of_the_same_size) {
  TestCache cache({.blocks_max = 2000,
                   .host_slots = 512,
                   .extent_slots = 128,
                   .tenants = with_default(tenant("apart", kNoQuota, true))},
                  false);
  const auto apart = cache.open(of_tenant("apart")), other = cache.open(of_tenant(""));
  const auto blocks = cache.prefix(apart, 512, 1);
  ASSERT_EQ(cache.put_all(apart, blocks), 512U);
  EXPECT_EQ(cache->reserve(2, kOther, other, Tier::host, 100).size(), 100U);
  EXPECT_EQ(cache->memory(Tier::host).used_by(1), 384 * kRecordBytes);
}

TEST(Loans, a_reserve_under_a_lowered_quota_evicts_what_is_above_it_and_goes_on) {
  TestCache cache({.blocks_max = 2000,
                   .host_slots = 512,
                   .extent_slots = 128,
                   .tenants = with_default(tenant("a", 400))},
                  false);
  const auto a = cache.open(of_tenant("a"));
  ASSERT_EQ(cache.put_all(a, cache.prefix(a, 310, 1)), 310U);
  ASSERT_TRUE(cache->set_limits(1, Tier::host, {250 * kRecordBytes, 0}));
  EXPECT_EQ(cache->reserve(2, kOther, a, Tier::host, 50).size(), 50U);
  EXPECT_EQ(cache->memory(Tier::host).used_by(1), 250 * kRecordBytes);
}

TEST(Loans, a_namespace_of_another_size_in_the_same_process_has_slots_at_once) {
  TestCache cache({.host_slots = 1024, .extent_slots = 128}, false);
  const auto small = cache.open(small_namespace("m"));
  const auto large = cache.open(large_namespace("l", 63));  // of which the tier has room for 32
  EXPECT_EQ(cache->reserve(1, kMe, small, Tier::host, 64).size(), 64U);
  EXPECT_EQ(cache->reserve(1, kMe, large, Tier::host, 64).size(), 6U) << "a quarter, in bytes";
}

TEST(Loans, a_process_without_a_share_left_is_asked_for_what_one_namespace_has_above_its_own) {
  TestCache cache({.host_slots = 128}, false);
  const auto first = cache.open(small_namespace("1")), second = cache.open(small_namespace("2"));
  std::vector<Lent> lent{{1, first, cache->reserve(1, kMe, first, Tier::host, 100)}};
  ASSERT_EQ(lent[0].slots.size(), 32U);
  const Borrower late = host_borrower(cache, second);
  EXPECT_TRUE(cache->lend(late, 64).empty());
  EXPECT_TRUE(cache->has_less_than_due(late));
  cache->set_asking(late, true);
  BlockCache::Recalls recalls;
  ASSERT_TRUE(cache->recall_for(late, recalls));
  ASSERT_EQ(recalls[1].keeps.size(), 1U);
  EXPECT_EQ(recalls[1].keeps[0].slots, 16U);
  answer(cache, recalls, lent);
  EXPECT_EQ(cache->lend(late, 64, true).size(), 16U);
  EXPECT_FALSE(cache->has_less_than_due(late));
  cache->set_asking(late, false);
  // Whoever has its share asks nobody for more.
  recalls.clear();
  EXPECT_FALSE(cache->recall_for(late, recalls));
}

TEST(Loans, sixty_four_namespaces_of_six_sizes_in_one_process_all_come_to_have_slots) {
  TestCache cache({.host_slots = 8192, .extent_slots = 256}, false);  // 64 MiB in extents of 2 MiB
  constexpr std::uint32_t kPages[] = {1, 2, 5, 11, 23, 40};
  std::vector<Lent> lent;
  std::vector<Borrower> waiting;
  for (std::uint32_t n = 0; n < 64; ++n) {
    const auto ns = cache.open(large_namespace(std::to_string(n), kPages[n % 6]));
    lent.push_back({1, ns, cache->reserve(1, kMe, ns, Tier::host, 64)});
    if (!lent.back().slots.empty()) continue;
    cache->set_asking(host_borrower(cache, ns), true);
    waiting.push_back(host_borrower(cache, ns));
  }
  ASSERT_FALSE(waiting.empty());
  for (int round = 0; round < 3; ++round) {
    BlockCache::Recalls recalls;
    for (const Borrower& who : waiting) cache->recall_for(who, recalls);
    answer(cache, recalls, lent);
    for (Lent& of : lent) {
      if (of.slots.empty()) of.slots = cache->lend(host_borrower(cache, of.ns), 64, true);
    }
  }
  for (const Lent& of : lent) EXPECT_GE(of.slots.size(), 1U) << of.ns;
  const auto all = cache->reservations().standing(host_borrower(cache, lent[0].ns)).part;
  EXPECT_LE(all.bytes, cache->memory(Tier::host).cap_bytes() / 4);
}

TEST(Loans, a_tenant_with_a_small_quota_gets_a_slot_of_its_largest_size) {
  TestCache cache(
      {.host_slots = 512, .extent_slots = 64, .tenants = with_default(tenant("a", 128))}, false);
  const auto small = cache.open(of_tenant("a"));
  Namespace wanted = large_namespace("l", 127);  // half the quota
  wanted.tenant = "a";
  const auto large = cache.open(wanted);
  std::vector<Lent> lent{{1, small, cache->reserve(1, kMe, small, Tier::host, 64)}};
  ASSERT_EQ(lent[0].slots.size(), 32U);
  const Borrower late = host_borrower(cache, large);
  auto slots = cache->lend(late, 4);
  if (slots.empty()) {
    BlockCache::Recalls recalls;
    ASSERT_TRUE(cache->recall_for(late, recalls));
    answer(cache, recalls, lent);
    slots = cache->lend(late, 4);
  }
  EXPECT_EQ(slots.size(), 1U);
}

TEST(Loans, what_processes_that_answer_nothing_have_leaves_the_next_one_its_share) {
  TestCache cache({.host_slots = 256}, false);
  const auto ns = cache.open(small_namespace("m"));
  std::uint64_t before = 256;
  for (std::uint32_t pid = 1; pid <= 8; ++pid) {
    const auto slots = cache->reserve(pid, {pid, 1}, ns, Tier::host, 256);
    EXPECT_EQ(slots.size(), before / 4) << pid;
    before -= slots.size();
  }
}

TEST(Loans, an_extent_that_only_idle_slots_keep_goes_to_another_size_once_they_are_home) {
  TestCache cache({.host_slots = 64}, false);  // four extents
  const auto ns = cache.open(small_namespace("m")), wide = cache.open(small_namespace("w", true));
  std::vector<Lent> lent;
  std::vector<TestBlock> blocks = cache.prefix(ns, 64, 1);
  std::size_t filled = 0;
  // A slot of each extent is lent, the others are full.
  for (int extent = 0; extent < 4; ++extent) {
    lent.push_back({2, ns, cache->reserve(2, kOther, ns, Tier::host, 1)});
    for (int i = 0; i < 15; ++i) ASSERT_TRUE(cache.put(ns, blocks[filled++]));
  }
  const Borrower late = host_borrower(cache, wide);
  ASSERT_TRUE(cache->lend(late, 4).empty());
  EXPECT_EQ(cache->catalogue().counts(Tier::host).evictions(), 0U);
  BlockCache::Recalls recalls;
  ASSERT_TRUE(cache->recall_for(late, recalls));
  ASSERT_EQ(recalls[2].extents.size(), 1U);
  EXPECT_EQ(cache->catalogue().counts(Tier::host).evictions(), 0U) << "they are not home yet";
  answer(cache, recalls, lent);
  EXPECT_GE(cache->lend(late, 4).size(), 1U);
  EXPECT_EQ(cache->catalogue().counts(Tier::host).evictions(), 15U);
}

TEST(Loans, an_extent_that_a_lowered_cap_takes_is_asked_for) {
  TestCache cache({.host_slots = 32}, false);
  const auto ns = cache.open(small_namespace("m"));
  std::vector<Lent> lent{{2, ns, cache->reserve(2, kOther, ns, Tier::host, 8)}};
  ASSERT_EQ(lent[0].slots.size(), 8U);
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 24, 1)), 24U);
  MemoryTier& host = cache->memory(Tier::host);
  ASSERT_EQ(host.taken_bytes(), 32 * kRecordBytes);
  host.set_cap(4 * kRecordBytes);
  for (int i = 0; i < 4 && cache->shrink(); ++i) {
    BlockCache::Recalls recalls;
    cache->recall_for_cap(recalls);
    answer(cache, recalls, lent);
  }
  EXPECT_EQ(host.taken_bytes(), 0U);
  EXPECT_TRUE(lent[0].slots.empty());
}

// Each looked at every slot of the tier, and a session may ask thousands of times a second.
TEST(Loans, a_reserve_that_finds_no_room_looks_at_no_slots) {
  constexpr std::uint32_t kSlots = 16384;
  TestCache cache(
      {.blocks_max = kSlots, .device_slots = 0, .host_slots = kSlots, .extent_slots = 1024}, false);
  const auto ns = cache.open(small_namespace("m")), wide = cache.open(small_namespace("w", true));
  const auto blocks = cache.prefix(ns, kSlots, 1);
  ASSERT_EQ(cache.put_all(ns, blocks), kSlots);
  // In every extent the last slot is in use.
  std::vector<BlockId> held;
  for (const TestBlock& block : blocks) {
    const BlockId id = cache->catalogue().find(ns, block.key());
    if (cache->catalogue().block(id).places[index_of(Tier::host)].slot != 1023) continue;
    ASSERT_TRUE(cache->catalogue().hold(id, Tier::host));
    held.push_back(id);
  }
  ASSERT_EQ(held.size(), kSlots / 1024);
  const auto cpu_time = [] {
    timespec now;
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  };
  const Borrower late = host_borrower(cache, wide);
  const auto before = cpu_time();
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(cache->lend(late, 4).empty());
    BlockCache::Recalls recalls;
    ASSERT_FALSE(cache->recall_for(late, recalls));
  }
  EXPECT_LT(cpu_time() - before, std::chrono::milliseconds(200)) << "0.1 ms each";
  cache->catalogue().unhold(held[5], Tier::host);
  EXPECT_FALSE(cache->lend(late, 4).empty());
}

TEST(Loans, a_large_extent_is_emptied_in_steps_between_turns_of_the_loop) {
  constexpr std::uint32_t kSlots = 2 * limits::kEmptyStep + 100;
  TestCache cache(
      {.blocks_max = kSlots, .device_slots = 0, .host_slots = kSlots, .extent_slots = kSlots},
      false);
  std::deque<std::function<void()>> later;
  cache->later = [&](std::function<void()> task) { later.push_back(std::move(task)); };
  bool room = false;
  cache->on_room = [&] { room = true; };
  const auto ns = cache.open(small_namespace("m")), wide = cache.open(small_namespace("w", true));
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, kSlots, 1)), kSlots);
  const auto left = [&] { return cache->catalogue().counts(Tier::host).blocks; };
  std::uint64_t before = left();
  EXPECT_TRUE(cache->reserve(2, kOther, wide, Tier::host, 4).empty());
  while (!later.empty()) {
    EXPECT_LE(before - left(), limits::kEmptyStep);
    before = left();
    const auto task = std::move(later.front());
    later.pop_front();
    task();
  }
  EXPECT_TRUE(room);
  EXPECT_EQ(left(), 0U);
  EXPECT_EQ(cache->reserve(2, kOther, wide, Tier::host, 4).size(), 4U);
}

TEST(Loans, a_block_leased_while_its_extent_is_emptied_keeps_it) {
  constexpr std::uint32_t kSlots = limits::kEmptyStep + 100;
  TestCache cache(
      {.blocks_max = kSlots, .device_slots = 0, .host_slots = kSlots, .extent_slots = kSlots},
      false);
  std::deque<std::function<void()>> later;
  cache->later = [&](std::function<void()> task) { later.push_back(std::move(task)); };
  const auto ns = cache.open(small_namespace("m")), wide = cache.open(small_namespace("w", true));
  const auto blocks = cache.prefix(ns, kSlots, 1);
  ASSERT_EQ(cache.put_all(ns, blocks), kSlots);
  EXPECT_TRUE(cache->reserve(2, kOther, wide, Tier::host, 4).empty());
  ASSERT_EQ(later.size(), 1U);
  const auto held = std::ranges::find_if(
      blocks, [&](const TestBlock& b) { return cache.find(b.key()) != nullptr; });
  ASSERT_NE(held, blocks.end());
  ASSERT_TRUE(cache->catalogue().hold(cache->catalogue().find(ns, held->key()), Tier::host));
  later.front()();
  EXPECT_FALSE(cache->memory(Tier::host).draining());
  EXPECT_NE(cache.find(held->key()), nullptr);
  EXPECT_EQ(cache->reserve(2, kOther, ns, Tier::host, 4).size(), 4U)
      << "its free slots are to be had";
}

}  // namespace
}  // namespace kvtier::daemon::testing
