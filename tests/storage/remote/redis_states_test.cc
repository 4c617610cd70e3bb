#include <gtest/gtest.h>

#include <algorithm>

#include "storage/remote/remote_value.h"
#include "tests/storage/remote/support/redis_server.h"
#include "tests/storage/remote/support/remote_parts.h"

namespace kvtier::storage::testing {
namespace {

using std::chrono::milliseconds;

milliseconds since(Clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - start);
}

TEST(RedisStates, AServerThatIsNotThereIsWaitedFor) {
  KVTIER_NEEDS_REDIS();
  RedisServer server;
  server.kill();
  TestRemote store(server.url());
  EXPECT_NE(store.wait_for(RemoteState::offline).find("cannot be connected to"), std::string::npos);
  const TestRecord record(0, 1);
  EXPECT_EQ(store.write(record).error().code, Errc::unavailable);
  EXPECT_EQ(store.find({record.identity.key}).error().code, Errc::unavailable);
  server.start();
  EXPECT_EQ(store.wait_for(RemoteState::online), "");
  EXPECT_TRUE(store.works(record));
}

TEST(RedisStates, AKilledServerIsNoticedAndComesBack) {
  KVTIER_NEEDS_REDIS();
  RedisServer server;
  OnlineRemote store(server.url());
  const auto records = test_records(6);
  for (const TestRecord& record : records) EXPECT_TRUE(store.write(record));
  for (int round = 0; round < 3; ++round) {
    std::size_t answered = 0;
    for (std::uint32_t i = 0; i < records.size(); ++i) {
      const auto started =
          store->read(store.read_of(records[i], i), [&](Result<void>) { ++answered; });
      if (!started) ++answered;
    }
    server.kill();
    store.control().run_until([&] { return answered == records.size(); });
    store.wait_for(RemoteState::offline);
    server.start();
    store.wait_for(RemoteState::online);
    for (const TestRecord& record : records) EXPECT_TRUE(store.works(record));
  }
}

TEST(RedisStates, AServerThatHangsCostsNobodyMoreThanTheDeadline) {
  KVTIER_NEEDS_REDIS();
  RedisServer server;
  OnlineRemote store(server.url());
  const auto records = test_records(8);
  for (const TestRecord& record : records) EXPECT_TRUE(store.write(record));
  server.stop();
  for (const TestRecord& record : records) {
    const auto start = Clock::now();
    const auto read = store.read(record, milliseconds(50));
    if (store.said().back().state == RemoteState::offline) break;
    EXPECT_EQ(read.error().code, Errc::deadline);
    EXPECT_LT(since(start), std::chrono::seconds(5));
  }
  const auto start = Clock::now();
  EXPECT_FALSE(store.find(keys_of(records), milliseconds(5)));
  EXPECT_LT(since(start), std::chrono::seconds(5));
  EXPECT_NE(store.wait_for(RemoteState::offline).find("does not answer"), std::string::npos);
  server.go_on();
  EXPECT_EQ(store.wait_for(RemoteState::online), "");
  // What was late has not landed where it was given up.
  for (const TestRecord& record : records) EXPECT_TRUE(store.serves(record));
}

TEST(RedisStates, NothingLandsInASlotAfterItsReadWasLate) {
  KVTIER_NEEDS_REDIS();
  RedisServer server;
  OnlineRemote store(server.url());
  const TestRecord record(1, 4);
  EXPECT_TRUE(store.write(record));
  for (int round = 0; round < 20; ++round) {
    std::ranges::fill(store.slot(1), std::byte{0xEE});
    server.stop();
    EXPECT_EQ(store
                  .wait<void>([&](auto done) {
                    return store->read(store.read_of(record, 1, milliseconds(3)), std::move(done));
                  })
                  .error()
                  .code,
              Errc::deadline);
    std::ranges::fill(store.slot(1), std::byte{0x11});
    server.go_on();
    EXPECT_TRUE(store.brings([&] { return bool(store.find({record.identity.key})); }));
    EXPECT_TRUE(
        std::ranges::all_of(store.slot(1), [](std::byte b) { return b == std::byte{0x11}; }));
  }
}

TEST(RedisStates, AFullServerTakesNoRecordsAndIsReadMeanwhile) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server;
  OnlineRemote store(server.url());
  const TestRecord kept(0, 1), refused(1, 2);
  EXPECT_TRUE(store.write(kept));
  server.say({"CONFIG", "SET", "maxmemory", "1"});
  EXPECT_EQ(store.write(refused).error().code, Errc::no_space);
  EXPECT_NE(store.wait_for(RemoteState::read_only).find("maxmemory"), std::string::npos);
  EXPECT_EQ(store.write(refused).error().code, Errc::unavailable);
  EXPECT_TRUE(store.serves(kept));
  store->erase({kept.identity.key});
  EXPECT_TRUE(comes_true([&] { return server.say({"DBSIZE"}) == "0"; }));
  server.say({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_EQ(store.wait_for(RemoteState::online), "");
  EXPECT_TRUE(store.works(refused));
}

TEST(RedisStates, AReplicaIsReadAndNotWrittenTo) {
  KVTIER_NEEDS_REDIS();
  const RedisServer master({.tcp = true});
  TestRemote writer(master.url());
  writer.wait_for(RemoteState::online);
  const TestRecord record(0, 1);
  EXPECT_TRUE(writer.write(record));
  const RedisServer replica({.tcp = true});
  replica.say({"REPLICAOF", "127.0.0.1", std::to_string(master.port())});
  EXPECT_TRUE(comes_true([&] { return replica.say({"DBSIZE"}) == "1"; }));
  TestRemote store(replica.url());
  EXPECT_NE(store.wait_for(RemoteState::read_only).find("replica"), std::string::npos);
  EXPECT_TRUE(store.serves(record));
  // Of two, the one that takes writes.
  TestRemote both(replica.url() + "," + master.url().substr(std::string("redis://").size()));
  EXPECT_EQ(both.wait_for(RemoteState::online), "");
  EXPECT_TRUE(both.works(TestRecord(0, 2)));
  replica.say({"REPLICAOF", "NO", "ONE"});
  EXPECT_EQ(store.wait_for(RemoteState::online), "");
}

TEST(RedisStates, AReplicaThatLostItsMasterIsNotAsked) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server({.tcp = true});
  OnlineRemote store(server.url());
  server.say({"CONFIG", "SET", "replica-serve-stale-data", "no"});
  server.say({"REPLICAOF", "127.0.0.1", "1"});
  EXPECT_FALSE(store.read(TestRecord(0, 1)));
  EXPECT_NE(store.wait_for(RemoteState::offline).find("lost its master"), std::string::npos);
  server.say({"REPLICAOF", "NO", "ONE"});
  EXPECT_EQ(store.wait_for(RemoteState::online), "");
}

TEST(RedisStates, AServerThatIsLoadingIsWaitedFor) {
  KVTIER_NEEDS_REDIS();
  RedisServer server(
      {.more = {"--key-load-delay", "40000", "--loading-process-events-interval-bytes", "1024"}});
  OnlineRemote store(server.url());
  const auto records = test_records(200);
  for (const TestRecord& record : records) EXPECT_TRUE(store.write(record));
  server.say({"SAVE"});
  server.kill();
  server.launch();
  EXPECT_TRUE(comes_true([&] { return server.try_to_ask({"PING"}) != nullptr; }));
  store.wait_for_why("is loading");
  EXPECT_EQ(store.said().back().state, RemoteState::offline);
  EXPECT_EQ(store.wait_for(RemoteState::online), "");
  for (const TestRecord& record : records) EXPECT_TRUE(store.serves(record));
}

TEST(RedisStates, WrongPasswordsAndMissingRightsAreNamedWithTheMend) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server({.more = {"--requirepass", "right"}, .password = "right"});
  const TestDirectory files;
  auto options = TestRemote::options_of(server.url());
  {
    TestRemote store(options);
    EXPECT_NE(store.wait_for(RemoteState::offline).find("password_file"), std::string::npos);
  }
  options.password_file = write_file(files, "password", "wrong\n");
  TestRemote store(options);
  EXPECT_NE(store.wait_for(RemoteState::offline).find("refuses the user or the password"),
            std::string::npos);
  write_file(files, "password", "right\n");
  EXPECT_EQ(store.wait_for(RemoteState::online), "");
  EXPECT_TRUE(store.works(TestRecord(0, 1)));
}

