// What tenants may have of the cache, and what others may not take of it.
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

constexpr std::size_t kHost = 1;

Tenant tenant(const std::string& name, std::uint64_t quota_slots = kNoQuota,
              std::uint64_t guaranteed_slots = 0, bool isolated = false) {
  Tenant of{name, {name}, isolated, {}};
  for (auto& limits : of.limits) {
    if (quota_slots != kNoQuota) limits.quota = quota_slots * kRecordBytes;
    limits.guaranteed = guaranteed_slots * kRecordBytes;
  }
  return of;
}
std::vector<Tenant> tenants(std::vector<Tenant> named) {
  std::vector<Tenant> all{{kDefaultTenantName, {}, false, {}}};
  all.insert(all.end(), named.begin(), named.end());
  return all;
}
Namespace of_tenant(const std::string& salt, bool wide = false) {
  Namespace ns = small_namespace("m", wide);
  ns.tenant = salt;
  return ns;
}

class TenantsTest : public ::testing::Test {
 protected:
  std::uint64_t used(TestCache& cache, TenantId tenant) {
    return cache->memory(Tier::host).used_by(tenant) / kRecordBytes;
  }
  // Leaves no write under way, so that nothing is held.
  std::size_t put_all(TestCache& cache, std::uint16_t ns, std::span<const TestBlock> blocks) {
    const std::size_t taken = cache.put_all(ns, blocks);
    cache.store().complete_all();
    return taken;
  }
  std::size_t in_host(TestCache& cache, std::span<const TestBlock> blocks) {
    return static_cast<std::size_t>(std::ranges::count_if(
        blocks, [&](const TestBlock& b) { return cache.tiers(b).has(Tier::host); }));
  }
};

TEST_F(TenantsTest, a_tenant_at_its_quota_evicts_its_own_oldest_blocks_and_no_others) {
  TestCache cache({.tenants = tenants({tenant("a", 10)})}, false);
  const auto a = cache.open(of_tenant("a")), other = cache.open(of_tenant(""));
  const auto theirs = cache.prefix(other, 5, 9000);
  ASSERT_EQ(put_all(cache, other, theirs), 5U);
  std::vector<TestBlock> mine;
  for (Token i = 0; i < 14; ++i) mine.push_back(cache.prefix(a, 1, 1 + 100 * i)[0]);
  ASSERT_EQ(put_all(cache, a, mine), 14U);
  EXPECT_EQ(used(cache, 1), 10U);
  EXPECT_EQ(in_host(cache, theirs), 5U);
  EXPECT_EQ(in_host(cache, std::span(mine).first(4)), 0U);
  EXPECT_EQ(in_host(cache, std::span(mine).subspan(4)), 10U);
}

TEST_F(TenantsTest, what_is_guaranteed_stays_whatever_others_do) {
  TestCache cache({.tenants = tenants({tenant("a", kNoQuota, 12)})}, false);
  const auto a = cache.open(of_tenant("a")), other = cache.open(of_tenant(""));
  const auto mine = cache.prefix(a, 15, 1);
  ASSERT_EQ(put_all(cache, a, mine), 15U);
  for (Token i = 0; i < 100; ++i) put_all(cache, other, cache.prefix(other, 1, 9000 + 100 * i));
  EXPECT_EQ(used(cache, 1), 12U);
  EXPECT_EQ(in_host(cache, mine), 12U);
  EXPECT_EQ(used(cache, 0), 28U);
}

TEST_F(TenantsTest,
       what_is_guaranteed_can_be_had_though_all_is_full_and_ones_own_blocks_are_coldest) {
  TestCache cache({.tenants = tenants({tenant("a", kNoQuota, 12)})}, false);
  const auto a = cache.open(of_tenant("a")), other = cache.open(of_tenant(""));
  const auto mine = cache.prefix(a, 12, 1), theirs = cache.prefix(other, 39, 1);
  ASSERT_EQ(put_all(cache, a, std::span(mine).first(1)), 1U);
  ASSERT_EQ(put_all(cache, other, theirs), 39U);
  for (std::size_t i = 1; i < 12; ++i) {
    ASSERT_EQ(put_all(cache, a, std::span(mine).subspan(i, 1)), 1U);
    ASSERT_NE(cache.lease(other, std::span(theirs).first(28)).lease, 0U);
    cache->release_all(1);
  }
  EXPECT_EQ(in_host(cache, mine), 12U);
  EXPECT_EQ(used(cache, 0), 28U);
}

