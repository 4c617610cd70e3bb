#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "storage/remote/remote_value.h"
#include "tests/storage/remote/support/redis_server.h"
#include "tests/storage/remote/support/remote_parts.h"

namespace kvtier::storage::testing {
namespace {

TEST(RedisStore, WritesFindsAndReadsRecordsOfAllSizes) {
  KVTIER_NEEDS_REDIS();
  for (const bool tcp : {false, true}) {
    const RedisServer server({.tcp = tcp});
    TestRemote store(server.url());
    EXPECT_EQ(store.wait_for(RemoteState::online), "");
    for (const TestRecord& record : test_records(8)) EXPECT_TRUE(store.works(record));
    const RemoteStats stats = store->stats();
    EXPECT_EQ(stats.records_written, 8U);
    EXPECT_EQ(stats.records_read, 8U);
    EXPECT_EQ(stats.corrupt + stats.late + stats.read_failures, 0U);
  }
}

TEST(RedisStore, TwoStoresShareWhatOneWrites) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server;
  TestRemote one(server.url()), other(server.url());
  one.wait_for(RemoteState::online);
  other.wait_for(RemoteState::online);
  const TestRecord record(1, 7);
  EXPECT_EQ(other.read(record).error().code, Errc::not_found);
  EXPECT_TRUE(one.write(record));
  EXPECT_TRUE(other.serves(record));
}

TEST(RedisStore, AValueIsTheRecordsBytesAndTheSlotIsLeftAsItWas) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server;
  OnlineRemote store(server.url());
  const TestRecord record(0, 3);
  EXPECT_TRUE(store.write(record));
  const auto slot = store.slot(0).first(record.bytes.size());
  EXPECT_TRUE(std::ranges::equal(slot, record.bytes));
  EXPECT_EQ(server.say({"GET", value_name(record.identity.key)}), value_of(record));
}

TEST(RedisStore, FindsOnlyTheLeadingKeys) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server;
  OnlineRemote store(server.url());
  auto records = test_records(1000);
  for (std::uint32_t i = 0; i < 20; ++i) {
    if (i == 12) continue;
    EXPECT_TRUE(store.write(records[i]));
  }
  EXPECT_EQ(*store.find(keys_of(records)), 12U);
  EXPECT_TRUE(store.write(records[12]));
  EXPECT_EQ(*store.find(keys_of(records)), 20U);
  EXPECT_EQ(*store.find({}), 0U);
  EXPECT_EQ(store->stats().keys_found, 32U);
}

TEST(RedisStore, ErasedIsErasedAndAWriteBehindAnEraseStays) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server;
  OnlineRemote store(server.url());
  const auto records = test_records(4);
  for (const TestRecord& record : records) EXPECT_TRUE(store.write(record));
  store->erase(keys_of(records));
  EXPECT_EQ(*store.find(keys_of(records)), 0U);
  EXPECT_EQ(store.read(records[2]).error().code, Errc::not_found);
  EXPECT_TRUE(comes_true([&] { return server.say({"DBSIZE"}) == "0"; }));
  store.control().run_until([&] { return bool(store.write(records[2])); });
  EXPECT_TRUE(store.serves(records[2]));

  // An erase of what is being written comes behind it.
  bool done = false;
  EXPECT_TRUE(store->write(store.write_of(records[3], 5), [&](Result<void> written) {
    EXPECT_TRUE(written);
    done = true;
  }));
  store->erase({records[3].identity.key});
  store.control().run_until([&] { return done; });
  EXPECT_TRUE(comes_true([&] { return server.say({"DBSIZE"}) == "1"; }));
  EXPECT_TRUE(store.serves(records[2]));
}

TEST(RedisStore, ManyAtATimeAreAllRight) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server;
  OnlineRemote store(server.url());
  const auto records = test_records(TestRemote::kSlots);
  std::size_t left = records.size();
  for (std::uint32_t i = 0; i < records.size(); ++i) {
    EXPECT_TRUE(store->write(store.write_of(records[i], i), [&](Result<void> written) {
      EXPECT_TRUE(written);
      --left;
    }));
  }
  store.control().run_until([&] { return left == 0; });
  left = records.size();
  for (std::uint32_t i = 0; i < records.size(); ++i) {
    std::ranges::fill(store.slot(i), std::byte{0xEE});
    EXPECT_TRUE(store->read(store.read_of(records[i], i), [&, i](Result<void> read) {
      EXPECT_TRUE(read) << read.error().message;
      EXPECT_TRUE(records[i].equals(store.slot(i)));
      --left;
    }));
  }
  store.control().run_until([&] { return left == 0; });
}

TEST(RedisStore, ValuesExpire) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server;
  auto options = TestRemote::options_of(server.url());
  options.expiry = std::chrono::seconds(500);
  OnlineRemote store(options);
  const TestRecord record(0, 1);
  EXPECT_TRUE(store.works(record));
  const int left = std::stoi(server.say({"TTL", value_name(record.identity.key)}));
  EXPECT_GT(left, 400);
  EXPECT_LE(left, 500);
}

