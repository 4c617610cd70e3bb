// What is counted by user: no more of it by connecting again, or more often.
#include "daemon/peers/users.h"
#include "daemon/cache/leases/hold_table.h"
#include "daemon/limits.h"
#include "tests/daemon/support/server_fixture.h"
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = WireClient::Builder;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Users, a_debt_is_paid_by_time_alone_whatever_sessions_come_and_go) {
  constexpr uid_t kUser = 1000;
  Users users(100);
  Users::Time now{seconds(1000)};
  users.session_begins(kUser, now);
  EXPECT_EQ(users.in_debt_for(kUser, now), seconds(0));
  users.charge(kUser, 399, now);
  users.session_ends(kUser, now);
  users.session_begins(kUser, now);
  EXPECT_EQ(users.in_debt_for(kUser, now), seconds(3));
  EXPECT_EQ(users.in_debt_for(kUser + 1, now), seconds(0)) << "another's";
  EXPECT_EQ(users.in_debt_for(kUser, now + seconds(2)), seconds(1));
  EXPECT_EQ(users.in_debt_for(kUser, now + seconds(3)), seconds(0));
  // A second's worth at the most, however long it was silent.
  now += seconds(1000);
  users.charge(kUser, 100, now);
  EXPECT_GT(users.in_debt_for(kUser, now), seconds(0));
}

TEST(Users, those_who_owe_nothing_and_have_no_session_are_not_remembered) {
  Users users(100);
  Users::Time now{seconds(1000)};
  users.session_begins(1, now);
  users.charge(2, 1000, now);
  for (uid_t user = 10; user < 10 + 2 * limits::kUsersRememberedMax; ++user)
    users.charge(user, 1, now += milliseconds(11));
  EXPECT_LE(users.remembered(), limits::kUsersRememberedMax);
  EXPECT_EQ(users.sessions_of(1), 1U);
  // Nor more of them where all owe something.
  for (uid_t user = 100'000; user < 100'000 + 2 * limits::kUsersRememberedMax; ++user)
    users.charge(user, 1e9, now);
  EXPECT_LE(users.remembered(), limits::kUsersRememberedMax);
  EXPECT_EQ(users.sessions_of(1), 1U);
}

class RateTest : public ServerTest {
 protected:
  RateTest() : ServerTest("[limits]\nrequests_per_second = 1000\n") {}
};

// Each connection had a bucket of its own, and a full one.
TEST_F(RateTest, a_user_that_connects_anew_owes_what_it_owed) {
  WireClient first = client();
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(first.send([](Builder m) { m.initList(); }, 9));
  // The last of them is handled only once those before are paid for: it is a new debt then.
  first.close();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(client().request([](Builder m) { m.initList(); }));
  EXPECT_GT(std::chrono::steady_clock::now() - began, milliseconds(1500));
}

// Four leases with one key 16,384 times each had all the holds that a block may have.
TEST(Holds, a_user_is_one_hold_of_a_block_however_often_it_asks) {
  TestCache cache({}, false);
  const auto ns = cache.open(small_namespace("m"));
  const auto blocks = cache.prefix(ns, 1, 1);
  ASSERT_EQ(cache.put_all(ns, blocks), 1U);
  const std::vector<TestBlock> again(wire::kLeaseBlocksMax, blocks[0]);
  for (const SessionId session : {1, 2}) cache->begin_session(session, 1000);
  std::vector<std::pair<SessionId, LeaseId>> leases;
  for (int i = 0; i < 5; ++i) {
    for (const SessionId session : {1, 2}) {
      const auto grant = cache.lease(ns, again, session);
      ASSERT_EQ(grant.slots.size(), again.size());
      leases.emplace_back(session, grant.lease);
    }
  }
  const auto holds = [&] { return cache.find(blocks[0].key())->holds[index_of(Tier::host)]; };
  EXPECT_EQ(holds(), 1U);
  cache->begin_session(3, 1001);
  const auto other = cache.lease(ns, blocks, 3);
  EXPECT_EQ(other.slots.size(), 1U) << "another user's";
  EXPECT_EQ(holds(), 2U);
  for (std::size_t i = 0; i + 1 < leases.size(); ++i)
    ASSERT_TRUE(cache->release(leases[i].first, leases[i].second));
  EXPECT_EQ(holds(), 2U) << "the last lease still has it";
  ASSERT_TRUE(cache->release(leases.back().first, leases.back().second));
  EXPECT_EQ(holds(), 1U);
  ASSERT_TRUE(cache->release(3, other.lease));
  EXPECT_EQ(holds(), 0U);
}

