// Opening: what is refused and how it says so, and what is repaired.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <span>

#include "core/record/digest.h"
#include "storage/index/index.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;
namespace fs = std::filesystem;

class StoreOpenTest : public ::testing::Test {
 protected:
  Error refusal(const RecordStoreOptions& options) {
    auto opened = open_record_store(options, [](std::function<void()>) {});
    EXPECT_FALSE(opened);
    const Error error = opened ? Error{} : opened.error();
    EXPECT_NE(error.message.find(options.directory.string()), std::string::npos) << error.message;
    return error;
  }

  // Ten records of each kind, in segments 0 and 1.
  void fill() {
    TestStore store(options_);
    for (std::uint32_t n = 0; n < 10; ++n) {
      for (unsigned kind = 0; kind < kKinds; ++kind) {
        ASSERT_TRUE(store.write(TestRecord(kind, n), {kind, n}, {}, n + 1));
      }
    }
  }

  // How many of them are recovered; every one of those must be right.
  std::size_t recovered() {
    TestStore store(options_);
    const auto entries = store.recover();
    std::map<Key, DiskEntry> by_key;
    for (const DiskEntry& entry : entries) by_key[entry.identity.key] = entry;
    for (std::uint32_t n = 0; n < 10; ++n) {
      for (unsigned kind = 0; kind < kKinds; ++kind) {
        const TestRecord record(kind, n);
        const auto entry = by_key.find(record.identity.key);
        if (entry == by_key.end()) continue;
        EXPECT_EQ(entry->second.identity.parent, record.identity.parent);
        EXPECT_EQ(entry->second.identity.block_index, record.identity.block_index);
        EXPECT_TRUE(record.equals(*store.read(record, entry->second.at)));
      }
    }
    return entries.size();
  }

  static void overwrite(const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
  }

  static std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  static std::map<std::string, std::string> everything_in(const fs::path& directory) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
      if (entry.is_regular_file()) files[entry.path().string()] = contents(entry.path());
    }
    return files;
  }

  TestDirectory directory_;
  RecordStoreOptions options_ = small_options(directory_.path() / "store");
};

TEST_F(StoreOpenTest, DirectoryThatCannotBeMadeIsNamed) {
  options_.directory = "/proc/kvtier-store";
  EXPECT_EQ(refusal(options_).code, Errc::io);
}

TEST_F(StoreOpenTest, DirectoryThatIsAFileIsNamed) {
  overwrite(options_.directory, "a file");
  EXPECT_EQ(refusal(options_).code, Errc::io);
}

TEST_F(StoreOpenTest, DirectoryThatHoldsSomethingElseIsRefusedAndLeftAlone) {
  fs::create_directories(options_.directory / "photos");
  EXPECT_EQ(refusal(options_).code, Errc::invalid);
  EXPECT_FALSE(fs::exists(options_.directory / "FORMAT"));
  EXPECT_FALSE(fs::exists(options_.directory / "LOCK"));
}

