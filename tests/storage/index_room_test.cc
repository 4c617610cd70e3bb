// The room of the index's tables: what is kept free for merges, and that nothing waits for one that
// it does not hold.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <iostream>
#include <random>

#include "core/base/units.h"
#include "storage/index/index.h"
#include "storage/index/index_options.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;

// RocksDB merges what is furthest past its size: while writes outrun the merges, the first level
// grows by the same factor as the fresh tables before it.
TEST(IndexRoom, IsEnoughForTheMergeThatHeldUpWritesWaitFor) {
  for (std::uint64_t share = 33_MiB; share < 128_GiB; share += share / 3) {
    const IndexBudget budget = IndexBudget::of(share);
    const auto options = index_family_options(budget, true, nullptr);
    const auto stop = static_cast<std::uint64_t>(options.level0_stop_writes_trigger);
    const auto begin = static_cast<std::uint64_t>(options.level0_file_num_compaction_trigger);
    const std::uint64_t merge =
        stop * options.write_buffer_size + options.max_bytes_for_level_base * stop / begin;
    EXPECT_LT(begin, static_cast<std::uint64_t>(options.level0_slowdown_writes_trigger)) << share;
    EXPECT_LT(options.level0_slowdown_writes_trigger, options.level0_stop_writes_trigger) << share;
    EXPECT_GE(budget.work_bytes, std::min(merge, budget.tables_bytes / 2)) << share;
    EXPECT_LE(budget.work_bytes, budget.tables_bytes / 2 + 4 * budget.buffer_bytes) << share;
  }
}

// More fresh tables than there is room to merge, as an index may have that was filled while merges
// were held.
void fill_unmerged(Index& index, std::mt19937_64& random) {
  Index::Batch batch;
  for (int i = 0; index.has_room(); i = (i + 1) % 1024) {
    DiskEntry entry;
    for (auto& one : entry.identity.key.bytes) one = static_cast<std::byte>(random());
    batch.put(entry);
    if (i < 1023) continue;
    ASSERT_TRUE(index.commit(batch));
  }
  ASSERT_TRUE(index.commit(batch));
}

void erase_as_many(Index& index, std::mt19937_64& random) {
  for (int turn = 0; turn < 200; ++turn) {
    Index::Batch batch;
    for (int i = 0; i < 1024; ++i) {
      Key key;
      for (auto& one : key.bytes) one = static_cast<std::byte>(random());
      batch.erase(key);
    }
    ASSERT_TRUE(index.commit(batch));
  }
}

TEST(IndexRoom, ChangesAndTheEndDoNotWaitForAMergeThatFindsNone) {
  constexpr std::uint64_t kShare = 128_MiB;  // of which a quarter is kept for merges
  const TestDirectory directory;
  std::promise<void> ended;
  auto end = ended.get_future();
  // A commit that waits for such a merge never returns, so that only this thread can tell.
  std::thread changes([&] {
    auto index = *Index::open({.directory = directory.path() / "index",
                               .bytes_max = kShare,
                               .compaction = Index::Compaction::held});
    std::mt19937_64 random(1);
    fill_unmerged(*index, random);
    EXPECT_FALSE(index->has_room());
    index->resume_compaction();
    erase_as_many(*index, random);
    EXPECT_TRUE(index->mark_complete());
    index.reset();
    ended.set_value();
  });
  if (end.wait_for(std::chrono::seconds(240)) != std::future_status::ready) {
    std::cerr << "the index waits for a merge for which there is no room\n";
    std::_Exit(EXIT_FAILURE);
  }
  changes.join();
}

}  // namespace
}  // namespace kvtier::storage
