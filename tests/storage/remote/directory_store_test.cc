#include <gtest/gtest.h>
#include <sys/stat.h>
#include <utime.h>

#include <algorithm>
#include <fstream>

#include "storage/remote/directory/directory_files.h"
#include "tests/storage/remote/support/redis_server.h"
#include "tests/storage/remote/support/remote_parts.h"

namespace kvtier::storage::testing {
namespace {

namespace fs = std::filesystem;

std::string url_of(const fs::path& directory) {
  return "file://" + directory.string();
}

std::size_t values_in(const fs::path& directory) {
  std::size_t count = 0;
  for (const auto& file : fs::recursive_directory_iterator(directory)) {
    count += file.is_regular_file() && file.path().filename() != "FORMAT" ? 1 : 0;
  }
  return count;
}

fs::path value_path(const fs::path& directory, const Key& key) {
  const std::string name = to_hex(key);
  return directory / name.substr(name.size() - 3) / name;
}

void make_old(const fs::path& file, std::time_t by_s) {
  const utimbuf times{std::time(nullptr) - by_s, std::time(nullptr) - by_s};
  ASSERT_EQ(::utime(file.c_str(), &times), 0);
}

TEST(DirectoryStore, WritesFindsReadsAndErases) {
  const TestDirectory shared;
  TestRemote store(url_of(shared.path())), other(url_of(shared.path()));
  EXPECT_EQ(store.wait_for(RemoteState::online), "");
  other.wait_for(RemoteState::online);
  const auto records = test_records(20);
  for (const TestRecord& record : records) {
    EXPECT_TRUE(store.works(record));
    EXPECT_TRUE(other.serves(record));
  }
  EXPECT_EQ(*store.find(keys_of(test_records(30))), 20U);
  const TestRecord& record = records[3];
  std::ifstream file(value_path(shared.path(), record.identity.key), std::ios::binary);
  const std::string value((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(value, value_of(record));
  store->erase(keys_of(records));
  EXPECT_EQ(*store.find(keys_of(records)), 0U);
  EXPECT_TRUE(comes_true([&] { return values_in(shared.path()) == 0; }));
  EXPECT_EQ(other.read(record).error().code, Errc::not_found);
}

TEST(DirectoryStore, ADirectoryThatIsNoStoreOfItsIsNotTouched) {
  const TestDirectory foreign, newer, bare;
  write_file(foreign, "thesis.txt", "mine");
  TestRemote one(url_of(foreign.path()));
  EXPECT_NE(one.wait_for(RemoteState::offline).find("not empty"), std::string::npos);
  EXPECT_FALSE(fs::exists(foreign.path() / "FORMAT"));

  write_file(newer, "FORMAT", "kvtier remote store\nversion 2\n");
  TestRemote two(url_of(newer.path()));
  EXPECT_NE(two.wait_for(RemoteState::offline).find("another version"), std::string::npos);

  write_file(bare, "NOT-MOUNTED", "");
  TestRemote three(url_of(bare.path()));
  EXPECT_NE(three.wait_for(RemoteState::offline).find("NOT-MOUNTED"), std::string::npos);
  fs::remove(bare.path() / "NOT-MOUNTED");
  EXPECT_EQ(three.wait_for(RemoteState::online), "");

  TestRemote four(url_of(bare.path() / "nowhere"));
  EXPECT_FALSE(four.wait_for(RemoteState::offline).empty());
}

TEST(DirectoryStore, AStoreThatVanishesIsWaitedForAndNotMadeAnew) {
  const TestDirectory parent;
  const fs::path shared = parent.path() / "shared", away = parent.path() / "away";
  fs::create_directory(shared);
  OnlineRemote store(url_of(shared));
  const TestRecord record(0, 1);
  EXPECT_TRUE(store.works(record));
  fs::rename(shared, away);
  fs::create_directory(shared);  // the bare directory below a mount
  EXPECT_NE(store.wait_for(RemoteState::offline).find("mount what was there"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(shared));
  fs::remove(shared);
  fs::rename(away, shared);
  store.wait_for(RemoteState::online);
  EXPECT_TRUE(store.serves(record));
}

TEST(DirectoryStore, WhatExpiredIsNotServedAndGoes) {
  const TestDirectory shared;
  auto options = TestRemote::options_of(url_of(shared.path()));
  options.expiry = std::chrono::hours(1);
  OnlineRemote store(options);
  const TestRecord old(0, 1), fresh(0, 2);
  EXPECT_TRUE(store.works(old));
  EXPECT_TRUE(store.works(fresh));
  make_old(value_path(shared.path(), old.identity.key), 3700);
  EXPECT_EQ(store.read(old).error().code, Errc::not_found);
  EXPECT_EQ(*store.find({old.identity.key}), 0U);
  EXPECT_TRUE(store.serves(fresh));
  DirectoryFiles files(shared.path(), options.expiry);
  for (int i = 0; i < 4096 / 8; ++i) files.clean_up();
  EXPECT_EQ(values_in(shared.path()), 1U);
}

TEST(DirectoryStore, WhatAKilledWriterLeftGoesAfterAWhile) {
  const TestDirectory shared;
  {
    OnlineRemote store(url_of(shared.path()));
    EXPECT_TRUE(store.works(TestRecord(0, 1)));
  }
  write_file(shared, "new/half", "half of a value");
  write_file(shared, "new/young", "half of a value");
  make_old(shared.path() / "new" / "half", 4000);
  TestRemote store(url_of(shared.path()));
  EXPECT_TRUE(comes_true([&] { return !fs::exists(shared.path() / "new" / "half"); }));
  EXPECT_TRUE(fs::exists(shared.path() / "new" / "young"));
}

TEST(DirectoryStore, LinksAndPipesAreNoValues) {
  const TestDirectory shared;
  OnlineRemote store(url_of(shared.path()));
  const TestRecord link(0, 1), pipe(0, 2);
  for (const TestRecord* record : {&link, &pipe}) EXPECT_TRUE(store.works(*record));
  const auto link_path = value_path(shared.path(), link.identity.key);
  const auto pipe_path = value_path(shared.path(), pipe.identity.key);
  fs::rename(link_path, shared.path() / "elsewhere");
  fs::create_symlink(shared.path() / "elsewhere", link_path);
  fs::remove(pipe_path);
  ASSERT_EQ(::mkfifo(pipe_path.c_str(), 0600), 0);
  EXPECT_EQ(store.read(link).error().code, Errc::corrupt);
  EXPECT_EQ(store.read(pipe).error().code, Errc::corrupt);
  EXPECT_EQ(store->stats().corrupt, 2U);
  EXPECT_TRUE(fs::exists(shared.path() / "elsewhere"));
}

TEST(DirectoryStore, SealedValuesAreNotReadableWithoutTheKey) {
  const TestDirectory shared, files;
  auto options = TestRemote::options_of(url_of(shared.path()));
  options.key_file = write_file(files, "key", std::string(32, 'k'));
  const TestRecord record(1, 1);
  OnlineRemote store(options);
  EXPECT_TRUE(store.works(record));
  options.key_file = write_file(files, "other", std::string(32, 'o'));
  TestRemote other(options);
  other.wait_for(RemoteState::online);
  EXPECT_EQ(other.read(record).error().code, Errc::corrupt);
}

}  // namespace
}  // namespace kvtier::storage::testing