TEST_F(TenantsTest, the_coldest_block_above_a_guarantee_goes_whosever_it_is) {
  TestCache cache({.tenants = tenants({tenant("a"), tenant("b")})}, false);
  const auto a = cache.open(of_tenant("a")), b = cache.open(of_tenant("b"));
  const auto first = cache.prefix(a, 20, 1), second = cache.prefix(b, 20, 1);
  ASSERT_EQ(put_all(cache, a, first) + put_all(cache, b, second), 40U);
  ASSERT_NE(cache.lease(a, first).lease, 0U);  // now b's are the coldest
  cache->release_all(1);
  ASSERT_EQ(put_all(cache, a, cache.prefix(a, 5, 7000)), 5U);
  EXPECT_EQ(used(cache, 1), 25U);
  EXPECT_EQ(used(cache, 2), 15U);
  EXPECT_EQ(in_host(cache, first), 20U);
}

TEST_F(TenantsTest, a_slot_reserved_for_one_tenant_takes_no_block_of_another) {
  TestCache cache({.tenants = tenants({tenant("a")})}, false);
  const auto a = cache.open(of_tenant("a")), other = cache.open(of_tenant(""));
  const auto slots = cache->reserve(1, TestCache::kWriter, a, Tier::host, 1);
  const auto block = cache.prefix(other, 1, 1)[0];
  fill_record(cache.record(slots[0]), cache.known(other).layout, block);
  EXPECT_FALSE(cache.commit(other, block, slots));
  EXPECT_EQ(cache->counts().refused_commits, 1U);
  EXPECT_EQ(used(cache, 1), 0U);
}

TEST_F(TenantsTest, an_isolated_tenants_slots_are_in_extents_of_its_own_within_its_quota) {
  TestCache cache({.tenants = tenants({tenant("a", 20, 0, true)})}, false);
  const auto a = cache.open(of_tenant("a")), other = cache.open(of_tenant(""));
  // Its extents (16 slots, then 4) end at the quota; others have the rest, and then only their own.
  for (Token i = 0; i < 30; ++i) put_all(cache, a, cache.prefix(a, 1, 1 + 100 * i));
  for (Token i = 0; i < 60; ++i) put_all(cache, other, cache.prefix(other, 1, 1 + 100 * i));
  EXPECT_EQ(used(cache, 1), 20U);
  EXPECT_EQ(used(cache, 0), 20U);
  std::map<std::uint32_t, std::set<TenantId>> in_extent;
  cache->catalogue().each([&](BlockId id) {
    const Block& block = cache->catalogue().block(id);
    in_extent[block.places[kHost].container].insert(cache->catalogue().tenant(id));
    return true;
  });
  for (const auto& [extent, of] : in_extent) EXPECT_EQ(of.size(), 1U) << extent;
}

TEST_F(TenantsTest, whole_extents_go_to_a_tenant_that_has_less_than_its_guarantee) {
  auto all = tenants({tenant("a", 24, 16, true)});
  all[0].limits[kHost].guaranteed = 24 * kRecordBytes;
  TestCache cache({.tenants = all}, false);
  const auto a = cache.open(of_tenant("a")), other = cache.open(of_tenant(""));
  for (Token i = 0; i < 40; ++i) put_all(cache, other, cache.prefix(other, 1, 1 + 100 * i));
  EXPECT_EQ(used(cache, 0), 40U);
  // An extent of 16 slots may go.
  for (Token i = 0; i < 40; ++i) put_all(cache, a, cache.prefix(a, 1, 1 + 100 * i));
  EXPECT_EQ(used(cache, 0), 24U);
  EXPECT_EQ(used(cache, 1), 16U);
  // And none back, whoever puts what.
  for (Token i = 0; i < 40; ++i) put_all(cache, other, cache.prefix(other, 1, 90001 + 100 * i));
  EXPECT_EQ(used(cache, 0), 24U);
  EXPECT_EQ(used(cache, 1), 16U);
  EXPECT_EQ(cache->memory(Tier::host).taken_bytes(), cache->memory(Tier::host).cap_bytes());
}

TEST_F(TenantsTest, a_quota_that_is_lowered_is_kept_from_the_next_trim_on) {
  TestCache cache({.tenants = tenants({tenant("a", 30), tenant("b", kNoQuota, 10)})});
  const auto a = cache.open(of_tenant("a"));
  const auto blocks = cache.prefix(a, 25, 1);
  ASSERT_EQ(put_all(cache, a, blocks), 25U);
  for (const Tier tier : {Tier::host, Tier::disk})
    ASSERT_TRUE(cache->set_limits(1, tier, {7 * kRecordBytes, 0}));
  cache->trim();
  cache.store().complete_all();
  EXPECT_EQ(used(cache, 1), 7U);
  EXPECT_EQ(cache->disk().used_by(1), 7 * kRecordBytes);
  EXPECT_EQ(in_host(cache, std::span(blocks).first(7)), 7U);  // tails go before heads
  const auto refused = cache->set_limits(1, Tier::host, {kNoQuota, 31 * kRecordBytes});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::invalid);
  EXPECT_FALSE(cache->set_limits(1, Tier::host, {5, 6}));
}

