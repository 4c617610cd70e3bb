#include "daemon/config/host_memory.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/base/units.h"
#include "daemon/limits.h"
#include "tests/daemon/support/kvtierd_process.h"

namespace kvtier::daemon::testing {
namespace {

class HostMemoryTest : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) {
    const auto path = scratch / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void machine(std::uint64_t total_gib, std::uint64_t available_gib) {
    write("proc/meminfo", "MemTotal:       " + std::to_string(total_gib << 20) +
                              " kB\nMemFree:  1 kB\nMemAvailable:   " +
                              std::to_string(available_gib << 20) + " kB\nHugePages_Total: 0\n");
  }
  HostMemory read() { return read_host_memory(scratch / "").value(); }
  static std::uint64_t resolved(Sizing sizing, const HostMemory& memory, std::uint64_t held = 0) {
    Config::Memory host{0, 1_GiB, true, false, sizing, 25};
    resolve_capacity(host, memory, held);
    return host.capacity_bytes;
  }

  Scratch scratch;
};

TEST_F(HostMemoryTest, it_is_what_the_kernel_says) {
  machine(64, 40);
  EXPECT_EQ(read().total_bytes, 64_GiB);
  EXPECT_EQ(read().available_bytes, 40_GiB);
}

TEST_F(HostMemoryTest, without_meminfo_the_error_names_the_mend) {
  const auto memory = read_host_memory(scratch / "");
  ASSERT_FALSE(memory);
  EXPECT_NE(memory.error().message.find("give [host] capacity in bytes"), std::string::npos);
}

TEST_F(HostMemoryTest, the_limits_of_the_control_group_and_those_above_it_hold) {
  machine(64, 40);
  write("proc/self/cgroup", "0::/system.slice/kvtierd.service\n");
  write("sys/fs/cgroup/system.slice/kvtierd.service/memory.max", "max\n");
  write("sys/fs/cgroup/system.slice/memory.max", std::to_string(16_GiB) + "\n");
  write("sys/fs/cgroup/system.slice/memory.current", std::to_string(6_GiB) + "\n");
  EXPECT_EQ(read().total_bytes, 16_GiB);
  EXPECT_EQ(read().available_bytes, 10_GiB);
}

TEST_F(HostMemoryTest, a_share_is_of_the_total_whatever_is_in_use) {
  EXPECT_EQ(resolved(Sizing::share, {64_GiB, 40_GiB}), 64_GiB / 100 * 25 / 1_MiB * 1_MiB);
  EXPECT_EQ(resolved(Sizing::share, {64_GiB, 1_GiB}), resolved(Sizing::share, {64_GiB, 64_GiB}));
}

TEST_F(HostMemoryTest, auto_is_a_quarter_or_half_of_what_is_available) {
  EXPECT_EQ(resolved(Sizing::automatic, {64_GiB, 60_GiB}), 16_GiB);
  EXPECT_EQ(resolved(Sizing::automatic, {64_GiB, 11_GiB}), 5_GiB);
  EXPECT_EQ(resolved(Sizing::automatic, {4_GiB, 1600_MiB}), 800_MiB);
}

TEST_F(HostMemoryTest, what_the_tier_holds_already_counts_as_available) {
  EXPECT_EQ(resolved(Sizing::automatic, {64_GiB, 5_GiB}, 15_GiB), 10_GiB);
  EXPECT_EQ(resolved(Sizing::automatic, {64_GiB, 60_GiB}, 15_GiB), 16_GiB);
}

TEST_F(HostMemoryTest, there_is_a_floor) {
  EXPECT_EQ(resolved(Sizing::automatic, {64_GiB, 0}), limits::kHostFloorBytes);
  EXPECT_EQ(resolved(Sizing::share, {512_MiB, 0}), limits::kHostFloorBytes);
}

TEST_F(HostMemoryTest, a_fixed_size_stays) {
  Config::Memory host{7_MiB, 1_GiB};
  resolve_capacity(host, {64_GiB, 60_GiB}, 0);
  EXPECT_EQ(host.capacity_bytes, 7_MiB);
}

}  // namespace
}  // namespace kvtier::daemon::testing
