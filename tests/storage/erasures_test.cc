// What was erased for good stays erased where the index is lost.
#include "storage/index/erasures.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>

#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;
namespace fs = std::filesystem;

NamespaceId ns_number(unsigned number) {
  NamespaceId ns;
  ns.bytes[0] = std::byte{1};
  std::memcpy(ns.bytes.data() + 8, &number, sizeof number);
  return ns;
}
Key key_number(unsigned number) {
  Key key;
  key.bytes[0] = std::byte{2};
  std::memcpy(key.bytes.data() + 8, &number, sizeof number);
  return key;
}
RecordHeader record(unsigned ns, unsigned key, std::uint64_t era) {
  RecordHeader header{};
  header.ns = ns_number(ns);
  header.key = key_number(key);
  header.era = era;
  return header;
}
Erasure of_namespace(unsigned ns) {
  return {Erasure::Of::ns, ns_number(ns), {}};
}
Erasure of_key(unsigned ns, unsigned key) {
  return {Erasure::Of::key, ns_number(ns), key_number(key)};
}

class ErasuresTest : public ::testing::Test {
 protected:
  Erasures opened() {
    if (!fs::exists(file_)) {
      EXPECT_TRUE(Erasures::make(file_));
    }
    auto log = Erasures::open(file_);
    if (!log) throw std::runtime_error(log.error().message);
    return std::move(*log);
  }
  static void add(Erasures& log, std::vector<Erasure> what) {
    const auto added = log.add(what);
    ASSERT_TRUE(added) << added.error().message;
  }
  std::string contents() const {
    std::ifstream file(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void overwrite(const std::string& bytes) const {
    std::ofstream(file_, std::ios::binary | std::ios::trunc) << bytes;
  }

  TestDirectory directory_{TestDirectory::Where::memory};
  fs::path file_ = directory_.path() / "ERASED";
};

TEST_F(ErasuresTest, WhatIsWrittenAfterAnErasureIsNotCoveredByIt) {
  Erasures log = opened();
  const std::uint64_t before = log.era();
  EXPECT_FALSE(log.covers(record(1, 1, 0))) << "nothing was erased";
  add(log, {of_key(1, 1), of_namespace(2)});
  const std::uint64_t after = log.era();
  EXPECT_GT(after, before);
  EXPECT_TRUE(log.covers(record(1, 1, before)));
  EXPECT_TRUE(log.covers(record(1, 1, 0))) << "what an earlier version wrote";
  EXPECT_FALSE(log.covers(record(1, 1, after)));
  EXPECT_FALSE(log.covers(record(1, 2, before)));
  EXPECT_FALSE(log.covers(record(1, 2, 0)));
  EXPECT_FALSE(log.covers(record(3, 1, before))) << "the key, in another namespace";
  EXPECT_TRUE(log.covers(record(2, 7, before)));
  EXPECT_FALSE(log.covers(record(2, 7, after)));
  add(log, {{Erasure::Of::all, {}, {}}});
  EXPECT_TRUE(log.covers(record(3, 1, after)));
  EXPECT_FALSE(log.covers(record(3, 1, log.era())));
}

TEST_F(ErasuresTest, TheLogIsWhatItWasWhenItIsOpenedAgain) {
  std::uint64_t era = 0;
  {
    Erasures log = opened();
    add(log, {of_key(1, 1)});
    add(log, {of_namespace(2)});
    era = log.era();
  }
  const Erasures log = opened();
  EXPECT_EQ(log.era(), era);
  EXPECT_TRUE(log.covers(record(1, 1, 1)));
  EXPECT_FALSE(log.covers(record(1, 1, 2)));
  EXPECT_TRUE(log.covers(record(2, 1, 2)));
  EXPECT_FALSE(log.covers(record(2, 1, 3)));
}

TEST_F(ErasuresTest, AnEntryThatWasCutShortIsNoneAndTheNextIsReadAfterIt) {
  add(*std::make_unique<Erasures>(opened()), {of_key(1, 1), of_key(1, 2)});
  const std::string whole = contents();
  overwrite(whole.substr(0, whole.size() - 1));
  {
    Erasures log = opened();
    EXPECT_TRUE(log.covers(record(1, 1, 1)));
    EXPECT_FALSE(log.covers(record(1, 2, 1)));
    add(log, {of_key(1, 3)});
  }
  const Erasures log = opened();
  EXPECT_TRUE(log.covers(record(1, 3, 1)));
  EXPECT_FALSE(log.covers(record(1, 2, 1)));
}

TEST_F(ErasuresTest, OneThatIsDamagedOrMissingCoversAllThatWasWrittenBefore) {
  for (const bool missing : {false, true}) {
    std::uint64_t era = 0;
    {
      Erasures log = opened();
      add(log, {of_key(1, 1)});
      add(log, {of_key(1, 2)});
      era = log.era();
    }
    std::string bytes = contents();
    bytes[20] = static_cast<char>(bytes[20] ^ 1);
    if (missing) {
      fs::remove(file_);
    } else {
      overwrite(bytes);
    }
    for (int again = 0; again < 2; ++again) {
      auto log = Erasures::open(file_);
      ASSERT_TRUE(log) << log.error().message;
      EXPECT_TRUE(log->covers(record(9, 9, era))) << missing;
      EXPECT_FALSE(log->covers(record(9, 9, log->era()))) << missing;
    }
    fs::remove(file_);
  }
}

TEST_F(ErasuresTest, ItStaysSmallAndCoversNoLess) {
  Erasures log = opened();
  std::vector<RecordHeader> erased;
  // Many keys of one namespace, many namespaces, again and again.
  for (unsigned n = 0; n < 3 * Erasures::kEntriesMax; ++n) {
    erased.push_back(record(n % 2 == 0 ? 1 : n, n, log.era()));
    add(log, {n % 3 == 0 ? Erasure{Erasure::Of::ns, erased.back().ns, {}}
                         : Erasure{Erasure::Of::key, erased.back().ns, erased.back().key}});
    ASSERT_FALSE(log.covers(record(n % 2 == 0 ? 1 : n, n, log.era())));
  }
  EXPECT_LE(fs::file_size(file_), Erasures::kEntriesMax * 56);
  const Erasures again = opened();
  for (const RecordHeader& header : erased) {
    ASSERT_TRUE(log.covers(header));
    ASSERT_TRUE(again.covers(header));
  }
}

TEST_F(ErasuresTest, WhatCannotBeWrittenIsAddedAgainAndThenDurable) {
  Erasures log = opened();
  fs::remove(file_);
  fs::create_directory(file_);
  // The open file is appended to all the same; one entry too many has to make a new one.
  std::vector<Erasure> many;
  for (unsigned n = 0; n <= Erasures::kEntriesMax; ++n) many.push_back(of_namespace(n));
  const std::uint64_t era = log.era();
  EXPECT_FALSE(log.add(many));
  EXPECT_EQ(log.era(), era);
  fs::remove(file_);
  add(log, many);
  EXPECT_GT(log.era(), era);
  EXPECT_TRUE(opened().covers(record(7, 1, era)));
}

// A whole store, which loses its index.
class ErasedForGoodTest : public ::testing::Test {
 protected:
  static std::set<Key> recovered(TestStore& store) {
    std::set<Key> keys;
    for (const DiskEntry& entry : store.recover()) keys.insert(entry.identity.key);
    return keys;
  }
  std::set<Key> after_loss_of_the_index() {
    fs::remove_all(options_.directory / "index");
    TestStore store(options_);
    return recovered(store);
  }
  static Erasure of(const TestRecord& record) {
    return {Erasure::Of::key, record.identity.ns, record.identity.key};
  }

  TestDirectory directory_;
  RecordStoreOptions options_ = small_options(directory_.path() / "store");
  const TestRecord one_{0, 1}, other_{0, 2}, third_{1, 3};
};

TEST_F(ErasedForGoodTest, ARecordDoesNotComeBackAndOneWrittenLaterDoes) {
  {
    TestStore store(options_);
    ASSERT_TRUE(store.write(one_, {0, 0}));
    ASSERT_TRUE(store.write(other_, {0, 1}));
    store->erase_for_good({of(one_), of(other_)});
    ASSERT_TRUE(store.erase({one_.identity.key, other_.identity.key}));
    ASSERT_TRUE(store.write(other_, {0, 2}));
    ASSERT_TRUE(store.flush());
  }
  EXPECT_EQ(after_loss_of_the_index(), std::set<Key>{other_.identity.key});
}

TEST_F(ErasedForGoodTest, NorDoesAnOlderCopyInASlotThatWasGivenUp) {
  {
    TestStore store(options_);
    ASSERT_TRUE(store.write(one_, {0, 0}));
    ASSERT_TRUE(store.erase({one_.identity.key}));  // evicted: its bytes stay
    ASSERT_TRUE(store.write(one_, {0, 1}));
    store->erase_for_good({of(one_)});
    ASSERT_TRUE(store.erase({one_.identity.key}));
    ASSERT_TRUE(store.write(other_, {0, 1}));
    ASSERT_TRUE(store.flush());
  }
  EXPECT_EQ(after_loss_of_the_index(), std::set<Key>{other_.identity.key});
}

TEST_F(ErasedForGoodTest, NorDoesANamespace) {
  {
    TestStore store(options_);
    ASSERT_TRUE(store.write(one_, {0, 0}));
    ASSERT_TRUE(store.write(third_, {1, 0}));
    store->erase_for_good({{Erasure::Of::ns, one_.identity.ns, {}}});
    ASSERT_TRUE(store.erase({one_.identity.key}));
    ASSERT_TRUE(store.flush());
  }
  EXPECT_EQ(after_loss_of_the_index(), std::set<Key>{third_.identity.key});
}

TEST_F(ErasedForGoodTest, WhatIsLostWithTheIndexAndNotErasedComesBack) {
  {
    TestStore store(options_);
    ASSERT_TRUE(store.write(one_, {0, 0}));
    store->erase_for_good({of(other_)});
    ASSERT_TRUE(store.flush());
  }
  EXPECT_EQ(after_loss_of_the_index(), std::set<Key>{one_.identity.key});
  EXPECT_EQ(after_loss_of_the_index(), std::set<Key>{one_.identity.key}) << "and once more";
}

TEST_F(ErasedForGoodTest, ALogThatCannotBeWrittenTakesTheStoreOfflineAndIsWrittenBeforeItIsBack) {
  options_.probe_first = std::chrono::milliseconds(20);
  const fs::path log = options_.directory / "ERASED";
  {
    TestStore store(options_);
    store.watch_health();
    ASSERT_TRUE(store.write(one_, {0, 0}));
    // No temporary file can be made, and so no new log.
    fs::create_directories(options_.directory / "ERASED.tmp" / "in the way");
    std::vector<Erasure> many(Erasures::kEntriesMax + 1, of(one_));
    store->erase_for_good(many);
    store.wait_until(false);
    EXPECT_NE(store.health().back().why.find("ERASED"), std::string::npos)
        << store.health().back().why;
    EXPECT_FALSE(store.flush());
    fs::remove_all(options_.directory / "ERASED.tmp");
    store.wait_until(true);
    ASSERT_TRUE(store.erase({one_.identity.key}));
    ASSERT_TRUE(store.flush());
  }
  EXPECT_EQ(after_loss_of_the_index(), std::set<Key>{});
}

}  // namespace
}  // namespace kvtier::storage