TEST_F(StoreOpenTest, AnotherFormatVersionIsRefusedAndNothingIsTouched) {
  fs::create_directories(options_.directory);
  overwrite(options_.directory / "FORMAT", "kvtier-store 4\nsomething new\n");
  EXPECT_EQ(refusal(options_).code, Errc::version);
  const auto files = fs::directory_iterator(options_.directory);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

// As a program of version 1 left it: records of version 1, and a FORMAT that says 1.
TEST_F(StoreOpenTest, DirectoryOfVersion1IsTakenOverWithAllItsBlocksAndIsOfVersion3Then) {
  const auto old_record = [](unsigned kind, std::uint32_t n) {
    TestRecord record(kind, n);
    record.bytes[offsetof(RecordHeader, version)] = std::byte{1};
    return record;
  };
  const auto expect_all = [&](const RecordStoreOptions& options) {
    TestStore store(options);
    EXPECT_EQ(store.recover().size(), 20u);
    for (std::uint32_t n = 0; n < 10; ++n) {
      for (unsigned kind = 0; kind < kKinds; ++kind) {
        const auto read = store.read(old_record(kind, n), {kind, n});
        ASSERT_TRUE(read) << read.error().message;
        EXPECT_TRUE(old_record(kind, n).equals(*read));
      }
    }
  };
  {
    TestStore store(options_);
    for (std::uint32_t n = 0; n < 10; ++n) {
      for (unsigned kind = 0; kind < kKinds; ++kind)
        ASSERT_TRUE(store.write(old_record(kind, n), {kind, n}, {}, n + 1));
    }
  }
  const fs::path format = options_.directory / "FORMAT";
  std::string text = contents(format);
  ASSERT_TRUE(text.starts_with("kvtier-store 3\n")) << text;
  text[std::string("kvtier-store ").size()] = '1';
  overwrite(format, text);
  fs::remove(options_.directory / "ERASED");

  expect_all(options_);
  // A program that knows version 1 alone reads no further than this.
  text[std::string("kvtier-store ").size()] = '3';
  EXPECT_EQ(contents(format), text) << "the store's id and segment size are as they were";
  fs::remove_all(options_.directory / "index");
  expect_all(options_);
}

TEST_F(StoreOpenTest, FullDirectoryOfAnUnknownVersionIsRefusedAndNothingIsTouched) {
  fill();
  const std::string good = contents(options_.directory / "FORMAT");
  for (const char* const version : {"0", "4", "10", "4294967297", "x"}) {
    std::string text = good;
    text.replace(std::string("kvtier-store ").size(), 1, version);
    overwrite(options_.directory / "FORMAT", text);
    const auto before = everything_in(options_.directory);
    EXPECT_EQ(refusal(options_).code, Errc::version) << version;
    EXPECT_EQ(everything_in(options_.directory), before) << version;
  }
  overwrite(options_.directory / "FORMAT", good);
  EXPECT_EQ(recovered(), 20u);
}

TEST_F(StoreOpenTest, DirectoryInUseIsRefusedUntilItsStoreIsGone) {
  {
    TestStore store(options_);
    EXPECT_EQ(refusal(options_).code, Errc::refused);
  }
  EXPECT_EQ(recovered(), 0u);
}

TEST_F(StoreOpenTest, CapacityBelowOneSegmentAndTheIndexShareIsRefused) {
  options_.capacity_bytes = 33_MiB;
  const Error error = refusal(options_);
  EXPECT_EQ(error.code, Errc::invalid);
  EXPECT_NE(error.message.find("33 MiB"), std::string::npos) << error.message;
}

TEST_F(StoreOpenTest, CapacityBeyondTheFileSystemIsRefusedWithBothNumbers) {
  options_.capacity_bytes = 1ULL << 60;
  const Error error = refusal(options_);
  EXPECT_EQ(error.code, Errc::invalid);
  EXPECT_NE(error.message.find(std::to_string((1ULL << 40))), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("are only"), std::string::npos) << error.message;
}

TEST_F(StoreOpenTest, SegmentSizeThatDiffersFromTheDirectorysIsRefused) {
  fill();
  options_.segment_bytes = 2_MiB;
  EXPECT_EQ(refusal(options_).code, Errc::invalid);
  options_.segment_bytes = 1_MiB;
  EXPECT_EQ(recovered(), 20u);
}

TEST_F(StoreOpenTest, LargeIndexIsReadInPartsAndEveryEntryOnce) {
  constexpr std::uint64_t kEntries = 300'000, kStrays = 1'000;
  const auto key_of = [](std::uint64_t number) {
    return Key{xxh3_128(std::as_bytes(std::span(&number, 1)))};
  };
  const auto index = Index::open(
      {.directory = directory_.path() / "index", .store = StoreId{}, .bytes_max = 256_MiB});
  ASSERT_TRUE(index);
  Index::Batch batch;
  for (std::uint64_t number = 0; number < kEntries; ++number) {
    DiskEntry entry;
    entry.identity.key = key_of(number);
    entry.at.slot = static_cast<std::uint32_t>(number);
    entry.identity.ns.bytes[0] = std::byte(number % 7);
    entry.record_bytes = record_bytes(number % 2);
    entry.last_access = number + 1;
    batch.put(entry);
    if (number % 10'000 == 9'999) {
      ASSERT_TRUE((*index)->commit(batch));
    }
  }
  // Half of them were used since, and some that are not there any more.
  for (std::uint64_t number = 0; number < kEntries; number += 2)
    batch.touch(key_of(number), 2 * kEntries);
  for (std::uint64_t number = 0; number < kStrays; ++number) batch.touch(key_of(~number), 1);
  ASSERT_TRUE((*index)->commit(batch));

  const auto contents = (*index)->load();
  ASSERT_TRUE(contents) << contents.error().message;
  std::vector<bool> seen(kEntries);
  for (const auto& part : contents->parts) {
    for (std::size_t at = 0; at < part.size(); ++at) {
      const DiskEntry entry = part[at];
      ASSERT_EQ(entry.identity.key, key_of(entry.at.slot));
      ASSERT_EQ(entry.last_access, entry.at.slot % 2 == 0 ? 2 * kEntries : entry.at.slot + 1);
      ASSERT_EQ(entry.identity.ns.bytes[0], std::byte(entry.at.slot % 7));
      ASSERT_EQ(entry.record_bytes, record_bytes(entry.at.slot % 2));
      ASSERT_FALSE(seen[entry.at.slot]) << "twice";
      seen[entry.at.slot] = true;
    }
  }
  EXPECT_EQ(std::ranges::count(seen, true), kEntries);
  const std::set<Key> strays(contents->unreadable.begin(), contents->unreadable.end());
  EXPECT_EQ(contents->unreadable.size(), kStrays);
  EXPECT_EQ(strays.size(), kStrays);
  EXPECT_TRUE(strays.contains(key_of(~std::uint64_t{kStrays - 1})));
}

TEST_F(StoreOpenTest, DeletedIndexIsRebuiltFromTheSegments) {
  fill();
  fs::remove_all(options_.directory / "index");
  EXPECT_EQ(recovered(), 20u);
  EXPECT_EQ(recovered(), 20u);
}

TEST_F(StoreOpenTest, DamagedIndexIsRebuiltFromTheSegments) {
  fill();
  overwrite(options_.directory / "index" / "CURRENT", "nonsense");
  EXPECT_EQ(recovered(), 20u);
  for (const auto& file : fs::directory_iterator(options_.directory / "index")) {
    if (file.path().filename().string().starts_with("MANIFEST")) fs::resize_file(file.path(), 10);
  }
  EXPECT_EQ(recovered(), 20u);
}

TEST_F(StoreOpenTest, IndexOfAnotherStoreIsNotBelieved) {
  fill();
  auto other = options_;
  other.directory = directory_.path() / "other";
  { TestStore store(other); }
  fs::remove_all(options_.directory / "index");
  fs::copy(other.directory / "index", options_.directory / "index");
  EXPECT_EQ(recovered(), 20u);
}

TEST_F(StoreOpenTest, RecordsOfADeletedSegmentAreForgotten) {
  fill();
  fs::remove(options_.directory / "segments" / "000001.seg");
  EXPECT_EQ(recovered(), 10u);
}

TEST_F(StoreOpenTest, RecordsOfASegmentWithADamagedHeaderAreForgottenAndItsPlaceIsReused) {
  fill();
  std::fstream file(options_.directory / "segments" / "000000.seg");
  file.seekp(20).put('x');
  file.close();
  EXPECT_EQ(recovered(), 10u);
  TestStore store(options_);
  EXPECT_TRUE(store.write(TestRecord(0, 3), {0, 0}));
  // Two segments, one that may have been made ahead, and an index of less than a mebibyte.
  EXPECT_LE(store->stats().file_bytes / options_.segment_bytes, 3u);
}

TEST_F(StoreOpenTest, LoweredCapacityRemovesWhatLiesPastIt) {
  fill();
  {
    TestStore store(options_);
    ASSERT_TRUE(store.write(TestRecord(0, 100), {20, 0}));
  }
  options_.capacity_bytes = 36_MiB;
  EXPECT_EQ(recovered(), 20u);
  EXPECT_FALSE(fs::exists(options_.directory / "segments" / "000020.seg"));
}

}  // namespace
}  // namespace kvtier::storage
