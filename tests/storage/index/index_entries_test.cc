// Entries between their reading and their recovery, more than one piece of memory holds.
#include "storage/index/index_entries.h"

#include <gtest/gtest.h>

#include <cstring>

namespace kvtier::storage {
namespace {

constexpr std::uint64_t kEntries = 600'000;

DiskEntry entry_of(std::uint64_t number) {
  DiskEntry entry;
  std::memcpy(entry.identity.key.bytes.data(), &number, sizeof number);
  entry.identity.block_index = static_cast<std::uint32_t>(number % 100);
  entry.identity.ns.bytes[0] = std::byte(number % 3);
  entry.at = {static_cast<std::uint32_t>(number / 1000), static_cast<std::uint32_t>(number % 1000)};
  entry.record_bytes = 4096 * (1 + number % 2);
  entry.last_access = number + 1;
  return entry;
}

TEST(IndexEntriesTest, WhatIsLeftIsHandedOverInItsOrder) {
  IndexEntries entries;
  for (std::uint64_t number = 0; number < kEntries; ++number) entries.push_back(entry_of(number));
  ASSERT_EQ(entries.size(), kEntries);
  const auto is_odd = [](const DiskEntry& entry) { return entry.last_access % 2 == 0; };
  EXPECT_EQ(entries.erase_if(is_odd), kEntries / 2);
  ASSERT_EQ(entries.size(), kEntries / 2);
  std::uint64_t number = 0;
  entries.hand_over([&](const DiskEntry& entry) {
    const DiskEntry expected = entry_of(number);
    ASSERT_EQ(entry.identity.key, expected.identity.key);
    ASSERT_EQ(entry.identity.ns, expected.identity.ns);
    ASSERT_EQ(entry.identity.block_index, expected.identity.block_index);
    ASSERT_EQ(entry.at, expected.at);
    ASSERT_EQ(entry.record_bytes, expected.record_bytes);
    ASSERT_EQ(entry.last_access, expected.last_access);
    number += 2;
  });
  EXPECT_EQ(number, kEntries);
  EXPECT_EQ(entries.size(), 0U);
}

}  // namespace
}  // namespace kvtier::storage
