// One suite, run over every kind of block device.
#include "storage/device/block_device.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "storage/device/throttled_device.h"
#include "tests/storage/faults/faulty_device.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using testing::TestDirectory;

constexpr std::uint64_t kFileBytes = 8_MiB;
constexpr std::uint64_t kMemoryBytes = 4_MiB;

struct Kind {
  const char* name;
  std::function<Result<std::unique_ptr<BlockDevice>>(BlockDevice::Limits)> make;
};

class BlockDeviceTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    auto device = GetParam().make({.depth = 16, .files = 64, .buffers = 8});
    if (!device) GTEST_SKIP() << device.error().message;
    device_ = std::move(*device);
    memory_fd_ = *make_memfd("buffer", kMemoryBytes);
    mapping_ = *Mapping::map(memory_fd_.get(), kMemoryBytes, Mapping::Access::read_write);
    ASSERT_TRUE(device_->add_buffer(BufferId(0), mapping_.bytes()));
    device_->pin_buffer(BufferId(0));
    ASSERT_TRUE(device_->open_file(FileId(3), make_file("a")));
  }

  std::filesystem::path make_file(const std::string& name) {
    const auto path = directory_.path() / name;
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(::posix_fallocate(fd.get(), 0, kFileBytes), 0);
    return path;
  }

  BlockDevice::Transfer transfer(std::uint64_t offset, std::uint64_t at, std::uint64_t bytes,
                                 std::uint64_t tag) {
    return {FileId(3),
            offset,
            BufferId(0),
            mapping_.bytes().data() + at,
            static_cast<std::uint32_t>(bytes),
            tag};
  }

  std::vector<BlockDevice::Completion> reap(std::size_t count) {
    std::vector<BlockDevice::Completion> out;
    while (out.size() < count) device_->reap(out, BlockDevice::Wait::yes);
    return out;
  }

  void fill(std::uint64_t at, std::uint64_t bytes, unsigned seed) {
    std::mt19937 random(seed);
    for (auto& b : mapping_.bytes().subspan(at, bytes)) b = std::byte(random());
  }

  TestDirectory directory_;
  UniqueFd memory_fd_;
  Mapping mapping_;
  std::unique_ptr<BlockDevice> device_;
};

TEST_P(BlockDeviceTest, DriveIsToldThatRecordsStayLong) {
  const UniqueFd fd(::open((directory_.path() / "a").c_str(), O_RDONLY | O_CLOEXEC));
  std::uint64_t lifetime = RWH_WRITE_LIFE_NOT_SET;
  if (::fcntl(fd.get(), F_GET_RW_HINT, &lifetime) != 0) GTEST_SKIP() << "no hints here";
  EXPECT_EQ(lifetime, RWH_WRITE_LIFE_LONG);
}

TEST_P(BlockDeviceTest, WhatWasWrittenIsRead) {
  fill(0, 1_MiB, 1);
  device_->write(transfer(4096, 0, 1_MiB, 10));
  const auto written = reap(1);
  ASSERT_TRUE(written[0].result);
  EXPECT_EQ(written[0].tag, 10u);
  device_->read(transfer(4096, 2_MiB, 1_MiB, 11));
  const auto read = reap(1);
  ASSERT_TRUE(read[0].result);
  EXPECT_EQ(read[0].tag, 11u);
  EXPECT_EQ(std::memcmp(mapping_.bytes().data(), mapping_.bytes().data() + 2_MiB, 1_MiB), 0);
}

TEST_P(BlockDeviceTest, BatchBeyondTheDepthCompletesOnceEach) {
  fill(0, 4_MiB, 2);
  for (std::uint64_t i = 0; i < 256; ++i)
    device_->write(transfer(i * 16_KiB, i * 16_KiB, 16_KiB, i));
  device_->submit();
  std::set<std::uint64_t> tags;
  for (const auto& completion : reap(256)) {
    EXPECT_TRUE(completion.result);
    EXPECT_TRUE(tags.insert(completion.tag).second);
  }
  EXPECT_EQ(device_->in_flight(), 0u);
  EXPECT_EQ(device_->counters().bytes_written, 4_MiB);
  const std::vector<std::byte> before(mapping_.bytes().begin(), mapping_.bytes().end());
  std::fill(mapping_.bytes().begin(), mapping_.bytes().end(), std::byte{0});
  for (std::uint64_t i = 0; i < 256; ++i)
    device_->read(transfer(i * 16_KiB, i * 16_KiB, 16_KiB, i));
  reap(256);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), mapping_.bytes().begin()));
}

