// What lies in a store's directory and is not this program's to take: things that are no files,
// marks of a mount that is missing, entries of a later version.
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>

#include "storage/index/store_directory.h"
#include "storage/store/late_store.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

class ForeignFilesTest : public ::testing::Test {
 protected:
  ForeignFilesTest() {
    options_.probe_first = 2ms;
    options_.probe_max = 20ms;
  }
  void fill() {
    TestStore store(options_);
    ASSERT_TRUE(store.works(TestRecord(0, 1), {0, 1}));
  }
  Error refusal() {
    const auto store = open_record_store(options_, [](auto) {});
    EXPECT_FALSE(store);
    return store ? Error{} : store.error();
  }

  TestDirectory directory_;
  RecordStoreOptions options_ = small_options(directory_.path() / "store");
};

// The start hung, for whoever opens a FIFO waits for its other end.
TEST_F(ForeignFilesTest, AFifoInPlaceOfAnyFileIsRefusedByNameAndComesLateWithoutIt) {
  for (const char* name : {"FORMAT", "LOCK", "ERASED", "BAD", "segments/000000.seg",
                           "segments/000007.seg", "index/CURRENT"}) {
    SCOPED_TRACE(name);
    options_.directory = directory_.path() / ("store-" + fs::path(name).filename().string());
    fill();
    const fs::path path = options_.directory / name, away = directory_.path() / "away";
    const bool was_there = fs::exists(path);
    if (was_there) fs::rename(path, away);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    const Error error = refusal();
    EXPECT_EQ(error.code, Errc::io);
    EXPECT_NE(error.message.find(path.string()), std::string::npos) << error.message;
    TestStore late(options_, TestStore::Late::may_be);
    late.watch_health();
    fs::remove(path);
    if (was_there) fs::rename(away, path);
    late.wait_until(true);
    while (late->to_recover()) (void)late.recover();
    EXPECT_TRUE(TestRecord(0, 1).equals(*late.read(TestRecord(0, 1), {0, 1})));
  }
}

TEST_F(ForeignFilesTest, ABareDirectoryWithTheMarkIsWaitedForAndNothingIsMadeInIt) {
  fill();
  const fs::path away = directory_.path() / "away";
  fs::rename(options_.directory, away);
  fs::create_directory(options_.directory);
  const std::ofstream mark(options_.directory / kNotMountedMark);
  TestStore late(options_, TestStore::Late::may_be);
  late.watch_health();
  ASSERT_FALSE(late.health().empty());
  EXPECT_NE(late.health().back().why.find("mount"), std::string::npos) << late.health().back().why;
  EXPECT_FALSE(fs::exists(options_.directory / "FORMAT"));
  // As the mount does it: the bare directory is hidden.
  fs::rename(options_.directory, directory_.path() / "bare");
  fs::rename(away, options_.directory);
  late.wait_until(true);
  while (late->to_recover()) (void)late.recover();
  EXPECT_TRUE(TestRecord(0, 1).equals(*late.read(TestRecord(0, 1), {0, 1})));
  EXPECT_FALSE(fs::exists(directory_.path() / "bare" / "FORMAT"));
}

// They were erased one by one.
TEST_F(ForeignFilesTest, EntriesOfALaterVersionAreRefusedAndNoneIsErased) {
  fill();
  const std::string index = (options_.directory / "index").string();
  const std::string key(16, 'k'), value = "\x03 of a later version";
  const auto with_index = [&](auto&& use) {
    std::vector<std::string> names;
    ASSERT_TRUE(rocksdb::DB::ListColumnFamilies({}, index, &names).ok());
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const auto& name : names) families.emplace_back(name, rocksdb::ColumnFamilyOptions());
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* db = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open({}, index, families, &handles, &db).ok());
    use(*db);
    for (auto* handle : handles) (void)db->DestroyColumnFamilyHandle(handle);
    delete db;
  };
  with_index([&](rocksdb::DB& db) { ASSERT_TRUE(db.Put({}, key, value).ok()); });
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Error error = refusal();
    EXPECT_EQ(error.code, Errc::version) << error.message;
    EXPECT_NE(error.message.find(index), std::string::npos) << error.message;
  }
  with_index([&](rocksdb::DB& db) {
    std::string found;
    ASSERT_TRUE(db.Get({}, key, &found).ok());
    EXPECT_EQ(found, value);
    ASSERT_TRUE(db.Delete({}, key).ok());
  });
  TestStore store(options_);
  EXPECT_EQ(store.recover().size(), 1u);
}

// The process was killed without a word.
TEST_F(ForeignFilesTest, ALimitOfFileSizesStopsWritesAndSaysSoAndReadsGoOn) {
  ASSERT_NE(std::signal(SIGXFSZ, SIG_IGN), SIG_ERR);
  TestStore store(options_);
  store.watch_health();
  ASSERT_TRUE(store.works(TestRecord(0, 1), {0, 1}));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = options_.segment_bytes / 2;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  // A segment that is not made yet.
  EXPECT_FALSE(store.write(TestRecord(0, 2), {9, 0}));
  store.control().run_until(
      [&] { return !store.health().empty() && !store.health().back().online; });
  EXPECT_TRUE(store.read(TestRecord(0, 1), {0, 1}));
  EXPECT_NE(store.health().back().why.find("RLIMIT_FSIZE"), std::string::npos)
      << store.health().back().why;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  store.wait_until(true);
  EXPECT_TRUE(store.works(TestRecord(0, 2), {9, 0}));
}

}  // namespace
}  // namespace kvtier::storage
