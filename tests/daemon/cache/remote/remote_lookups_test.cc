// What the remote tier is asked before a lease is answered, and what is learnt of it.
#include "tests/daemon/cache/remote/remote_fixture.h"

namespace kvtier::daemon::testing {
namespace {

class RemoteLookupsTest : public ::testing::Test {
 protected:
  RemoteCache all;
  const std::uint16_t ns = all.open(small_namespace("m"));
  const std::vector<TestBlock> blocks = all.prefix(ns, 6, 1);
};

TEST_F(RemoteLookupsTest, one_question_brings_all_that_is_there_and_the_lease_reads_it) {
  all.put_remote(ns, std::span(blocks).first(4));
  ASSERT_TRUE(all.ask(ns, blocks));
  ASSERT_EQ(all.remote.asked().size(), 1U);
  EXPECT_EQ(all.remote.asked()[0].keys.size(), 6U);
  EXPECT_EQ(all.answers, 0U);
  all.remote.end_one();
  EXPECT_EQ(all.answers, 1U);
  EXPECT_EQ(all.tiers(blocks[3]), kRemoteOnly);
  EXPECT_TRUE(all.tiers(blocks[4]).empty());
  const auto grant = all.lease(ns, blocks);
  EXPECT_EQ(grant.slots, std::vector<SlotName>(4, 0));
  EXPECT_EQ(grant.tiers, std::vector<Tier>(4, Tier::remote));
  all.remote.end_all();
  ASSERT_EQ(all.ready.size(), 4U);
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(all.tiers(blocks[i]), kHostAndRemote);
    const Place at = place_named(all.ready[i].slot);
    EXPECT_TRUE(verify_header(all.cache.memory(Tier::host).slot(at), all.known(ns).layout,
                              blocks[i].identity, blocks[i].proof()));
  }
  EXPECT_TRUE(all.cache.release(1, grant.lease));
  EXPECT_EQ(all.known(ns).lookups.hits[index_of(Tier::remote)], 4U);
}

TEST_F(RemoteLookupsTest, it_is_asked_for_what_comes_behind_the_known_blocks_alone) {
  all.put_all(ns, std::span(blocks).first(2));
  all.put_remote(ns, blocks);
  ASSERT_TRUE(all.ask(ns, blocks));
  EXPECT_EQ(all.remote.asked()[0].keys.front(), blocks[2].key());
  all.remote.end_one();
  EXPECT_FALSE(all.ask(ns, blocks)) << "all of it is known";
}

TEST_F(RemoteLookupsTest, two_that_ask_for_the_same_share_a_question) {
  ASSERT_TRUE(all.ask(ns, blocks));
  ASSERT_TRUE(all.ask(ns, blocks));
  EXPECT_EQ(all.asked_for(FakeRemote::Asked::What::find), 1U);
  all.remote.end_one();
  EXPECT_EQ(all.answers, 2U);
}

TEST_F(RemoteLookupsTest, what_was_not_there_a_moment_ago_is_not_asked_for_again) {
  auto now = std::chrono::steady_clock::now();
  RemoteCache other({}, all.remote.shared(),
                    [&](BlockCache::Options& o) { o.remote.now = [&] { return now; }; });
  const auto other_ns = other.open(small_namespace("m"));
  ASSERT_TRUE(other.ask(other_ns, blocks));
  other.remote.end_one();
  EXPECT_FALSE(other.ask(other_ns, blocks));
  EXPECT_EQ(other.cache.remote().counts().known_absent, 1U);
  now += std::chrono::seconds(2);
  EXPECT_TRUE(other.ask(other_ns, blocks));
}

TEST_F(RemoteLookupsTest, nobody_waits_longer_than_the_time_for_it_and_what_comes_late_is_learnt) {
  all.put_remote(ns, blocks);
  ASSERT_TRUE(all.ask(ns, blocks));
  all.end_timers();
  EXPECT_EQ(all.answers, 1U);
  EXPECT_EQ(all.lease(ns, blocks).slots.size(), 0U);
  EXPECT_FALSE(all.ask(ns, blocks)) << "its time is over";
  all.remote.end_one();
  EXPECT_EQ(all.answers, 1U);
  EXPECT_EQ(all.tiers(blocks[5]), kRemoteOnly);
  EXPECT_EQ(all.cache.remote().counts().late, 1U);
}

TEST_F(RemoteLookupsTest, a_question_that_fails_is_not_asked_again_at_once) {
  ASSERT_TRUE(all.ask(ns, blocks));
  all.remote.end_one(Errc::deadline);
  EXPECT_EQ(all.answers, 1U);
  EXPECT_FALSE(all.ask(ns, blocks));
  EXPECT_EQ(all.cache.remote().counts().failed, 1U);
}

TEST_F(RemoteLookupsTest, a_store_that_refuses_or_is_offline_keeps_nobody_waiting) {
  all.remote.refuses = Errc::no_space;
  EXPECT_FALSE(all.ask(ns, blocks));
  all.remote.refuses.reset();
  all.remote.say(storage::RemoteState::offline, "taken away");
  EXPECT_FALSE(all.ask(ns, blocks));
  EXPECT_EQ(all.asked_for(FakeRemote::Asked::What::find), 1U);
  EXPECT_EQ(all.cache.remote().why(), "taken away");
}

TEST_F(RemoteLookupsTest, a_range_whose_place_in_its_prefix_is_not_known_is_not_asked_for) {
  EXPECT_FALSE(all.ask(ns, std::span(blocks).subspan(2), 2));
  EXPECT_FALSE(all.ask(ns, blocks, std::nullopt));
  all.put_all(ns, std::span(blocks).first(1));
  EXPECT_TRUE(all.ask(ns, blocks, std::nullopt)) << "what is known says where it goes on";
}

TEST_F(RemoteLookupsTest,
       while_the_store_is_offline_what_is_there_alone_is_hidden_and_not_forgotten) {
  all.put_remote(ns, blocks);
  ASSERT_TRUE(all.ask(ns, blocks));
  all.remote.end_one();
  all.remote.say(storage::RemoteState::offline, "taken away");
  EXPECT_EQ(all.lease(ns, blocks).slots.size(), 0U);
  all.remote.say(storage::RemoteState::read_only, "full");
  EXPECT_EQ(all.lease(ns, blocks).slots.size(), 6U);
}

TEST_F(RemoteLookupsTest, the_blocks_that_are_known_there_alone_are_bounded_and_the_oldest_go) {
  RemoteCache few({}, all.remote.shared(), [](BlockCache::Options& o) { o.remote.known_max = 4; });
  const auto few_ns = few.open(small_namespace("m"));
  few.put_remote(few_ns, blocks);
  ASSERT_TRUE(few.ask(few_ns, blocks));
  few.remote.end_one();
  EXPECT_EQ(few.cache.catalogue().only_remote(), 4U);
  EXPECT_EQ(few.tiers(blocks[0]), kRemoteOnly) << "not the beginning of the same prompt";
  const auto others = few.prefix(few_ns, 3, 100);
  few.put_remote(few_ns, others);
  ASSERT_TRUE(few.ask(few_ns, others));
  few.remote.end_one();
  EXPECT_EQ(few.cache.catalogue().only_remote(), 4U);
  EXPECT_TRUE(few.tiers(blocks[0]).empty());
  EXPECT_EQ(few.tiers(others[2]), kRemoteOnly);
}

TEST_F(RemoteLookupsTest, a_full_index_gives_up_what_is_remote_alone_before_anything_else) {
  CacheSizes sizes;
  sizes.blocks_max = 16;
  RemoteCache small(sizes);
  const auto its_ns = small.open(small_namespace("m"));
  const auto mine = small.prefix(its_ns, 8, 1), theirs = small.prefix(its_ns, 8, 100);
  small.put_all(its_ns, mine);
  small.put_remote(its_ns, theirs);
  ASSERT_TRUE(small.ask(its_ns, theirs));
  small.remote.end_one();
  EXPECT_EQ(small.cache.catalogue().size(), 16U);
  small.put_all(its_ns, small.prefix(its_ns, 8, 200));
  EXPECT_EQ(small.cache.catalogue().only_remote(), 0U);
  for (const TestBlock& block : mine) EXPECT_EQ(small.tiers(block), kHostOnly);
}

TEST_F(RemoteLookupsTest, keys_that_do_not_follow_one_another_are_found_out_and_served_to_nobody) {
  all.put_remote(ns, blocks);
  const std::vector<TestBlock> mixed{blocks[0], blocks[3]};
  ASSERT_TRUE(all.ask(ns, mixed));
  all.remote.end_one();
  const auto grant = all.lease(ns, mixed);
  ASSERT_EQ(grant.slots.size(), 2U);
  all.remote.end_all();
  ASSERT_EQ(all.ready.size(), 2U);
  EXPECT_NE(all.ready[0].slot, 0U);
  EXPECT_EQ(all.ready[1].slot, 0U);
  EXPECT_TRUE(all.tiers(blocks[3]).empty());
  EXPECT_TRUE(all.ask(ns, blocks)) << "whoever names it rightly finds it";
}

TEST_F(RemoteLookupsTest, an_isolated_tenants_blocks_stay_here_unless_it_was_given_leave) {
  Namespace salted = small_namespace("m");
  salted.tenant = "secret";
  CacheSizes sizes;
  sizes.tenants = {{"default", {}, false, {}}, {"acme", {"secret"}, true, {}}};
  const auto stays = [](BlockCache::Options& o) { o.remote.stays_here = {false, true}; };
  RemoteCache kept(sizes, std::make_shared<FakeRemote::Values>(), stays);
  EXPECT_FALSE(kept.ask(kept.open(salted), blocks));
  EXPECT_TRUE(kept.ask(kept.open(small_namespace("m")), blocks));
  RemoteCache shares(sizes);
  EXPECT_TRUE(shares.ask(shares.open(salted), blocks));
}

}  // namespace
}  // namespace kvtier::daemon::testing