TEST(Holds, all_sessions_of_a_user_have_one_share_of_a_tier) {
  TestCache cache({.leased_percent = 50}, false);
  const auto ns = cache.open(small_namespace("m"));
  const auto blocks = cache.prefix(ns, 30, 1), others = cache.prefix(ns, 10, 9000);
  ASSERT_EQ(cache.put_all(ns, blocks), 30U);
  ASSERT_EQ(cache.put_all(ns, others), 10U);
  for (const SessionId session : {1, 2}) cache->begin_session(session, 1000);
  EXPECT_EQ(cache.lease(ns, blocks, 1).slots.size(), 20U);
  EXPECT_EQ(cache.lease(ns, blocks, 2).slots.size(), 20U) << "the same blocks cost nothing more";
  EXPECT_EQ(cache.lease(ns, others, 2).slots.size(), 0U);
  cache->end_session(1);
  EXPECT_EQ(cache.lease(ns, others, 2).slots.size(), 0U) << "the other session has them yet";
  cache->begin_session(3, 1000);
  EXPECT_EQ(cache.lease(ns, others, 3).slots.size(), 0U) << "nor by connecting anew";
  cache->begin_session(4, 1001);
  EXPECT_EQ(cache.lease(ns, others, 4).slots.size(), 10U) << "another user";
  cache->end_session(2);
  EXPECT_EQ(cache.lease(ns, others, 3).slots.size(), 10U);
}

TEST(Holds, what_waits_for_a_disk_when_its_lease_is_released_is_still_counted) {
  TestCache cache({.leased_percent = 50});
  const auto ns = cache.open(small_namespace("m"));
  const auto blocks = cache.prefix(ns, 20, 1);
  cache.put_on_disk(ns, blocks);
  cache->begin_session(1, 1000);
  const auto grant = cache.lease(ns, blocks, 1);
  ASSERT_EQ(grant.slots.size(), 20U);
  ASSERT_TRUE(cache->release(1, grant.lease));
  cache.store().complete_all();
  const auto again = cache.lease(ns, blocks, 1);
  EXPECT_EQ(again.slots.size(), 20U);
  for (const TestBlock& block : blocks)
    EXPECT_EQ(cache.find(block.key())->holds[index_of(Tier::host)], 1U);
  ASSERT_TRUE(cache->release(1, again.lease));
  for (const TestBlock& block : blocks)
    EXPECT_EQ(cache.find(block.key())->holds[index_of(Tier::host)], 0U);
}

TEST(HoldTableTest, keeps_each_entry_whatever_comes_and_goes_around_it) {
  HoldTable table;
  std::map<std::uint64_t, std::uint32_t> expected;
  std::uint64_t random = 1;
  for (int step = 0; step < 200'000; ++step) {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto name = HoldTable::name_of(BlockId(static_cast<std::uint32_t>(random >> 40) % 700),
                                         (random >> 33) % 2 == 0 ? Tier::host : Tier::device);
    HoldTable::Entry* const found = table.find(name);
    ASSERT_EQ(found != nullptr, expected.contains(name));
    if (found == nullptr) {
      table.expect(1);
      ASSERT_EQ(table.at(name).leases, 0U);
      table.at(name).leases = static_cast<std::uint32_t>(step);
      expected[name] = static_cast<std::uint32_t>(step);
    } else {
      ASSERT_EQ(found->leases, expected[name]);
      table.erase(found);
      expected.erase(name);
    }
    ASSERT_EQ(table.size(), expected.size());
  }
}

}  // namespace
}  // namespace kvtier::daemon::testing
