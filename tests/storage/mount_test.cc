// The store on file systems that really are full, read-only, gone or cut off from power: records,
// segment headers and the index at once, with the kernel's own errors. Skipped where this process
// may not mount.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "core/base/fd.h"
#include "storage/index/segments.h"
#include "storage/store/late_store.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr unsigned long kShutdown = _IOR('X', 125, std::uint32_t);  // EXT4_IOC_SHUTDOWN
constexpr std::uint32_t kShutdownLosesTheJournal = 2;               // EXT4_GOING_FLAGS_NOLOGFLUSH

// Into a mount namespace whose mounts nobody else sees, once. Threads made later are in it too.
bool has_own_mounts() {
  static const bool own = ::unshare(CLONE_NEWNS) == 0 &&
                          ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  return own;
}

bool run(const std::string& command) {
  return std::system(("{ " + command + "; } >/dev/null 2>&1").c_str()) == 0;
}

class MountTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_own_mounts()) GTEST_SKIP() << "no right to mount here: run as root";
    options_.probe_first = 2ms;
    options_.probe_max = 20ms;
    options_.check_interval = 2ms;
    options_.check_free_space = false;
    fs::create_directories(place_);
  }
  void TearDown() override { (void)::umount2(place_.c_str(), MNT_DETACH); }

  void use_up_all_space() {
    UniqueFd fd(::open(ballast_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    const std::vector<char> piece(64_KiB);
    std::size_t bytes = piece.size();
    while (bytes >= 512) {
      if (::write(fd.get(), piece.data(), bytes) <= 0) bytes /= 2;
    }
    ASSERT_EQ(errno, ENOSPC);
  }

  TestDirectory directory_;
  fs::path place_ = directory_.path() / "mount", ballast_ = place_ / "ballast";
  RecordStoreOptions options_ = small_options(place_ / "store");
};

class FullTest : public MountTest {
 protected:
  void SetUp() override {
    MountTest::SetUp();
    if (IsSkipped()) return;
    if (::mount("tmpfs", place_.c_str(), "tmpfs", 0, "size=16m") != 0) {
      GTEST_SKIP() << "no tmpfs can be mounted here";
    }
  }
};

TEST_F(FullTest, SegmentThatFindsNoSpaceTakesTheTierOfflineUntilThereIsSome) {
  TestStore store(options_);
  store.watch_health();
  ASSERT_TRUE(store.works(TestRecord(0, 1), {0, 0}));
  use_up_all_space();
  EXPECT_FALSE(store.write(TestRecord(0, 2), {9, 0}));
  store.wait_until(false);
  EXPECT_NE(store.health().back().why.find("free space"), std::string::npos)
      << store.health().back().why;
  fs::remove(ballast_);
  store.wait_until(true);
  EXPECT_TRUE(store.read(TestRecord(0, 1), {0, 0}));
  EXPECT_TRUE(store.works(TestRecord(0, 2), {9, 0}));
}

// A start that ends for it loses what the service manager keeps of the memory tiers.
TEST_F(FullTest, FileSystemThatOthersHaveFilledMakesTheTierLateAndItComesBackByItself) {
  ASSERT_EQ(::mount("tmpfs", place_.c_str(), "tmpfs", MS_REMOUNT, "size=80m"), 0);
  options_.check_free_space = true;
  {
    TestStore store(options_);
    ASSERT_TRUE(store.works(TestRecord(0, 1), {0, 0}));
  }
  use_up_all_space();
  ASSERT_EQ(open_record_store(options_, [](auto) {}).error().code, Errc::no_space);
  TestStore store(options_, TestStore::Late::may_be);
  store.watch_health();
  ASSERT_EQ(store.health().size(), 1u);
  EXPECT_FALSE(store.health()[0].online);
  EXPECT_NE(store.health()[0].why.find("free some"), std::string::npos) << store.health()[0].why;
  fs::remove(ballast_);
  store.wait_until(true);
  EXPECT_TRUE(store.read(TestRecord(0, 1), {0, 0}));
}

TEST_F(FullTest, CapacityThatNeverFitsIsAMistakeAndNotALateTier) {
  options_.check_free_space = true;
  options_.may_create = true;
  const auto store = open_record_store_now_or_late(options_, [](auto) {});
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, Errc::invalid);
}