TEST_P(BlockDeviceTest, ReadPastTheEndOfTheFileIsAnErrorNotAShortRead) {
  device_->read(transfer(kFileBytes - 4096, 0, 8192, 1));
  const auto read = reap(1);
  ASSERT_FALSE(read[0].result);
  EXPECT_EQ(read[0].result.error().code, Errc::io);
  EXPECT_EQ(device_->counters().failures, 1u);
}

TEST_P(BlockDeviceTest, SyncCompletesWithItsTag) {
  device_->write(transfer(0, 0, 4096, 1));
  reap(1);
  device_->sync(FileId(3), 77);
  const auto synced = reap(1);
  EXPECT_TRUE(synced[0].result);
  EXPECT_EQ(synced[0].tag, 77u);
}

TEST_P(BlockDeviceTest, FilesAndBuffersCanBeReplaced) {
  device_->close_file(FileId(3));
  device_->remove_buffer(BufferId(0));
  EXPECT_FALSE(device_->is_open(FileId(3)));
  ASSERT_TRUE(device_->add_buffer(BufferId(0), mapping_.bytes().subspan(0, 1_MiB)));
  ASSERT_TRUE(device_->open_file(FileId(3), make_file("b")));
  device_->read(transfer(0, 0, 4096, 5));
  const auto read = reap(1);
  ASSERT_TRUE(read[0].result);
  EXPECT_EQ(mapping_.bytes()[0], std::byte{0});
}

TEST_P(BlockDeviceTest, MemoryCanBePinnedWhileTransfersOnItAreUnderWay) {
  device_->remove_buffer(BufferId(0));
  ASSERT_TRUE(device_->add_buffer(BufferId(0), mapping_.bytes()));
  std::fill_n(mapping_.bytes().begin(), 8192, std::byte{42});
  device_->write(transfer(0, 0, 4096, 1));
  device_->submit();
  device_->pin_buffer(BufferId(0));
  device_->write(transfer(4096, 4096, 4096, 2));
  for (const auto& written : reap(2)) EXPECT_TRUE(written.result);
  device_->read(transfer(0, 1_MiB, 8192, 3));
  ASSERT_TRUE(reap(1)[0].result);
  EXPECT_EQ(std::count(mapping_.bytes().begin() + 1_MiB, mapping_.bytes().begin() + 1_MiB + 8192,
                       std::byte{42}),
            8192);
}

TEST_P(BlockDeviceTest, FileThatIsNotThereIsNotFound) {
  const auto opened = device_->open_file(FileId(4), directory_.path() / "none");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Errc::not_found);
  EXPECT_NE(opened.error().message.find("none"), std::string::npos);
}

TEST_P(BlockDeviceTest, TransferThatIsNotAlignedOrNotInsideItsBufferAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(device_->read(transfer(512, 0, 4096, 1)), "check failed");
  EXPECT_DEATH(device_->read(transfer(0, 0, 100, 1)), "check failed");
  EXPECT_DEATH(device_->read(transfer(0, kMemoryBytes - 4096, 8192, 1)), "check failed");
}

TEST_P(BlockDeviceTest, WakeFromAnotherThreadEndsTheWait) {
  std::vector<BlockDevice::Completion> out;
  std::thread waker([this] { device_->wake(); });
  device_->reap(out, BlockDevice::Wait::yes);
  waker.join();
  EXPECT_TRUE(out.empty());
  device_->wake();
  device_->reap(out, BlockDevice::Wait::yes);
  EXPECT_TRUE(out.empty());
}

TEST_P(BlockDeviceTest, WaitEndsAtItsTimeWithNothingToReap) {
  std::vector<BlockDevice::Completion> out;
  device_->reap(out, BlockDevice::Wait::yes, std::chrono::milliseconds(1));
  EXPECT_TRUE(out.empty());
}

TEST_P(BlockDeviceTest, TransfersOfEveryPriorityComplete) {
  using Priority = BlockDevice::Priority;
  std::uint64_t at = 0;
  for (const Priority priority : {Priority::scrub, Priority::write, Priority::read}) {
    auto one = transfer(0, at, 4096, 1);
    at += 4096;
    one.priority = priority;
    device_->read(one);
  }
  for (const auto& completion : reap(3)) EXPECT_TRUE(completion.result);
}

