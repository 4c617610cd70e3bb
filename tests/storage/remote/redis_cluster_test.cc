#include <gtest/gtest.h>

#include <algorithm>

#include "storage/remote/redis/key_slot.h"
#include "storage/remote/remote_value.h"
#include "tests/storage/remote/support/redis_server.h"
#include "tests/storage/remote/support/remote_parts.h"

namespace kvtier::storage::testing {
namespace {

TEST(RedisCluster, SpreadsRecordsOverItsServersAndFindsThemAll) {
  KVTIER_NEEDS_REDIS();
  RedisCluster cluster;
  TestRemote store(cluster.url());
  EXPECT_EQ(store.wait_for(RemoteState::online), "");
  const auto records = test_records(30);
  for (const TestRecord& record : records) EXPECT_TRUE(store.works(record));
  EXPECT_EQ(*store.find(keys_of(records)), records.size());
  std::size_t all = 0;
  for (std::size_t i = 0; i < cluster.size(); ++i) {
    const auto here = std::stoul(cluster[i].say({"DBSIZE"}));
    EXPECT_GT(here, 0U);
    all += here;
  }
  EXPECT_EQ(all, records.size());
  // Nothing had to be sent on.
  EXPECT_EQ(store->stats().read_failures, 0U);
  store->erase(keys_of(records));
  EXPECT_EQ(*store.find(keys_of(records)), 0U);
}

TEST(RedisCluster, KeysLieInTheSlotsThatTheServersSay) {
  KVTIER_NEEDS_REDIS();
  RedisCluster cluster(1);
  for (const TestRecord& record : test_records(50)) {
    const std::string name = value_name(record.identity.key);
    EXPECT_EQ(cluster[0].say({"CLUSTER", "KEYSLOT", name}), std::to_string(key_slot(name)));
  }
}

// MOVED, and ASK on the way: the slot of a record goes to another server, with the record.
TEST(RedisCluster, ASlotThatMovesTakesItsRecordsAlong) {
  KVTIER_NEEDS_REDIS();
  RedisCluster cluster;
  OnlineRemote store(cluster.url());
  for (const TestRecord& record : test_records(6)) {
    EXPECT_TRUE(store.works(record));
    const std::string name = value_name(record.identity.key);
    const std::uint16_t slot = key_slot(name);
    const std::size_t from = cluster.owner(name), to = (from + 1) % cluster.size();
    cluster.move_slot(slot, from, to, [&] {
      EXPECT_TRUE(store.serves(record));  // still at the old one
      // One that is not there any more is asked for at the new one: ASK.
      cluster[from].say({"DEL", name});
      EXPECT_EQ(store.read(record).error().code, Errc::not_found);
      EXPECT_TRUE(store.write(record));
      EXPECT_EQ(cluster[from].say({"EXISTS", name}).find("ASK"), 0U);
      EXPECT_TRUE(store.serves(record));
    });
    EXPECT_EQ(cluster.owner(name), to);
    EXPECT_TRUE(store.serves(record));  // MOVED
    EXPECT_TRUE(store.write(record));
  }
  EXPECT_EQ(store->stats().corrupt, 0U);
}

TEST(RedisCluster, AnotherServerTakesOverForOneThatDied) {
  KVTIER_NEEDS_REDIS();
  RedisCluster cluster;
  const std::size_t replica = cluster.add_replica(1);
  OnlineRemote store(cluster.url());
  const auto records = test_records(30);
  for (const TestRecord& record : records) EXPECT_TRUE(store.works(record));
  EXPECT_TRUE(
      comes_true([&] { return cluster[replica].say({"DBSIZE"}) == cluster[1].say({"DBSIZE"}); }));
  cluster[1].kill();
  const auto all_served = [&] {
    return std::ranges::all_of(records, [&](const TestRecord& record) {
      const auto read = store.read(record, std::chrono::milliseconds(500));
      return read && record.equals(*read);
    });
  };
  EXPECT_TRUE(store.brings(all_served));
  for (const TestRecord& record : records) EXPECT_TRUE(store.works(record));
}

TEST(RedisCluster, AClusterThatIsDownSaysSoAndComesBack) {
  KVTIER_NEEDS_REDIS();
  RedisCluster cluster;
  OnlineRemote store(cluster.url());
  const auto records = test_records(12);
  for (const TestRecord& record : records) EXPECT_TRUE(store.write(record));
  cluster[2].kill();
  // Those whose server lives are served until the cluster gives up for all.
  store.wait_for_why("cannot be connected to");
  EXPECT_TRUE(store.brings([&] {
    for (const TestRecord& record : records)
      static_cast<void>(store.read(record, std::chrono::milliseconds(100)));
    return store.said().back().state == RemoteState::offline;
  }));
  EXPECT_NE(store.said().back().why.find("cluster"), std::string::npos);
  cluster[2].start();
  store.control().run_until([&] {
    return store.said().back().state == RemoteState::online && store.said().back().why.empty();
  });
  // What the killed one had in memory alone is gone.
  for (const TestRecord& record : records) EXPECT_TRUE(store.works(record));
}

TEST(RedisCluster, OneServerThatHangsCostsTheOthersNothing) {
  KVTIER_NEEDS_REDIS();
  RedisCluster cluster(3, {"--cluster-require-full-coverage", "no"});
  OnlineRemote store(cluster.url());
  const auto records = test_records(12);
  std::vector<std::size_t> owners;
  for (const TestRecord& record : records) {
    EXPECT_TRUE(store.write(record));
    owners.push_back(cluster.owner(value_name(record.identity.key)));
  }
  cluster[2].stop();
  for (int round = 0; round < 20; ++round) {
    for (std::size_t i = 0; i < records.size(); ++i) {
      // Those that live may be slow on a busy machine; of the other nothing comes, however long.
      const bool lives = owners[i] != 2;
      const auto start = Clock::now();
      const auto read = store.read(records[i], std::chrono::milliseconds(lives ? 10'000 : 30));
      EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
      EXPECT_EQ(bool(read), lives) << "record " << i << " of server " << owners[i];
    }
  }
  cluster[2].go_on();
  store.control().run_until([&] { return store.said().back().why.empty(); });
  for (const TestRecord& record : records) EXPECT_TRUE(store.works(record));
}

}  // namespace
}  // namespace kvtier::storage::testing
