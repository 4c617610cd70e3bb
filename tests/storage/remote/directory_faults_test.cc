// A shared directory that hangs, is full or read-only.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <mutex>
#include <string_view>

#include "core/base/points.h"
#include "tests/storage/remote/support/redis_server.h"
#include "tests/storage/remote/support/remote_parts.h"

namespace kvtier::storage::testing {
namespace {

using std::chrono::milliseconds;

// While it is locked, calls into the directory at these points do not return.
struct Hang {
  static inline std::mutex mutex;
  static inline std::atomic<bool> checks = false;
  static inline std::atomic<int> waiting = 0;
  explicit Hang(bool checks_too) : lock(mutex) {
    checks = checks_too;
    point_hook = [](const char* name) noexcept {
      const std::string_view point(name);
      if (!point.starts_with("remote.directory.")) return;
      if (point == "remote.directory.check" && !checks) return;
      ++waiting;
      const std::lock_guard wait(mutex);
      --waiting;
    };
  }
  ~Hang() { point_hook = nullptr; }
  std::lock_guard<std::mutex> lock;
};

struct DirectoryFaults : ::testing::Test {
  TestDirectory shared;
  std::string url = "file://" + shared.path().string();
};

TEST_F(DirectoryFaults, ACallThatHangsCostsTheDeadlineAndNothingLandsLater) {
  OnlineRemote store(url);
  const TestRecord record(1, 1);
  EXPECT_TRUE(store.works(record));
  {
    const Hang hang(false);
    std::ranges::fill(store.slot(1), std::byte{0x11});
    const auto start = Clock::now();
    const auto read = store.wait<void>([&](auto done) {
      return store->read(store.read_of(record, 1, milliseconds(30)), std::move(done));
    });
    EXPECT_EQ(read.error().code, Errc::deadline);
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
    EXPECT_TRUE(comes_true([] { return Hang::waiting == 1; }));
    // Another worker still works: it is one call that hangs.
    EXPECT_EQ(*store.find({record.identity.key}), 1U);
  }
  EXPECT_TRUE(comes_true([] { return Hang::waiting == 0; }));
  store->close();  // its threads have ended
  EXPECT_TRUE(std::ranges::all_of(store.slot(1), [](std::byte b) { return b == std::byte{0x11}; }));
}

TEST_F(DirectoryFaults, ADirectoryThatHangsIsOfflineUntilItAnswers) {
  OnlineRemote store(url);
  const auto records = test_records(8);
  for (const TestRecord& record : records) EXPECT_TRUE(store.works(record));
  {
    const Hang hang(true);
    std::size_t answered = 0;
    for (std::uint32_t i = 0; i < records.size(); ++i) {
      EXPECT_TRUE(
          store->read(store.read_of(records[i], i, milliseconds(100)), [&](Result<void> read) {
            EXPECT_EQ(read.error().code, Errc::deadline);
            ++answered;
          }));
    }
    store.control().run_until([&] { return answered == records.size(); });
    EXPECT_NE(store.wait_for(RemoteState::offline).find("does not answer"), std::string::npos);
    EXPECT_EQ(store.read(records[0]).error().code, Errc::unavailable);
  }
  store.wait_for(RemoteState::online);
  for (const TestRecord& record : records) EXPECT_TRUE(store.serves(record));
}

TEST_F(DirectoryFaults, CloseDoesNotWaitForACallThatHangs) {
  {
    const Hang hang(true);
    TestRemote store(url);
    EXPECT_FALSE(store.wait_for(RemoteState::offline).empty());
    const auto start = Clock::now();
    store->close();
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(2));
  }
  EXPECT_TRUE(comes_true([] { return Hang::waiting == 0; }));
}

TEST_F(DirectoryFaults, AFullOneIsReadAndComesBackByItself) {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", shared.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "no right to mount here: run as root";
  }
  OnlineRemote store(url);
  const TestRecord kept(0, 1), refused(1, 2);
  EXPECT_TRUE(store.works(kept));
  const std::string ballast = write_file(shared, "new/ballast", std::string(2U << 20, 'x'));
  EXPECT_EQ(store.write(refused).error().code, Errc::no_space);
  EXPECT_NE(store.wait_for(RemoteState::read_only).find("No space left"), std::string::npos);
  EXPECT_TRUE(store.serves(kept));
  std::filesystem::remove(ballast);
  EXPECT_EQ(store.wait_for(RemoteState::online), "");
  EXPECT_TRUE(store.works(refused));

  EXPECT_EQ(::mount(nullptr, shared.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  EXPECT_FALSE(store.write(refused));
  EXPECT_NE(store.wait_for(RemoteState::read_only).find("mount it for writing"), std::string::npos);
  EXPECT_TRUE(store.serves(kept));
  EXPECT_EQ(::mount(nullptr, shared.path().c_str(), nullptr, MS_REMOUNT, "size=1m"), 0);
  EXPECT_EQ(store.wait_for(RemoteState::online), "");
  EXPECT_TRUE(store.works(refused));

  EXPECT_EQ(::umount2(shared.path().c_str(), MNT_DETACH), 0);
  EXPECT_NE(store.wait_for(RemoteState::offline).find("mount what was there"), std::string::npos);
}

}  // namespace
}  // namespace kvtier::storage::testing