TEST_F(TenantsTest, on_disk_a_tenant_at_its_quota_replaces_its_own_blocks_of_any_size) {
  TestCache cache({.host_slots = 60, .tenants = tenants({tenant("a", 20)})});
  const auto a = cache.open(of_tenant("a")), wide = cache.open(of_tenant("a", true));
  const auto other = cache.open(of_tenant(""));
  ASSERT_EQ(put_all(cache, other, cache.prefix(other, 10, 1)), 10U);
  for (Token i = 0; i < 30; ++i) put_all(cache, a, cache.prefix(a, 1, 1 + 100 * i));
  EXPECT_EQ(cache->disk().used_by(1), 20 * kRecordBytes);
  for (Token i = 0; i < 30; ++i) put_all(cache, wide, cache.prefix(wide, 1, 1 + 100 * i));
  EXPECT_LE(cache->disk().used_by(1), 20 * kRecordBytes);
  EXPECT_GT(cache.known(wide).bytes[index_of(Tier::disk)], 0U);
  EXPECT_EQ(cache->disk().used_by(0), 10 * kRecordBytes);
}

TEST_F(TenantsTest, a_full_index_takes_no_block_that_is_guaranteed) {
  TestCache cache({.blocks_max = 16, .tenants = tenants({tenant("a", kNoQuota, 6)})}, false);
  const auto a = cache.open(of_tenant("a")), other = cache.open(of_tenant(""));
  const auto mine = cache.prefix(a, 6, 1);
  ASSERT_EQ(put_all(cache, a, mine), 6U);
  for (Token i = 0; i < 50; ++i) put_all(cache, other, cache.prefix(other, 1, 9000 + 100 * i));
  EXPECT_EQ(in_host(cache, mine), 6U);
  EXPECT_EQ(cache->catalogue().size(), 16U);
}

TEST_F(TenantsTest, one_tenant_cannot_use_up_the_namespaces_of_all) {
  TestCache cache({.tenants = tenants({tenant("a")})}, false);
  Namespace ns = of_tenant("a");
  for (std::uint32_t n = 0; n < limits::kNamespacesPerTenantMax; ++n) {
    ns.model = std::to_string(n);
    const auto opened = cache->open_namespace(encode(ns));
    ASSERT_TRUE(opened);
    ++cache->catalogue().namespaces()[*opened].opened;
  }
  ns.model = "one more";
  const auto refused = cache->open_namespace(encode(ns));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::no_space);
  EXPECT_NE(refused.error().message.find("tenant 'a'"), std::string::npos);
  EXPECT_TRUE(cache->open_namespace(encode(of_tenant(""))));
}

TEST_F(TenantsTest, one_session_holds_no_more_than_its_share_of_a_tier) {
  TestCache cache({.leased_percent = 50}, false);
  const auto ns = cache.open(small_namespace("m"));
  const auto blocks = cache.prefix(ns, 30, 1);
  ASSERT_EQ(put_all(cache, ns, blocks), 30U);
  const auto held = cache.lease(ns, blocks, 1);
  EXPECT_EQ(held.slots.size(), 20U);
  EXPECT_EQ(cache.lease(ns, blocks, 2).slots.size(), 20U);  // another session's share
  EXPECT_EQ(cache->held_by(1).leased_blocks, 20U);
  cache->release(1, held.lease);
  EXPECT_EQ(cache.lease(ns, blocks, 1).slots.size(), 20U);
}

// The prefix was cut at the session's share of the device tier although the host had all of it.
TEST_F(TenantsTest, a_lease_past_the_share_of_the_device_tier_goes_on_in_the_host_tier) {
  TestCache cache({.leased_percent = 50}, false);
  const auto ns = cache.open(small_namespace("m"));
  const auto blocks = cache.prefix(ns, 20, 1);
  ASSERT_EQ(put_all(cache, ns, blocks), 20U);
  ASSERT_EQ(cache.put_all(ns, blocks, Tier::device), 20U);
  const auto held = cache.lease(ns, blocks, 1);
  ASSERT_EQ(held.slots.size(), 20U);
  for (std::size_t i = 0; i < blocks.size(); ++i)
    EXPECT_EQ(held.tiers[i], i < 12 ? Tier::device : Tier::host) << i;
  EXPECT_EQ(cache.lease(ns, blocks, 2).tiers[0], Tier::device);  // another session's share
  cache->release(1, held.lease);
  EXPECT_EQ(cache.lease(ns, blocks, 1).slots.size(), 20U);
}

