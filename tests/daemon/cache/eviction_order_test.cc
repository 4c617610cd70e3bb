// The order of recovered blocks, however many and however far apart their stamps are.
#include "daemon/cache/catalogue/eviction_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>

#include "daemon/cache/catalogue/disk_place.h"
#include "tests/daemon/cache/policy/keys.h"

namespace kvtier::daemon::testing {
namespace {

std::vector<std::byte> namespace_named(const std::string& model, std::uint32_t heads) {
  Namespace ns;
  ns.model = model;
  ns.layers = 1;
  ns.kv_heads = heads;
  ns.head_dim_k = ns.head_dim_v = 16;
  ns.block_tokens = 16;
  ns.format = StorageFormat::bf16;
  return encode(ns);
}

// A catalogue with some blocks on disk, which are not in its eviction order yet.
class RecoveredBlocks {
 public:
  explicit RecoveredBlocks(std::uint32_t blocks_max, EvictionPolicy policy = EvictionPolicy::lru)
      : directory_(DirectoryWriter::create(blocks_max, std::array<std::byte, 16>{}).value()),
        catalogue(blocks_max, directory_, Tenants(), policy) {
    catalogue.on_evictable = [this](Tier, Place at, TenantId, bool evictable, std::uint32_t count) {
      evictable_[at.container] += evictable ? count : 0 - count;
    };
  }
  BlockId add(std::uint16_t ns, std::uint64_t last_access, std::uint32_t block_index,
              std::uint32_t container = 0) {
    const BlockId id = catalogue.add(ns, key_of(added_++), {}, block_index);
    catalogue.set_last_access(id, last_access);
    catalogue.place_unlisted(id, Tier::disk, {container, id.value});
    return id;
  }
  std::uint64_t evictable_in(std::uint32_t container) const { return evictable_.at(container); }

 private:
  DirectoryWriter directory_;
  std::map<std::uint32_t, std::uint64_t> evictable_;
  std::uint64_t added_ = 0;

 public:
  Catalogue catalogue;
};

struct Case {
  std::uint32_t blocks;
  std::uint64_t stamps;      // last uses lie below it
  std::uint32_t index_bits;  // places in their prefixes
};

TEST(NewestFirst, IsByStampAndTheHeadBeforeTheTailAtAnySizeAndSpread) {
  for (const Case& of :
       {Case{0, 1, 0}, Case{1, 1, 0}, Case{1000, 50, 7}, Case{20'000, 1, 0}, Case{20'000, 300, 7},
        Case{40'000, 1ULL << 36, 12}, Case{40'000, 1ULL << 40, 20}, Case{40'000, ~0ULL, 0},
        Case{40'000, ~0ULL, 20}}) {
    RecoveredBlocks there(of.blocks + 1);
    const auto known = there.catalogue.open_namespace(namespace_named("known", 1)).value();
    const auto orphan = there.catalogue.namespaces().add_orphan(NamespaceId{}, 4096).value();
    std::mt19937_64 random(of.blocks);
    std::vector<BlockId> blocks;
    for (std::uint32_t i = 0; i < of.blocks; ++i) {
      const auto index = static_cast<std::uint32_t>(random() & ((1ULL << of.index_bits) - 1));
      blocks.push_back(there.add(i % 3 == 2 ? orphan : known, random() % of.stamps, index));
    }
    const auto before = blocks;
    sort_newest_first(there.catalogue, blocks);
    for (std::uint32_t i = 1; i < of.blocks; ++i) {
      const Block& newer = there.catalogue.block(blocks[i - 1]);
      const Block& older = there.catalogue.block(blocks[i]);
      ASSERT_TRUE(newer.ns == older.ns || (newer.ns == known && older.ns == orphan));
      if (newer.ns != older.ns) continue;
      ASSERT_GE(newer.last_access, older.last_access);
      if (newer.last_access == older.last_access) {
        ASSERT_LE(newer.block_index, older.block_index);
      }
    }
    std::ranges::sort(blocks);
    ASSERT_EQ(blocks, before);
  }
}

// Whether there is one order for all, or one for each size or device.
TEST(EnlistNewest, EachOrderHasItsBlocksAsTheyWereGivenAndTheyCanBeEvicted) {
  constexpr std::uint32_t kBlocks = 100;
  for (const auto policy : {EvictionPolicy::lru, EvictionPolicy::hit_density}) {
    for (const auto& [sizes, devices] : {std::pair(1U, 1U), std::pair(2U, 1U), std::pair(1U, 2U)}) {
      RecoveredBlocks there(kBlocks, policy);
      std::vector<BlockId> given;
      std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<BlockId>> orders;
      for (std::uint32_t i = 0; i < kBlocks; ++i) {
        const std::uint32_t size = i / 2 % sizes, device = i / 3 % devices;
        const auto ns = there.catalogue.open_namespace(namespace_named("m", 1 + 15 * size)).value();
        ASSERT_EQ(there.catalogue.namespaces()[ns].layout.record_bytes > 8192, size == 1);
        const std::uint32_t segment = disk_place(device, {0, 0}).container;
        given.push_back(there.add(ns, kBlocks - i, 0, segment));
        orders[{size, segment}].push_back(given.back());
      }
      there.catalogue.enlist_newest(given, Tier::disk);
      std::map<std::uint32_t, std::uint64_t> expected;
      for (const auto& [of, blocks] : orders) {
        BlockId at = blocks.back();
        for (auto newer = blocks.rbegin(); newer != blocks.rend(); ++newer) {
          ASSERT_EQ(at, *newer) << sizes << " sizes, " << devices << " devices";
          at = there.catalogue.evicted_after(at, Tier::disk);
        }
        ASSERT_EQ(at, kNoBlock);
        expected[of.second] += blocks.size();
      }
      for (const auto& [segment, blocks] : expected) EXPECT_EQ(there.evictable_in(segment), blocks);
      if (policy == EvictionPolicy::lru) {
        EXPECT_EQ(there.catalogue.oldest(Tier::disk), given.back());
      }
    }
  }
}

// An entry's links and user are only written to where another block had them before.
TEST(BlockIndexTest, AnEntryThatIsUsedAgainIsInNoOrderAndNobodys) {
  auto directory = DirectoryWriter::create(4, std::array<std::byte, 16>{}).value();
  BlockIndex index(4, directory);
  const BlockId first = index.insert(key_of(1), {});
  const auto is_nobodys = [&](BlockId id) {
    return index.user(id) == 0 &&
           std::ranges::none_of(kAllTiers, [&](Tier tier) { return index.is_listed(id, tier); });
  };
  EXPECT_TRUE(is_nobodys(first));
  for (const Tier tier : kAllTiers) LruList(index, tier).push_newest(first);
  EXPECT_TRUE(std::ranges::all_of(kAllTiers, [&](Tier t) { return index.is_listed(first, t); }));
  index.set_user(first, 7);
  index.erase(first);
  EXPECT_EQ(index.insert(key_of(2), {}), first);
  EXPECT_TRUE(is_nobodys(first));
}

}  // namespace
}  // namespace kvtier::daemon::testing