TEST(RedisStates, AUserOfAnAclWithTheRightsThatAreNamedCanDoAll) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server;
  const TestDirectory files;
  server.say({"ACL", "SETUSER", "kv", "on", ">secret", "~kvtier:*", "+get", "+set", "+strlen",
              "+del", "+ping", "+asking", "+cluster|slots"});
  auto options = TestRemote::options_of(server.url());
  options.url.insert(options.url.find("://") + 3, "kv@");
  options.password_file = write_file(files, "password", "secret");
  TestRemote store(options);
  EXPECT_EQ(store.wait_for(RemoteState::online), "");
  const TestRecord record(1, 1);
  EXPECT_TRUE(store.works(record));

  server.say({"ACL", "SETUSER", "kv", "-set"});
  EXPECT_FALSE(store.write(record));
  EXPECT_NE(store.wait_for(RemoteState::read_only).find("+set"), std::string::npos);
  EXPECT_TRUE(store.serves(record));
  server.say({"ACL", "SETUSER", "kv", "-get"});
  EXPECT_FALSE(store.read(record));
  EXPECT_NE(store.wait_for(RemoteState::offline).find("+get"), std::string::npos);
  server.say({"ACL", "SETUSER", "kv", "+set", "+get"});
  EXPECT_EQ(store.wait_for(RemoteState::online), "");
  EXPECT_TRUE(store.works(record));
}