TEST_P(BlockDeviceTest, WorksWithoutDirectIoOnAFileSystemThatHasNone) {
  const std::filesystem::path path = "/dev/shm/kvtier-device-test-" + std::to_string(::getpid());
  {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::ftruncate(fd.get(), 1_MiB), 0);
  }
  ASSERT_TRUE(device_->open_file(FileId(9), path));
  fill(0, 64_KiB, 3);
  auto out = transfer(4096, 0, 64_KiB, 1);
  out.file = FileId(9);
  device_->write(out);
  EXPECT_TRUE(reap(1)[0].result);
  out.memory = mapping_.bytes().data() + 1_MiB;
  device_->read(out);
  EXPECT_TRUE(reap(1)[0].result);
  EXPECT_EQ(std::memcmp(mapping_.bytes().data(), mapping_.bytes().data() + 1_MiB, 64_KiB), 0);
  device_->close_file(FileId(9));
  std::filesystem::remove(path);
}

std::unique_ptr<BlockDevice> unfaulty(std::unique_ptr<BlockDevice> inner) {
  static Faults none;
  return make_faulty_device(std::move(inner), none);
}

TEST(ThrottledDevice, TakesAtLeastTheTimeOfItsRateAndLatency) {
  const TestDirectory directory;
  const auto path = directory.path() / "a";
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::posix_fallocate(fd.get(), 0, 1_MiB), 0);
  auto memory = *make_memfd("buffer", 1_MiB);
  auto mapping = *Mapping::map(memory.get(), 1_MiB, Mapping::Access::read_write);
  auto device =
      make_throttled_device(make_thread_device({.depth = 16, .files = 4, .buffers = 4}),
                            {.bytes_per_s = 16_MiB, .latency = std::chrono::milliseconds(20)});
  ASSERT_TRUE(device->add_buffer(BufferId(0), mapping.bytes()));
  ASSERT_TRUE(device->open_file(FileId(1), path));
  const auto begun = std::chrono::steady_clock::now();
  for (std::uint64_t tag = 0; tag < 16; ++tag) {
    device->read({FileId(1), tag * 64_KiB, BufferId(0), mapping.bytes().data() + tag * 64_KiB,
                  static_cast<std::uint32_t>(64_KiB), tag});
  }
  device->submit();
  std::vector<BlockDevice::Completion> out;
  while (out.size() < 16) device->reap(out, BlockDevice::Wait::yes);
  // 1 MiB at 16 MiB/s, and the last one's latency.
  EXPECT_GE(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(62 + 20));
  for (const auto& completion : out) EXPECT_TRUE(completion.result);
}

TEST(ThrottledDevice, IsSwitchedOnByTheEnvironmentAloneWhichIsChecked) {
  ::unsetenv("KVTIER_DISK_LATENCY_US");
  ::unsetenv("KVTIER_DISK_BYTES_PER_S");
  EXPECT_FALSE(throttle_from_environment()->has_value());
  ::setenv("KVTIER_DISK_BYTES_PER_S", "200000000", 1);
  EXPECT_EQ((*throttle_from_environment())->bytes_per_s, 200'000'000U);
  ::setenv("KVTIER_DISK_BYTES_PER_S", "fast", 1);
  EXPECT_NE(throttle_from_environment().error().message.find("KVTIER_DISK_BYTES_PER_S"),
            std::string::npos);
  ::unsetenv("KVTIER_DISK_BYTES_PER_S");
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, BlockDeviceTest,
    ::testing::Values(Kind{"uring",
                           [](BlockDevice::Limits limits) { return make_uring_device(limits); }},
                      Kind{"sqpoll",
                           [](BlockDevice::Limits limits) {
                             return make_uring_device(limits, {.sqpoll = true});
                           }},
                      Kind{"threads",
                           [](BlockDevice::Limits limits) -> Result<std::unique_ptr<BlockDevice>> {
                             return make_thread_device(limits);
                           }},
                      Kind{"wrapped",
                           [](BlockDevice::Limits limits) -> Result<std::unique_ptr<BlockDevice>> {
                             return unfaulty(make_thread_device(limits));
                           }},
                      Kind{"throttled",
                           [](BlockDevice::Limits limits) -> Result<std::unique_ptr<BlockDevice>> {
                             return make_throttled_device(make_thread_device(limits),
                                                          {.bytes_per_s = 1ULL << 30});
                           }}),
    [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace kvtier::storage