TEST_F(FullTest, SegmentThatFoundNoSpaceAheadOfItsNeedIsMadeWhenThereIsSome) {
  Segments segments(place_, StoreId{}, options_.segment_bytes, 4);
  ASSERT_TRUE(segments.prepare(0, 64_KiB));
  use_up_all_space();
  const UniqueFd watch(::inotify_init1(IN_CLOEXEC));
  ASSERT_GE(::inotify_add_watch(watch.get(), place_.c_str(), IN_DELETE), 0);
  segments.make_one_ahead();
  // Its file is gone again: the attempt has failed.
  std::array<char, 512> event{};
  ASSERT_GT(::read(watch.get(), event.data(), event.size()), 0);
  ASSERT_FALSE(fs::exists(segments.path_of(1)));
  fs::remove(ballast_);
  const auto made = segments.prepare(1, 64_KiB);
  EXPECT_TRUE(made) << made.error().message;
}

// The slots are there already; the log of the index is not.
TEST_F(FullTest, IndexThatFindsNoSpaceLosesNoRecordThatWasSaidToBeThere) {
  std::set<std::uint32_t> there;
  std::uint32_t failed = 1;
  {
    TestStore store(options_);
    store.watch_health();
    ASSERT_TRUE(store.works(TestRecord(0, 0), {0, 0}));
    there.insert(0);
    // Anew each time: the next segment's file, made ahead in vain, gives back what it had.
    use_up_all_space();
    while (store.write(TestRecord(0, failed), {0, failed})) {
      there.insert(failed++);
      ASSERT_LT(failed, 120u) << "the index found space all the time";
      use_up_all_space();
    }
    store.wait_until(false);
    EXPECT_NE(store.health().back().why.find("free space"), std::string::npos)
        << store.health().back().why;
    fs::remove(ballast_);
    store.wait_until(true);
    for (const std::uint32_t number : there) {
      const auto found = store.read(TestRecord(0, number), {0, number});
      EXPECT_TRUE(found) << number << ": " << found.error().message;
    }
    EXPECT_TRUE(store.works(TestRecord(0, 200), {1, 0}));
    there.insert(200);
  }
  std::set<Key> indexed;
  for (const DiskEntry& entry : TestStore(options_).recover()) indexed.insert(entry.identity.key);
  EXPECT_EQ(indexed.size(), there.size());
  for (const std::uint32_t number : there) {
    EXPECT_TRUE(indexed.contains(TestRecord(0, number).identity.key)) << number;
  }
  EXPECT_FALSE(indexed.contains(TestRecord(0, failed).identity.key));
}

class Ext4Test : public MountTest {
 protected:
  void SetUp() override {
    MountTest::SetUp();
    if (IsSkipped()) return;
    const bool made = run("truncate -s 128M " + image_) && run("mkfs.ext4 -q -F " + image_);
    if (!made || !mount_image()) GTEST_SKIP() << "no ext4 on a loop device here";
  }

