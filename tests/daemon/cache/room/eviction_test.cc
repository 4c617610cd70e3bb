// Who may be evicted, and for whose sake.
#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

class EvictionTest : public ::testing::Test {
 protected:
  static std::vector<Tenant> tenants() {
    Tenant guarded{.name = "guarded", .salts = {"g"}};
    guarded.limits[index_of(Tier::host)].guaranteed = 2 * kRecordBytes;
    return {{.name = "default", .salts = {}},
            guarded,
            {.name = "alone", .salts = {"a"}, .isolated = true}};
  }
  std::uint16_t open(const std::string& salt) {
    Namespace ns = small_namespace("m");
    ns.tenant = salt;
    return parts.open(ns);
  }
  CacheParts parts{CacheSizes{.tenants = tenants()}};
  MemoryTier& host = parts.memory.host();
  BlockId victim(TenantId sake, bool own_too = true) {
    return parts.eviction.victim(host, sake, kRecordBytes, own_too);
  }
};

TEST_F(EvictionTest, the_coldest_block_goes_that_nobody_holds) {
  const auto ns = open("");
  const auto first = parts.put(ns, parts.prefix(ns, 1, 1)[0]);
  const auto second = parts.put(ns, parts.prefix(ns, 1, 100)[0]);
  EXPECT_EQ(victim(kDefaultTenant), first);
  ASSERT_TRUE(parts.catalogue.hold(first, Tier::host));
  EXPECT_EQ(victim(kDefaultTenant), second);
  parts.eviction.evict(host, second, Removal::capacity);
  EXPECT_EQ(victim(kDefaultTenant), kNoBlock);
}

TEST_F(EvictionTest, nobody_is_left_with_less_than_is_guaranteed_to_it) {
  const auto ns = open("g");
  const auto blocks = parts.put_all(ns, parts.prefix(ns, 3, 1));
  const ExtentId extent(parts.catalogue.block(blocks[0]).places[index_of(Tier::host)].container);
  EXPECT_NE(victim(kDefaultTenant), kNoBlock);
  EXPECT_FALSE(parts.eviction.may_empty(host, extent, kDefaultTenant)) << "all three of them";
  EXPECT_TRUE(parts.eviction.may_empty(host, extent, parts.known(ns).tenant));
  parts.eviction.evict(host, victim(kDefaultTenant), Removal::capacity);
  EXPECT_EQ(victim(kDefaultTenant), kNoBlock);
  EXPECT_NE(victim(parts.known(ns).tenant), kNoBlock) << "its own it may give up";
  EXPECT_EQ(victim(parts.known(ns).tenant, false), kNoBlock);
}

TEST_F(EvictionTest, slots_of_an_isolated_tenant_serve_nobody_else) {
  const auto ns = open("a");
  const auto id = parts.put(ns, parts.prefix(ns, 1, 1)[0]);
  EXPECT_EQ(victim(kDefaultTenant), kNoBlock);
  EXPECT_EQ(victim(parts.known(ns).tenant), id);
}

}  // namespace
}  // namespace kvtier::daemon::testing
