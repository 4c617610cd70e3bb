#include "storage/memory/slot_table.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/units.h"

namespace kvtier::storage {
namespace {

SlotTable make_table(std::uint32_t slots = 8) {
  SlotTableHeader header{};
  header.extent_id = 7;
  header.tier = 1;
  header.slots = slots;
  header.slot_bytes = 8_KiB;
  header.extent_bytes = slots * 8_KiB;
  return *SlotTable::create(header);
}

SlotEntry identity(unsigned char first) {
  SlotEntry entry{};
  entry.ns.bytes.fill(std::byte{first});
  entry.key.bytes.fill(std::byte(first + 1));
  entry.parent.bytes.fill(std::byte(first + 2));
  entry.block_index = first;
  entry.last_access = 99;
  return entry;
}

Result<SlotTable> adopt_copy(const SlotTable& table) {
  return SlotTable::adopt(UniqueFd(::dup(table.fd())));
}

void overwrite(const SlotTable& table, std::size_t offset, std::uint32_t value) {
  ASSERT_EQ(::pwrite(table.fd(), &value, sizeof value, static_cast<off_t>(offset)),
            static_cast<ssize_t>(sizeof value));
}

TEST(SlotTable, FreshTableHasEverySlotFree) {
  const SlotTable table = make_table();
  for (std::uint32_t slot = 0; slot < 8; ++slot) {
    EXPECT_EQ(table.entry(slot).state, SlotState::free);
  }
}

TEST(SlotTable, SlotGoesFromFreeToReservedToSealedToFree) {
  SlotTable table = make_table();
  table.set_reserved(3, {1234, 5678});
  EXPECT_EQ(table.entry(3).state, SlotState::reserved);
  EXPECT_EQ(table.entry(3).owner_pid, 1234u);
  EXPECT_EQ(table.entry(3).owner_start_time, 5678u);
  table.set_sealed(3, identity(10));
  EXPECT_EQ(table.entry(3).state, SlotState::sealed);
  EXPECT_EQ(table.entry(3).key, identity(10).key);
  EXPECT_EQ(table.entry(3).owner_pid, 0u);
  table.set_free(3);
  EXPECT_EQ(table.entry(3).state, SlotState::free);
  EXPECT_TRUE(table.entry(3).key.is_zero());
}

TEST(SlotTable, QuarantinedSlotKeepsItsOwnerUntilItIsFree) {
  SlotTable table = make_table();
  table.set_reserved(0, {42, 43});
  table.set_quarantined(0);
  EXPECT_EQ(table.entry(0).state, SlotState::quarantined);
  EXPECT_EQ(table.entry(0).owner_pid, 42u);
  table.set_free(0);
  EXPECT_EQ(table.entry(0).owner_pid, 0u);
}

TEST(SlotTable, TransitionThatIsNotOneAborts) {
  SlotTable table = make_table();
  EXPECT_DEATH(table.set_sealed(0, identity(1)), "check failed");
  EXPECT_DEATH(table.set_quarantined(0), "check failed");
  EXPECT_DEATH(table.set_free(0), "check failed");
  EXPECT_DEATH(table.set_free(8), "check failed");
  table.set_reserved(0, {1, 1});
  EXPECT_DEATH(table.set_reserved(0, {1, 1}), "check failed");
}

TEST(SlotTable, AdoptedTableShowsWhatItsCreatorWrote) {
  SlotTable table = make_table();
  table.set_reserved(1, {1, 1});
  table.set_reserved(2, {1, 1});
  table.set_sealed(2, identity(20));
  table.set_flags(2, kDiskOwed);
  table.set_last_access(2, 123);
  const auto adopted = adopt_copy(table);
  ASSERT_TRUE(adopted);
  EXPECT_EQ(adopted->header().extent_id, 7u);
  EXPECT_EQ(adopted->entry(1).state, SlotState::reserved);
  EXPECT_EQ(adopted->entry(2).state, SlotState::sealed);
  EXPECT_EQ(adopted->entry(2).parent, identity(20).parent);
  EXPECT_EQ(adopted->entry(2).flags, kDiskOwed);
  EXPECT_EQ(adopted->entry(2).last_access, 123u);
}

// A process that dies between two stores leaves a prefix of them, in program order as the state is
// stored with release. So: a child seals slots as fast as it can and is killed; no sealed slot may
// be half another.
TEST(SlotTable, SlotSealedByAKilledProcessIsWhole) {
  for (int round = 0; round < 20; ++round) {
    SlotTable table = make_table(1);
    SlotTable watcher = *adopt_copy(table);
    const pid_t child = ::fork();
    if (child == 0) {
      for (unsigned char n = 0;; ++n) {
        table.set_reserved(0, {1, 1});
        table.set_sealed(0, identity(n));
        table.set_free(0);
      }
    }
    const volatile SlotEntry& live = watcher.entry(0);
    for (int sealed = 0; sealed < 100 * (round + 1);) {
      sealed += live.state == SlotState::sealed ? 1 : 0;
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const SlotEntry& left = watcher.entry(0);
    if (left.state != SlotState::sealed) continue;
    const auto first = static_cast<unsigned char>(left.block_index);
    EXPECT_EQ(left.ns, identity(first).ns);
    EXPECT_EQ(left.key, identity(first).key);
    EXPECT_EQ(left.parent, identity(first).parent);
  }
}

TEST(SlotTable, ForeignMemoryIsNotAdopted) {
  auto foreign = make_memfd("foreign", 4096);
  const auto adopted = SlotTable::adopt(std::move(*foreign));
  ASSERT_FALSE(adopted);
  EXPECT_EQ(adopted.error().code, Errc::corrupt);
}

TEST(SlotTable, TruncatedTableIsNotAdopted) {
  const SlotTable table = make_table();
  for (const std::size_t bytes : {0UL, 10UL, 128UL, 128 + 128 * 7UL, 128 + 128 * 9UL}) {
    UniqueFd copy(::memfd_create("copy", MFD_CLOEXEC));
    std::vector<std::byte> content(128 + 128 * 8);
    ASSERT_EQ(::pread(table.fd(), content.data(), content.size(), 0),
              static_cast<ssize_t>(content.size()));
    ASSERT_EQ(::pwrite(copy.get(), content.data(), content.size(), 0),
              static_cast<ssize_t>(content.size()));
    ASSERT_EQ(::ftruncate(copy.get(), static_cast<off_t>(bytes)), 0);
    const auto adopted = SlotTable::adopt(std::move(copy));
    ASSERT_FALSE(adopted) << bytes;
    EXPECT_EQ(adopted.error().code, Errc::corrupt);
  }
}

TEST(SlotTable, TableOfAnotherVersionIsRefusedAsSuch) {
  const SlotTable table = make_table();
  overwrite(table, offsetof(SlotTableHeader, version), 1);
  const auto adopted = adopt_copy(table);
  ASSERT_FALSE(adopted);
  EXPECT_EQ(adopted.error().code, Errc::version);
}

TEST(SlotTable, TableWithAnyBitOfItsHeaderChangedIsNotAdopted) {
  for (std::size_t byte = 0; byte < sizeof(SlotTableHeader); ++byte) {
    const SlotTable table = make_table();
    std::byte value;
    ASSERT_EQ(::pread(table.fd(), &value, 1, static_cast<off_t>(byte)), 1);
    value ^= std::byte(1U << (byte % 8));
    ASSERT_EQ(::pwrite(table.fd(), &value, 1, static_cast<off_t>(byte)), 1);
    EXPECT_FALSE(adopt_copy(table)) << byte;
  }
}

TEST(SlotTable, TableThatCouldShrinkIsNotAdopted) {
  const SlotTable table = make_table();
  UniqueFd copy(::memfd_create("copy", MFD_CLOEXEC));
  std::vector<std::byte> content(128 + 128 * 8);
  ASSERT_EQ(::pread(table.fd(), content.data(), content.size(), 0),
            static_cast<ssize_t>(content.size()));
  ASSERT_EQ(::pwrite(copy.get(), content.data(), content.size(), 0),
            static_cast<ssize_t>(content.size()));
  EXPECT_FALSE(SlotTable::adopt(std::move(copy)));
}

TEST(SlotTable, TableWithSizesOrStatesThatCannotBeIsNotAdopted) {
  for (const auto& [offset, value] : {std::pair{offsetof(SlotTableHeader, slots), 9U},
                                      {offsetof(SlotTableHeader, tier), 3U},
                                      {offsetof(SlotTableHeader, slot_bytes), 4095U},
                                      {offsetof(SlotTableHeader, extent_bytes), 1U},
                                      {sizeof(SlotTableHeader), 4U}}) {
    const SlotTable table = make_table();
    overwrite(table, offset, value);
    EXPECT_FALSE(adopt_copy(table)) << offset;
  }
}

}  // namespace
}  // namespace kvtier::storage
