// Host memory that is pinned in the background: what else the process does on the GPU meanwhile,
// and what copies find there after.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "client/transfer/gpu.h"
#include "core/base/units.h"

namespace kvtier::gpu_test {
namespace {

using session::ExtentMapping;
using session::SlotRef;

constexpr std::uint64_t kBytes = 1_GiB;
constexpr std::uint64_t kSlotBytes = 1_MiB + 4_KiB;

class GpuPinning : public ::testing::Test {
 protected:
  void SetUp() override {
    if (int count = 0; cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
      GTEST_SKIP() << "no GPU here";
    auto opened = transfer::open_gpu(0);
    ASSERT_TRUE(opened) << opened.error().message;
    gpu_ = std::move(*opened);
    auto fd = make_memfd("pinned", kBytes);
    ASSERT_TRUE(fd);
    auto mapped = ExtentMapping::map(*fd, Tier::host, kBytes, kSlotBytes);
    ASSERT_TRUE(mapped) << mapped.error().message;
    for (std::uint64_t slot = 0; slot < (*mapped)->slots(); ++slot) {
      std::memset((*mapped)->bytes.data() + slot * kSlotBytes, static_cast<int>(slot % 251),
                  kSlotBytes);
    }
    host_ = std::move(*mapped);
  }
  std::shared_ptr<transfer::Gpu> gpu_;
  std::unique_ptr<ExtentMapping> host_;
};

// In one call, 49 ms.
TEST_F(GpuPinning, launches_of_the_process_go_on_meanwhile) {
  std::byte* memory = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory), 4096), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(memory, 1, 4096, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto pinned = gpu_->pin(std::move(host_));
  const auto give_up = Clock::now() + std::chrono::seconds(60);
  std::chrono::duration<double, std::milli> longest{0};
  int launches = 0;
  while (pinned->gpu_bytes.load() == nullptr && Clock::now() < give_up) {
    const auto begin = Clock::now();
    ASSERT_EQ(cudaMemsetAsync(memory, 1, 4096, nullptr), cudaSuccess);
    longest = std::max<decltype(longest)>(longest, Clock::now() - begin);
    ++launches;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  EXPECT_NE(pinned->gpu_bytes.load(), nullptr);
  EXPECT_LT(longest.count(), 10) << "of " << launches << " launches, in ms";
  RecordProperty("longest_us", static_cast<int>(longest.count() * 1000));
  std::printf("longest of %d launches: %.2f ms\n", launches, longest.count());
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST_F(GpuPinning, one_copy_may_take_what_was_pinned_together) {
  const auto pinned = gpu_->pin(std::move(host_));
  const auto give_up = Clock::now() + std::chrono::seconds(60);
  while (pinned->gpu_bytes.load() == nullptr && Clock::now() < give_up)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_NE(pinned->gpu_bytes.load(), nullptr);
  const std::uint64_t slots = pinned->slots();
  std::byte* memory = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory), kBytes), cudaSuccess);
  std::uint64_t copies = 0;
  for (std::uint64_t first = 0; first < slots; ++copies) {
    const SlotRef begin{first, pinned};
    std::uint64_t count = 1;
    while (first + count < slots && SlotRef{first + count, pinned}.copied_with(begin)) ++count;
    ASSERT_EQ(cudaMemcpy(memory + first * kSlotBytes, begin.gpu_address(), count * kSlotBytes,
                         cudaMemcpyDefault),
              cudaSuccess)
        << first << ", " << count;
    first += count;
  }
  EXPECT_GT(copies, 1U);
  EXPECT_LT(copies, slots / 8);
  std::vector<std::byte> back(slots * kSlotBytes);
  ASSERT_EQ(cudaMemcpy(back.data(), memory, back.size(), cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(std::memcmp(back.data(), pinned->bytes.data(), back.size()), 0);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

}  // namespace
}  // namespace kvtier::gpu_test