TEST(RedisStates, WhatIsErasedWhileTheServerIsAwayGoesWhenItIsBack) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server({.more = {"--enable-debug-command", "yes"}});
  OnlineRemote store(server.url());
  const auto records = test_records(3);
  for (const TestRecord& record : records) EXPECT_TRUE(store.write(record));
  server.say({"CONFIG", "SET", "replica-serve-stale-data", "no"});
  server.say({"REPLICAOF", "127.0.0.1", "1"});
  EXPECT_FALSE(store.read(records[0]));
  store.wait_for(RemoteState::offline);
  store->erase({records[1].identity.key});
  server.say({"REPLICAOF", "NO", "ONE"});
  store.wait_for(RemoteState::online);
  EXPECT_EQ(store.read(records[1]).error().code, Errc::not_found);
  EXPECT_TRUE(comes_true([&] { return server.say({"DBSIZE"}) == "2"; }));
  EXPECT_TRUE(store.serves(records[0]));
  EXPECT_TRUE(store.serves(records[2]));
}

TEST(RedisStates, WhatAnswersOtherwiseThanARedisIsNotAsked) {
  KVTIER_NEEDS_REDIS();
  TestRemote refused("redis://127.0.0.1:" + std::to_string(free_port()));
  EXPECT_NE(refused.wait_for(RemoteState::offline).find("cannot be connected to"),
            std::string::npos);
  const RedisServer full({.tcp = true});
  full.say({"CONFIG", "SET", "maxclients", "1"});
  TestRemote store(full.url());
  store.wait_for(RemoteState::online);  // its first connection is the one
  EXPECT_FALSE(store.read(TestRecord(0, 1)));
  store.wait_for_why("maxclients");
  store.control().run_until([&] { return store.said().back().state == RemoteState::offline; });
}

TEST(RedisStates, ACheckThatAClusterIsThereFailsWhereThereIsNone) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server;
  auto options = TestRemote::options_of(server.url());
  options.cluster = true;
  TestRemote store(options);
  EXPECT_NE(store.wait_for(RemoteState::offline).find("not a server of a cluster"),
            std::string::npos);
}

}  // namespace
}  // namespace kvtier::storage::testing
