#include "storage/memory/huge_page_helper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "core/base/units.h"

namespace kvtier::storage {
namespace {

constexpr std::uint64_t kBytes = 8_MiB;

bool comes_to(const HugePageHelper& helper, std::uint64_t finished) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (helper.finished() < finished && std::chrono::steady_clock::now() < give_up)
    std::this_thread::yield();
  return helper.finished() >= finished;
}

std::uint64_t bytes_there(const UniqueFd& memory) {
  struct stat status {};
  EXPECT_EQ(::fstat(memory.get(), &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

TEST(HugePageHelper, GivesPagesAndKeepsWhatIsThere) {
  const auto memory = make_memfd("test", kBytes).value();
  auto mapping = Mapping::map(memory.get(), kBytes, Mapping::Access::read_write).value();
  const auto used = mapping.bytes().first(3_MiB);
  std::ranges::fill(used, std::byte{0x5A});
  HugePageHelper helper;
  helper.give(memory.get(), kBytes);
  ASSERT_TRUE(comes_to(helper, 1));
  EXPECT_GE(bytes_there(memory), 3_MiB + 2 * 4096) << "pages in each 2 MiB";
  EXPECT_TRUE(std::ranges::all_of(used, [](std::byte b) { return b == std::byte{0x5A}; }));
  EXPECT_TRUE(std::ranges::all_of(mapping.bytes().subspan(3_MiB),
                                  [](std::byte b) { return b == std::byte{}; }));
}

TEST(HugePageHelper, ServesOneMemoryAfterAnotherAndLetsThemGo) {
  HugePageHelper helper;
  for (std::uint64_t i = 1; i <= 3; ++i) {
    const auto memory = make_memfd("test", kBytes).value();
    helper.give(memory.get(), kBytes);
    ASSERT_TRUE(comes_to(helper, i));
    EXPECT_GT(bytes_there(memory), 0U);
  }
}

TEST(HugePageHelper, WhatWaitsIsServedInItsTurn) {
  HugePageHelper helper;
  std::vector<UniqueFd> all;
  for (int i = 0; i < 5; ++i) {
    all.push_back(make_memfd("test", kBytes).value());
    helper.give(all.back().get(), kBytes);
  }
  ASSERT_TRUE(comes_to(helper, 5));
  for (const UniqueFd& memory : all) EXPECT_GT(bytes_there(memory), 0U);
  helper.stop();
  helper.give(all.front().get(), kBytes);
  ASSERT_TRUE(comes_to(helper, 6));
}

TEST(HugePageHelper, WhatIsNoMemoryDoesNotEndIt) {
  HugePageHelper helper;
  helper.stop();
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  helper.give(nothing.get(), kBytes);
  const auto memory = make_memfd("test", kBytes).value();
  helper.give(memory.get(), kBytes);
  EXPECT_TRUE(comes_to(helper, 1));
}

}  // namespace
}  // namespace kvtier::storage