TEST(RedisStore, BudgetsRefuseWhatIsOverThem) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server;
  auto options = TestRemote::options_of(server.url());
  const TestRecord record(1, 1);
  options.write_bytes_per_s = options.read_bytes_per_s = record.bytes.size() + 1;
  OnlineRemote store(options);
  EXPECT_TRUE(store.write(record));
  EXPECT_TRUE(store.write(record));  // what is left lets one more begin
  EXPECT_EQ(store.write(record).error().code, Errc::no_space);
  EXPECT_TRUE(store.read(record));
  EXPECT_TRUE(store.read(record));
  EXPECT_EQ(store.read(record).error().code, Errc::unavailable);
  EXPECT_EQ(store->stats().writes_refused, 1U);
  EXPECT_EQ(store->stats().reads_refused, 1U);
  // The debt is paid with time.
  EXPECT_TRUE(store.brings([&] { return bool(store.read(record)); }));
}

TEST(RedisStore, SealedValuesAreNotReadableWithoutTheKey) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server;
  const TestDirectory files;
  auto options = TestRemote::options_of(server.url());
  options.key_file = write_file(files, "key", std::string(32, 'k'));
  const auto records = test_records(4);
  OnlineRemote store(options);
  for (const TestRecord& record : records) EXPECT_TRUE(store.works(record));
  const std::string value = server.say({"GET", value_name(records[1].identity.key)});
  EXPECT_EQ(value.size(), records[1].bytes.size() + ValueCipher::kMoreBytes);
  EXPECT_EQ(
      value.find(std::string(reinterpret_cast<const char*>(records[1].bytes.data()) + 4096, 32)),
      std::string::npos);

  options.key_file = write_file(files, "other", std::string(32, 'o'));
  TestRemote other(options);
  other.wait_for(RemoteState::online);
  EXPECT_EQ(other.read(records[0]).error().code, Errc::corrupt);
  EXPECT_EQ(other->stats().corrupt, 1U);
}

TEST(RedisStore, AnExtentIsForgottenWhenNothingTouchesItAnyMore) {
  KVTIER_NEEDS_REDIS();
  RedisServer server;
  OnlineRemote store(server.url());
  const TestRecord record(0, 1);
  EXPECT_TRUE(store.write(record));
  server.stop();
  bool read = false, forgotten = false;
  EXPECT_TRUE(store->read(store.read_of(record, 2, std::chrono::milliseconds(200)),
                          [&](Result<void>) { read = true; }));
  store->forget_extent(store.extent().id(), [&] { forgotten = true; });
  EXPECT_FALSE(store->read(store.read_of(record, 2), [](Result<void>) {}));
  store.control().run_until([&] { return forgotten; });
  EXPECT_TRUE(read);
  server.go_on();
  EXPECT_TRUE(store->register_extent(store.extent()));
  EXPECT_FALSE(store->register_extent(store.extent()));
  store.control().run_until([&] { return store.said().back().state == RemoteState::online; });
  EXPECT_TRUE(store.serves(record));
}

TEST(RedisStore, CloseAnswersEverythingAndNothingIsPostedAfterIt) {
  KVTIER_NEEDS_REDIS();
  RedisServer server;
  OnlineRemote store(server.url());
  const auto records = test_records(8);
  for (const TestRecord& record : records) EXPECT_TRUE(store.write(record));
  server.stop();
  std::size_t answered = 0;
  for (std::uint32_t i = 0; i < records.size(); ++i) {
    EXPECT_TRUE(store->read(store.read_of(records[i], i), [&](Result<void> read) {
      EXPECT_EQ(read.error().code, Errc::unavailable);
      ++answered;
    }));
  }
  EXPECT_TRUE(store->find(keys_of(records), Clock::now() + TestRemote::kPatience,
                          [&](Result<std::size_t>) { ++answered; }));
  store->close();
  EXPECT_FALSE(store->read(store.read_of(records[0], 0), [](Result<void>) {}));
  store.control().run_until([&] { return answered == records.size() + 1; });
}

// Slots are shared memory: one whose bytes change between arrival and check is no fault of the
// value.
TEST(RedisStore, AClientThatScribblesOverASlotCostsTheStoreNoValue) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server;
  OnlineRemote store(server.url());
  const TestRecord record(1, 2);
  EXPECT_TRUE(store.write(record));
  std::atomic<bool> stop = false;
  std::thread scribbler([&] {
    auto* const at = reinterpret_cast<volatile std::uint8_t*>(store.slot(1).data());
    while (!stop) {
      at[5000] = static_cast<std::uint8_t>(at[5000] + 1);
      at[40] = static_cast<std::uint8_t>(at[40] + 1);
    }
  });
  const auto until = Clock::now() + std::chrono::seconds(20);
  while (store->stats().memory_faults < 20 && Clock::now() < until)
    EXPECT_TRUE(store.wait<void>(
        [&](auto done) { return store->read(store.read_of(record, 1), std::move(done)); }));
  stop = true;
  scribbler.join();
  EXPECT_GE(store->stats().memory_faults, 20U);
  EXPECT_EQ(store->stats().corrupt, 0U);
  EXPECT_TRUE(store.serves(record));
}

}  // namespace
}  // namespace kvtier::storage::testing
