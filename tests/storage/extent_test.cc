#include "storage/memory/extent.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

#include "core/base/cuda_driver.h"
#include "core/base/units.h"

namespace kvtier::storage {
namespace {

constexpr Extent::Shape kShape{1_MiB, 64_KiB};

std::unique_ptr<Extent> make_extent(MemfdOptions options = {}) {
  return *make_memfd_extents(Tier::device, options)->create(ExtentId(5), kShape);
}

UniqueFd copy_of(int fd) {
  return UniqueFd(::dup(fd));
}

TEST(MemfdExtents, SlotsLieSideBySideAndAreZeroAtFirst) {
  for (const MemfdOptions options : {MemfdOptions{}, MemfdOptions{true, true}}) {
    const auto extent = make_extent(options);
    EXPECT_EQ(extent->tier(), Tier::device);
    EXPECT_EQ(extent->shape().slots(), 16u);
    EXPECT_EQ(extent->slot(1).data(), extent->slot(0).data() + 64_KiB);
    EXPECT_TRUE(std::all_of(extent->bytes().begin(), extent->bytes().end(),
                            [](std::byte b) { return b == std::byte{0}; }));
  }
}

// Memory that is made ready for extents: how many bytes of it there are.
std::uint64_t ready_bytes() {
  std::uint64_t all = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    struct stat status {};
    if (target.find("kvtier-extent") != std::string::npos &&
        ::stat(entry.path().c_str(), &status) == 0)
      all += static_cast<std::uint64_t>(status.st_size);
  }
  return all;
}

TEST(MemfdExtents, AsMuchIsMadeReadyAsThereIsRoomFor) {
  const auto maker = make_memfd_extents(Tier::host, {true, false});
  maker->prepare(32_MiB, 100_MiB);
  EXPECT_EQ(ready_bytes(), 96_MiB);
  maker->prepare(32_MiB, 100_MiB);
  EXPECT_EQ(ready_bytes(), 96_MiB);
  // One is taken; with it the room is as much smaller.
  const auto first = *maker->create(ExtentId(1), {32_MiB, 64_KiB});
  maker->prepare(32_MiB, 68_MiB);
  EXPECT_EQ(ready_bytes(), 96_MiB);
  // Of another size there is none ready, and the room for what is ready becomes less.
  const auto other = *maker->create(ExtentId(2), {20_MiB, 1_MiB});
  maker->prepare(20_MiB, 48_MiB);
  EXPECT_EQ(ready_bytes(), 32_MiB + 20_MiB + 32_MiB);
  maker->prepare(0, 10_MiB);
  EXPECT_EQ(ready_bytes(), 32_MiB + 20_MiB);
  maker->prepare(32_MiB, 1024_MiB * 64);
  EXPECT_EQ(ready_bytes(), 32_MiB + 20_MiB + 1024_MiB);
  maker->forget_prepared();
  EXPECT_EQ(ready_bytes(), 32_MiB + 20_MiB);
}

TEST(MemfdExtents, AdoptedExtentHasTheSameBytesAndTheSameTable) {
  auto extent = make_extent();
  extent->slot(3)[17] = std::byte{42};
  extent->table().set_reserved(3, {10, 20});
  UniqueFd memory = copy_of(extent->memory_fd());
  UniqueFd table = copy_of(extent->table().fd());
  extent.reset();
  const auto adopted = adopt_memfd_extent(std::move(memory), std::move(table));
  ASSERT_TRUE(adopted);
  EXPECT_EQ((*adopted)->id(), ExtentId(5));
  EXPECT_EQ((*adopted)->tier(), Tier::device);
  EXPECT_EQ((*adopted)->slot(3)[17], std::byte{42});
  EXPECT_EQ((*adopted)->table().entry(3).state, SlotState::reserved);
}

TEST(MemfdExtents, MemoryOfAnotherSizeIsNotAdopted) {
  const auto extent = make_extent();
  auto other = make_memfd("other", 512_KiB);
  const auto adopted = adopt_memfd_extent(std::move(*other), copy_of(extent->table().fd()));
  ASSERT_FALSE(adopted);
  EXPECT_EQ(adopted.error().code, Errc::corrupt);
  EXPECT_NE(adopted.error().message.find("extent 5"), std::string::npos);
}

TEST(MemfdExtents, MemoryThatCouldShrinkIsNotAdopted) {
  const auto extent = make_extent();
  UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 1_MiB), 0);
  EXPECT_FALSE(adopt_memfd_extent(std::move(unsealed), copy_of(extent->table().fd())));
}

