// The order of recovered blocks, however many and however far apart their stamps are.
#include "daemon/cache/catalogue/eviction_order.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

namespace kvtier::daemon {
namespace {

struct Case {
  std::uint32_t blocks;
  std::uint64_t stamps;      // last uses lie below it
  std::uint32_t index_bits;  // places in their prefixes
};

TEST(OldestFirst, IsByStampAndTheTailBeforeTheHeadAtAnySizeAndSpread) {
  auto directory = DirectoryWriter::create(16, std::array<std::byte, 16>{});
  ASSERT_TRUE(directory);
  const Catalogue catalogue(16, *directory);
  for (const Case& of :
       {Case{0, 1, 0}, Case{1, 1, 0}, Case{1000, 50, 7}, Case{20'000, 1, 0}, Case{20'000, 300, 7},
        Case{40'000, 1ULL << 40, 12}, Case{40'000, ~0ULL, 0}, Case{40'000, ~0ULL, 20}}) {
    std::mt19937_64 random(of.blocks);
    std::vector<Recovered> blocks(of.blocks);
    for (std::uint32_t id = 0; id < of.blocks; ++id) {
      blocks[id] = {random() % of.stamps,
                    static_cast<std::uint32_t>(random() & ((1ULL << of.index_bits) - 1)),
                    BlockId(id)};
    }
    const auto before = blocks;
    const auto ids = oldest_first(catalogue, blocks);
    ASSERT_EQ(ids.size(), of.blocks);
    std::vector<bool> seen(of.blocks);
    for (std::uint32_t i = 0; i < of.blocks; ++i) {
      ASSERT_FALSE(seen[ids[i].value]);
      seen[ids[i].value] = true;
      if (i == 0) continue;
      const Recovered &older = before[ids[i - 1].value], &newer = before[ids[i].value];
      ASSERT_LE(older.last_access, newer.last_access);
      if (older.last_access < newer.last_access) continue;
      ASSERT_GE(older.block_index, newer.block_index);
    }
  }
}

}  // namespace
}  // namespace kvtier::daemon