TEST_F(TenantsTest, a_lease_past_the_share_of_the_device_tier_reads_from_disk_what_only_it_has) {
  TestCache cache({.leased_percent = 50});
  const auto ns = cache.open(small_namespace("m"));
  const auto blocks = cache.prefix(ns, 20, 1);
  ASSERT_EQ(put_all(cache, ns, blocks), 20U);
  ASSERT_EQ(cache.put_all(ns, blocks, Tier::device), 20U);
  cache.store().complete_all();
  ASSERT_EQ(cache->drop(ns, TierSet{}.with(Tier::host)), 20U);
  const auto held = cache.lease(ns, blocks, 1);
  ASSERT_EQ(held.slots.size(), 20U);
  EXPECT_EQ(std::ranges::count(held.tiers, Tier::disk), 8);
  cache.store().complete_all();
  ASSERT_EQ(cache.ready.size(), 8U);
  for (const auto& landed : cache.ready) {
    ASSERT_NE(landed.slot, 0U) << landed.block;
    EXPECT_TRUE(record_is(cache.record(landed.slot), cache.known(ns).layout, blocks[landed.block]));
  }
}

TEST_F(TenantsTest, a_block_in_many_leases_of_one_session_counts_once) {
  TestCache cache({.leased_percent = 50}, false);
  const auto ns = cache.open(small_namespace("m"));
  const auto blocks = cache.prefix(ns, 30, 1);
  ASSERT_EQ(put_all(cache, ns, blocks), 30U);
  const auto shared = std::span(blocks).first(15);
  std::vector<LeaseId> leases;
  for (int i = 0; i < 10; ++i) {
    const auto held = cache.lease(ns, shared, 1);
    EXPECT_EQ(held.slots.size(), 15U) << i;
    leases.push_back(held.lease);
  }
  // Leased again and released once, they still count.
  cache->release(1, leases[0]);
  EXPECT_EQ(cache.lease(ns, blocks, 1).slots.size(), 20U);
  const auto others = cache.prefix(ns, 5, 7000);
  ASSERT_EQ(put_all(cache, ns, others), 5U);
  EXPECT_EQ(cache.lease(ns, others, 1).slots.size(), 0U);
  cache->release_all(1);
  EXPECT_EQ(cache.lease(ns, others, 1).slots.size(), 5U);
}

TEST_F(TenantsTest, orphans_count_for_their_tenant_once_their_namespace_is_opened) {
  TestCache before({.tenants = tenants({tenant("a")})});
  const auto a = before.open(of_tenant("a"));
  const auto mine = before.prefix(a, 9, 1);
  ASSERT_EQ(put_all(before, a, mine), 9U);
  for (std::size_t d = 0; d < before.store().size(); ++d) before.store()[d].lose_namespaces();
  auto directory = DirectoryWriter::create(400, std::array<std::byte, 16>{}).value();
  const auto memory = storage::make_memfd_extents(Tier::host, {});
  BlockCache after(TestCache::options({.tenants = tenants({tenant("a", 4)})}),
                   {{}, memory.get(), TestCache::ports(before.store()), &directory});
  ASSERT_TRUE(after.recover());
  EXPECT_EQ(after.disk().used_by(0), 9 * kRecordBytes);
  ASSERT_TRUE(after.open_namespace(encode(of_tenant("a"))));
  EXPECT_EQ(after.disk().used_by(0), 0U);
  EXPECT_EQ(after.disk().used_by(1), 9 * kRecordBytes);
  after.trim();
  EXPECT_EQ(after.disk().used_by(1), 4 * kRecordBytes);
  before.store().complete_all();
  EXPECT_EQ(before.store().records(), 4U);
}

TEST_F(TenantsTest, a_report_is_believed_of_a_leased_block_whose_record_does_not_hold) {
  TestCache cache({}, false);
  const auto ns = cache.open(small_namespace("m"));
  const auto blocks = cache.prefix(ns, 3, 1);
  ASSERT_EQ(put_all(cache, ns, blocks), 3U);
  const std::vector<std::uint16_t> opened{ns};
  const std::vector<Key> last{blocks[2].key()};
  EXPECT_EQ(cache->report_bad(1, opened, last), 1U);  // not leased
  const auto held = cache.lease(ns, blocks);
  EXPECT_EQ(cache->report_bad(1, opened, last), 1U);  // it holds
  EXPECT_EQ(cache->report_bad(2, opened, last), 1U);  // another's lease
  cache.record(held.slots[2])[cache.known(ns).layout.proof_offset] ^= std::byte{1};
  EXPECT_EQ(cache->report_bad(2, opened, last), 1U);
  EXPECT_EQ(cache->report_bad(1, {}, last), 1U);  // of a namespace not opened
  EXPECT_NE(cache.find(last[0]), nullptr);
  EXPECT_EQ(cache->report_bad(1, opened, last), 0U);
  EXPECT_EQ(cache->catalogue().find(ns, last[0]), kNoBlock);
}

}  // namespace
}  // namespace kvtier::daemon::testing