TEST(MemfdExtents, DescriptorsInTheWrongOrderAreNotAdopted) {
  const auto extent = make_extent();
  EXPECT_FALSE(adopt_memfd_extent(copy_of(extent->table().fd()), copy_of(extent->memory_fd())));
}

// Whoever could write to it took its future away from all others: nobody could map it any more.
TEST(MemfdExtents, NobodyWhoIsGivenItCanSealItFurther) {
  const auto extent = make_extent();
  for (const int fd : {extent->memory_fd(), extent->table().fd()}) {
    for (const int seal : {F_SEAL_FUTURE_WRITE, F_SEAL_WRITE, F_SEAL_SHRINK}) {
      EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, seal), -1);
      EXPECT_EQ(errno, EPERM);
    }
  }
}

TEST(MemfdExtents, MemoryOfAnEarlierReleaseIsSealedAsItIsAdopted) {
  const auto extent = make_extent();
  UniqueFd open = make_memfd("earlier", 1_MiB, Seals::open).value();
  const UniqueFd theirs = copy_of(open.get());
  EXPECT_TRUE(adopt_memfd_extent(std::move(open), copy_of(extent->table().fd())));
  EXPECT_EQ(::fcntl(theirs.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
}

TEST(MemfdExtents, MemoryThatNobodyCanMapForWritingIsNotAdopted) {
  const auto extent = make_extent();
  UniqueFd open = make_memfd("earlier", 1_MiB, Seals::open).value();
  ASSERT_EQ(::fcntl(open.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  EXPECT_FALSE(adopt_memfd_extent(std::move(open), copy_of(extent->table().fd())));
}

TEST(CudaDriver, ALibraryThatIsNotThereIsNamedWithTheMend) {
  const auto driver = CudaDriver::load("libcuda-that-is-not-there.so.1");
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().code, Errc::unavailable);
  EXPECT_NE(driver.error().message.find("libcuda-that-is-not-there.so.1"), std::string::npos);
  EXPECT_NE(driver.error().message.find("install the NVIDIA driver"), std::string::npos);
}

TEST(CudaDriver, ALibraryThatIsNoDriverIsRefused) {
  const auto driver = CudaDriver::load("libm.so.6");
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().code, Errc::unavailable);
  EXPECT_NE(driver.error().message.find("lacks functions"), std::string::npos);
}

TEST(CudaDriver, AUuidIsWrittenAsNvidiaSmiDoes) {
  GpuUuid uuid;
  for (std::size_t i = 0; i < uuid.size(); ++i) uuid[i] = static_cast<std::byte>(0xA0 + i);
  EXPECT_EQ(to_string(uuid), "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf");
}

TEST(CudaExtents, WhatIsNoGpuMemoryIsNotAdopted) {
  auto extent = make_extent();
  const auto adopted =
      adopt_cuda_extent(0, copy_of(extent->memory_fd()), copy_of(extent->table().fd()));
  ASSERT_FALSE(adopted);
  EXPECT_EQ(adopted.error().code, Errc::corrupt);
  EXPECT_NE(adopted.error().message.find("extent 5: its descriptor is of no GPU memory"),
            std::string::npos);
  auto host = *make_memfd_extents(Tier::host, {})->create(ExtentId(6), kShape);
  EXPECT_EQ(
      adopt_cuda_extent(0, copy_of(host->memory_fd()), copy_of(host->table().fd())).error().message,
      "extent 6: its slot table is not of the device tier");
}

}  // namespace
}  // namespace kvtier::storage