  // On a loop device of its own each time, which goes with the mount. (mount -o loop refuses an
  // image whose earlier mount still has files open.)
  bool mount_image() {
    return run("set -e; loop=$(losetup --find --show " + image_ + "); mount $loop " +
               place_.string() +
               " && mounted=0 || mounted=$?; losetup --detach $loop; exit $mounted");
  }
  // What still has files open there keeps them, and they go on failing.
  [[nodiscard]] bool mount_again() {
    return ::umount2(place_.c_str(), MNT_DETACH) == 0 && mount_image();
  }
  void shut_down() {
    UniqueFd fd(::open(place_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    std::uint32_t flags = kShutdownLosesTheJournal;
    ASSERT_EQ(::ioctl(fd.get(), kShutdown, &flags), 0);
  }

  const std::string image_ = directory_.path() / "image";
};

TEST_F(Ext4Test, FileSystemThatTurnsReadOnlyTakesTheTierOfflineUntilItIsMountedAnew) {
  TestStore store(options_);
  store.watch_health();
  ASSERT_TRUE(store.works(TestRecord(0, 1), {0, 0}));
  ASSERT_TRUE(run("mount -o remount,abort " + place_.string()));
  EXPECT_FALSE(store.write(TestRecord(0, 2), {0, 1}));
  store.wait_until(false);
  EXPECT_NE(store.health().back().why.find("read-only"), std::string::npos)
      << store.health().back().why;
  ASSERT_TRUE(mount_again());
  store.wait_until(true);
  EXPECT_TRUE(store.read(TestRecord(0, 1), {0, 0}));
  EXPECT_TRUE(store.works(TestRecord(0, 2), {0, 1}));
}

TEST_F(Ext4Test, FileSystemThatIsReadOnlyAtTheStartMakesTheTierComeLate) {
  {
    TestStore store(options_);
    ASSERT_TRUE(store.works(TestRecord(0, 1), {0, 0}));
  }
  // The kernel may still be closing what the ring had open.
  ASSERT_TRUE(run("for i in $(seq 200); do mount -o remount,ro " + place_.string() +
                  " && exit 0; sleep 0.05; done; exit 1"));
  TestStore store(options_, TestStore::Late::may_be);
  store.watch_health();
  ASSERT_EQ(store.health().size(), 1u);
  EXPECT_NE(store.health()[0].why.find("Read-only"), std::string::npos) << store.health()[0].why;
  ASSERT_TRUE(run("mount -o remount,rw " + place_.string()));
  store.wait_until(true);
  EXPECT_EQ(store.recover().size(), 1u);
  EXPECT_TRUE(store.read(TestRecord(0, 1), {0, 0}));
  EXPECT_TRUE(store.works(TestRecord(0, 2), {0, 1}));
}

TEST_F(Ext4Test, FileSystemThatFailsAltogetherTakesTheTierOfflineUntilItIsMountedAnew) {
  TestStore store(options_);
  store.watch_health();
  ASSERT_TRUE(store.works(TestRecord(0, 1), {0, 0}));
  shut_down();
  EXPECT_FALSE(store.write(TestRecord(0, 2), {3, 1}));
  store.wait_until(false);
  ASSERT_TRUE(mount_again());
  store.wait_until(true);
  EXPECT_TRUE(store.read(TestRecord(0, 1), {0, 0}));
  EXPECT_TRUE(store.works(TestRecord(0, 2), {3, 1}));
}

// Everything that was not synced is lost, of the records, the index and the file system's own
// bookkeeping.
TEST_F(Ext4Test, NothingFlushedIsLostAndNothingWrongIsServedAfterThePowerIsCut) {
  std::map<std::uint32_t, DiskLocation> held;
  std::uint32_t next = 0;
  for (unsigned round = 0; round < 6 && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    std::mt19937 random(round);
    std::map<std::uint32_t, DiskLocation> durable = held;
    {
      TestStore store(options_);
      const auto write = [&] {
        const std::uint32_t number = next++;
        const DiskLocation at{static_cast<std::uint32_t>(random() % 3),
                              static_cast<std::uint32_t>(random() % 16)};
        std::optional<Key> replaces;
        for (auto old = held.begin(); old != held.end(); ++old) {
          if (old->second != at) continue;
          replaces = TestRecord(0, old->first).identity.key;
          durable.erase(old->first);
          held.erase(old);
          break;
        }
        ASSERT_TRUE(store.write(TestRecord(0, number), at, replaces));
        held[number] = at;
      };
      for (auto writes = 5 + random() % 20; writes > 0; --writes) write();
      ASSERT_TRUE(store.flush());
      durable = held;
      for (auto writes = random() % 20; writes > 0; --writes) write();
      shut_down();
    }
    ASSERT_TRUE(mount_again());
    TestStore store(options_);
    std::map<Key, DiskLocation> found;
    for (const DiskEntry& entry : store.recover()) found[entry.identity.key] = entry.at;
    held.clear();
    for (std::uint32_t number = 0; number < next; ++number) {
      const TestRecord record(0, number);
      const auto at = found.find(record.identity.key);
      ASSERT_TRUE(at != found.end() || !durable.contains(number)) << number;
      if (at == found.end()) continue;
      const auto bytes = store.read(record, at->second);
      ASSERT_TRUE(bytes || !durable.contains(number)) << bytes.error().message;
      ASSERT_TRUE(bytes ? record.equals(*bytes) : bytes.error().code == Errc::corrupt) << number;
      bytes ? void(held[number] = at->second) : void(store.erase({record.identity.key}));
    }
  }
}

}  // namespace
}  // namespace kvtier::storage
