// Reads from the remote tier, writes to it, and what is erased.
#include "tests/daemon/cache/remote/remote_fixture.h"

namespace kvtier::daemon::testing {
namespace {

class RemoteTierTest : public ::testing::Test {
 protected:
  static std::function<void(BlockCache::Options&)> admits(RemoteAdmission admission) {
    return [=](BlockCache::Options& options) { options.remote.admission = admission; };
  }
  std::uint64_t drops(RemoteCache& of, RemoteDrop why) {
    return of.cache.remote().counts().drops[static_cast<std::size_t>(why)];
  }
  RemoteCache all;
  const std::uint16_t ns = all.open(small_namespace("m"));
  const std::vector<TestBlock> blocks = all.prefix(ns, 4, 1);
};

TEST_F(RemoteTierTest, what_is_used_a_second_time_goes_there_and_another_host_hits_it) {
  all.put_all(ns, blocks);
  EXPECT_EQ(all.asked_for(FakeRemote::Asked::What::write), 0U);
  const auto grant = all.lease(ns, blocks);
  all.cache.release(1, grant.lease);
  all.remote.end_all();
  EXPECT_EQ(all.remote.values().size(), 4U);
  EXPECT_EQ(all.tiers(blocks[3]), kHostAndRemote);
  all.lease(ns, blocks);
  EXPECT_EQ(all.asked_for(FakeRemote::Asked::What::write), 4U) << "once each";

  RemoteCache other({}, all.remote.shared());
  const auto other_ns = other.open(small_namespace("m"));
  const auto there = other.ask_and_lease(other_ns, blocks);
  EXPECT_EQ(there.tiers, std::vector<Tier>(4, Tier::remote));
  other.remote.end_all();
  ASSERT_EQ(other.ready.size(), 4U);
  for (const auto& landed : other.ready) EXPECT_NE(landed.slot, 0U);
}

TEST_F(RemoteTierTest, another_namespace_finds_nothing) {
  RemoteCache other({}, all.remote.shared(), admits(RemoteAdmission::all));
  other.put_all(other.open(small_namespace("another")),
                other.prefix(other.open(small_namespace("another")), 4, 1));
  other.remote.end_all();
  ASSERT_EQ(all.remote.values().size(), 4U);
  EXPECT_EQ(all.ask_and_lease(ns, blocks).slots.size(), 0U);
}

TEST_F(RemoteTierTest, by_admission_all_goes_at_its_commit_or_nothing_unasked) {
  RemoteCache at_once({}, all.remote.shared(), admits(RemoteAdmission::all));
  at_once.put_all(at_once.open(small_namespace("m")), blocks);
  EXPECT_EQ(at_once.asked_for(FakeRemote::Asked::What::write), 4U);

  RemoteCache warm({}, all.remote.shared(), admits(RemoteAdmission::warm));
  const auto warm_ns = warm.open(small_namespace("m"));
  warm.put_all(warm_ns, blocks);
  warm.lease(warm_ns, blocks);
  EXPECT_EQ(warm.asked_for(FakeRemote::Asked::What::write), 0U);
  EXPECT_TRUE(
      warm.cache.remote().writes().push(warm.cache.catalogue().find(warm_ns, blocks[3].key())));
  EXPECT_EQ(warm.asked_for(FakeRemote::Asked::What::write), 4U)
      << "with those before it in its prefix";
}

TEST_F(RemoteTierTest, two_leases_that_want_a_block_share_its_read) {
  all.put_remote(ns, blocks);
  all.ask_and_lease(ns, blocks);
  all.lease(ns, blocks);
  EXPECT_EQ(all.asked_for(FakeRemote::Asked::What::read), 4U);
  all.remote.end_all();
  EXPECT_EQ(all.ready.size(), 8U);
}

TEST_F(RemoteTierTest, a_read_that_finds_nothing_ends_the_knowledge_of_it_and_is_a_miss) {
  all.put_remote(ns, blocks);
  ASSERT_TRUE(all.ask(ns, blocks));
  all.remote.end_one();
  all.remote.values().erase(blocks[1].key());  // it has expired
  const auto grant = all.lease(ns, blocks);
  all.remote.end_all();
  EXPECT_TRUE(all.tiers(blocks[1]).empty());
  EXPECT_EQ(all.cache.remote().counts().stale, 1U);
  EXPECT_EQ(all.cache.counts().faults, 0U);
  all.cache.release(1, grant.lease);
  EXPECT_EQ(all.known(ns).lookups.hits[index_of(Tier::remote)], 1U);
  EXPECT_EQ(all.known(ns).lookups.misses, 3U);
}

TEST_F(RemoteTierTest, what_does_not_hold_is_served_to_nobody_and_what_is_late_stays_known) {
  all.put_remote(ns, blocks);
  all.remote.values()[blocks[0].key()][all.known(ns).layout.header_bytes] ^= std::byte{1};
  all.ask_and_lease(ns, blocks);
  all.remote.end_one();
  EXPECT_TRUE(all.tiers(blocks[0]).empty());
  EXPECT_EQ(all.cache.counts().faults, 1U);
  all.remote.end_one(Errc::deadline);
  EXPECT_EQ(all.tiers(blocks[1]), kRemoteOnly);
  EXPECT_EQ(all.ready[0].slot, 0U);
  EXPECT_EQ(all.ready[1].slot, 0U);
  EXPECT_EQ(all.cache.counts().faults, 1U);
}

TEST_F(RemoteTierTest, what_is_evicted_here_is_still_there) {
  RemoteCache at_once({}, all.remote.shared(), admits(RemoteAdmission::all));
  const auto its_ns = at_once.open(small_namespace("m"));
  at_once.put_all(its_ns, blocks);
  at_once.remote.end_all();
  at_once.put_all(its_ns, at_once.prefix(its_ns, 40, 1000));
  EXPECT_EQ(at_once.tiers(blocks[0]), kRemoteOnly);
  at_once.remote.end_all();
  EXPECT_EQ(at_once.lease(its_ns, blocks).tiers, std::vector<Tier>(4, Tier::remote));
}

TEST_F(RemoteTierTest, the_queue_is_bounded_and_what_follows_a_block_that_was_left_out_is_too) {
  RemoteCache few({}, all.remote.shared(), [](BlockCache::Options& options) {
    options.remote.admission = RemoteAdmission::all;
    options.remote.write_queue_max = 2;
  });
  const auto its_ns = few.open(small_namespace("m"));
  few.put_all(its_ns, blocks);
  EXPECT_EQ(drops(few, RemoteDrop::queue_full), 2U);
  few.remote.end_all();
  EXPECT_EQ(few.remote.values().size(), 2U);
  few.lease(its_ns, blocks);
  few.remote.end_all();
  EXPECT_EQ(few.remote.values().size(), 4U) << "offered again when it is used again";
}

TEST_F(RemoteTierTest, a_write_that_fails_leaves_its_block_unknown_and_nothing_held) {
  all.put_all(ns, blocks);
  all.cache.release(1, all.lease(ns, blocks).lease);
  all.remote.end_all(Errc::io);
  EXPECT_EQ(all.tiers(blocks[0]), kHostOnly);
  EXPECT_EQ(drops(all, RemoteDrop::failed), 4U);
  EXPECT_EQ(all.cache.remote().writes().queued_bytes(), 0U);
  EXPECT_TRUE(Catalogue::unheld(
      all.cache.catalogue().block(all.cache.catalogue().find(ns, blocks[0].key()))));
}

TEST_F(RemoteTierTest, a_store_that_takes_nothing_is_written_nothing) {
  all.put_all(ns, blocks);
  all.remote.say(storage::RemoteState::read_only, "full");
  all.lease(ns, blocks);
  EXPECT_EQ(all.asked_for(FakeRemote::Asked::What::write), 0U);
  EXPECT_EQ(drops(all, RemoteDrop::offline), 1U);
  EXPECT_EQ(drops(all, RemoteDrop::parent), 3U);
  all.remote.say(storage::RemoteState::online);
  all.remote.refuses = Errc::no_space;
  all.lease(ns, blocks);
  EXPECT_EQ(drops(all, RemoteDrop::refused), 2U) << "the next is not even offered to it";
  EXPECT_EQ(all.asked_for(FakeRemote::Asked::What::write), 1U);
  EXPECT_EQ(all.cache.remote().writes().queued(), 0U);
}

TEST_F(RemoteTierTest, what_is_dropped_goes_from_there_and_is_not_looked_for_again) {
  all.put_remote(ns, blocks);
  all.ask_and_lease(ns, blocks);
  all.remote.end_all();
  all.cache.release_all(1);
  all.cache.erase_for_good({{storage::Erasure::Of::ns, all.known(ns).id, {}}}, kHostAndRemote);
  all.cache.drop(ns, kHostAndRemote);
  EXPECT_EQ(all.remote.erased().size(), 4U);
  EXPECT_TRUE(all.tiers(blocks[0]).empty());
  all.put_remote(ns, blocks);  // another host has it still
  EXPECT_FALSE(all.ask(ns, blocks));
  // What this host writes there later is its own.
  all.put_all(ns, blocks);
  all.cache.release(1, all.lease(ns, blocks).lease);
  all.remote.end_all();
  all.cache.drop(ns, kHostOnly);
  EXPECT_EQ(all.lease(ns, blocks).tiers, std::vector<Tier>(4, Tier::remote));
}

TEST_F(RemoteTierTest, a_key_that_was_erased_ends_what_is_learnt_of_a_prefix) {
  all.put_remote(ns, blocks);
  all.cache.erase_for_good({{storage::Erasure::Of::key, all.known(ns).id, blocks[2].key()}},
                           kRemoteOnly);
  EXPECT_EQ(all.ask_and_lease(ns, blocks).slots.size(), 2U);
}

TEST_F(RemoteTierTest, what_is_erased_while_it_is_on_its_way_is_served_to_nobody) {
  all.put_remote(ns, blocks);
  all.ask_and_lease(ns, blocks);
  const BlockId id = all.cache.catalogue().find(ns, blocks[0].key());
  BlockCache::Removed removed;
  all.cache.remove({&id, 1}, TierSet{15}, true, removed);
  EXPECT_EQ(all.cache.catalogue().find(ns, blocks[0].key()), kNoBlock);
  all.remote.end_one(Errc::not_found);
  EXPECT_EQ(all.ready[0].slot, 0U);
  EXPECT_TRUE(all.tiers(blocks[0]).empty());
}

TEST_F(RemoteTierTest, what_is_doomed_while_it_is_written_does_not_stay_there) {
  all.put_all(ns, blocks);
  all.cache.release(1, all.lease(ns, blocks).lease);
  const BlockId id = all.cache.catalogue().find(ns, blocks[0].key());
  BlockCache::Removed removed;
  all.cache.remove({&id, 1}, TierSet{15}, true, removed);
  all.remote.end_all();
  EXPECT_FALSE(all.remote.values().contains(blocks[0].key()));
  EXPECT_TRUE(all.tiers(blocks[0]).empty());
}

TEST_F(RemoteTierTest, a_client_that_writes_a_block_on_its_way_from_there_is_served_its_own) {
  all.put_remote(ns, blocks);
  all.ask_and_lease(ns, std::span(blocks).first(1));
  ASSERT_TRUE(all.put(ns, blocks[0]));
  all.remote.end_all();
  EXPECT_EQ(all.tiers(blocks[0]), kHostAndRemote);
  EXPECT_NE(all.ready.at(0).slot, 0U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
