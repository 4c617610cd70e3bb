// The parts of the memory tiers and the names of their extents.
#include "daemon/cache/tiers/memory_tiers.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/daemon/support/records.h"

namespace kvtier::daemon::testing {
namespace {

TEST(MemoryTiersTest, a_place_says_which_part_it_is_in_and_no_number_comes_twice) {
  const auto host = storage::make_memfd_extents(Tier::host, {});
  const auto first = storage::make_memfd_extents(Tier::device, {});
  const auto second = storage::make_memfd_extents(Tier::device, {});
  const Tenants tenants;
  const MemoryTier::Options one{kRecordBytes, kRecordBytes};
  MemoryTiers memory({one, one}, {{first.get(), second.get()}, host.get(), {}}, tenants);
  ASSERT_EQ(memory.devices(), 2U);
  std::set<std::uint32_t> numbers;
  memory.each([&](MemoryTier& part) {
    const auto at = part.take(kRecordBytes);
    ASSERT_TRUE(at);
    EXPECT_EQ(&memory.of(part.tier(), *at), &part);
    EXPECT_EQ(device_of(*at), part.device());
    numbers.insert(at->container & ((1U << limits::kExtentBits) - 1));
  });
  EXPECT_EQ(numbers.size(), 3U);
}

TEST(MemoryTiersTest, without_a_gpu_there_is_a_part_of_the_device_tier_with_no_room) {
  const auto host = storage::make_memfd_extents(Tier::host, {});
  const Tenants tenants;
  const MemoryTier::Options one{kRecordBytes, kRecordBytes};
  MemoryTiers memory({one, one}, {{}, host.get(), {}}, tenants);
  ASSERT_EQ(memory.devices(), 1U);
  EXPECT_FALSE(memory.of(Tier::device, std::uint32_t{0}).take(kRecordBytes));
}

TEST(MemoryTiersTest, numbers_come_from_where_they_are_kept_if_that_is_given) {
  const auto host = storage::make_memfd_extents(Tier::host, {});
  const Tenants tenants;
  const MemoryTier::Options one{kRecordBytes, kRecordBytes};
  MemoryTiers memory({one, one}, {{}, host.get(), [] { return 41U; }}, tenants);
  EXPECT_EQ(memory.host().take(kRecordBytes)->container, 41U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
