// What hints do to the order in which blocks go, and to nobody else's.
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

using std::chrono::seconds;

constexpr TierSet kHost{2}, kDisk{4};
constexpr Hint kKeepAnHour{HintKind::keep, Tier::host, 0, seconds(3600)};
constexpr Hint kDemote{HintKind::demote};
constexpr Hint kEnded{HintKind::ended};
constexpr Hint priority(std::uint8_t of) {
  return {HintKind::keep, Tier::host, of, seconds(0)};
}

class HintsTest : public ::testing::Test {
 protected:
  explicit HintsTest(const CacheSizes& sizes = {}, bool with_disk = false)
      : cache(sizes, with_disk), ns(cache.open(small_namespace("m"))) {
    cache->begin_session(1, 1001);
    cache->begin_session(2, 1002);
    cache->begin_session(3, 1001);  // of the same user as session 1
  }

  std::vector<TestBlock> put(std::size_t blocks, Token first, SessionId session = 1) {
    auto prefix = cache.prefix(ns, blocks, first);
    put_all(prefix, session);
    return prefix;
  }
  void put_all(std::span<const TestBlock> prefix, SessionId session = 1) {
    for (const TestBlock& block : prefix) {
      if (!cache.tiers(block).has(Tier::host)) {
        EXPECT_TRUE(cache.put(ns, block, Tier::host, session));
      }
    }
  }
  // So many blocks of other prompts, each of one block.
  void press(std::size_t blocks, SessionId session = 2) {
    for (std::size_t i = 0; i < blocks; ++i) put(1, next_ += 1000, session);
  }
  void use(std::span<const TestBlock> prefix, SessionId session = 1) {
    cache->release(session, cache.lease(ns, prefix, session).lease);
  }
  std::size_t there(std::span<const TestBlock> blocks) {
    std::size_t found = 0;
    for (const auto& block : blocks) found += cache.tiers(block).has(Tier::host) ? 1 : 0;
    return found;
  }
  std::uint64_t demoted() { return cache->catalogue().counts(Tier::host).demoted; }

  TestCache cache;
  const std::uint16_t ns;
  Token next_ = 1'000'000;
};

// ---- keep

TEST_F(HintsTest, what_is_kept_survives_pressure_up_to_the_users_part_and_no_further) {
  const auto kept = put(10, 1);
  cache.hint(ns, kept, kKeepAnHour);
  // A tenth of 40 slots.
  EXPECT_EQ(cache.hints(HintKind::keep, HintOutcome::taken), 4U);
  EXPECT_EQ(cache.hints(HintKind::keep, HintOutcome::budget), 6U);
  EXPECT_EQ(cache->hints().bytes(Tier::host), 4 * kRecordBytes);
  press(200);
  EXPECT_EQ(there(kept), 4U);
  EXPECT_EQ(there(std::span(kept).first(4)), 4U) << "the head of the prefix";
}

TEST_F(HintsTest, what_is_kept_gives_way_where_nothing_else_can_go) {
  const auto kept = put(4, 1), leased = put(36, 10'000);
  cache.hint(ns, kept, kKeepAnHour);
  ASSERT_EQ(cache.hints(HintKind::keep, HintOutcome::taken), 4U);
  const auto lease = cache.lease(ns, leased);
  ASSERT_EQ(lease.slots.size(), 36U);
  press(2);
  EXPECT_EQ(there(kept), 3U) << "the second takes the place of the first";
  EXPECT_EQ(there(std::span(kept).first(3)), 3U) << "the tail went";
  EXPECT_EQ(cache->hints().blocks(Tier::host), 3U);
}

TEST_F(HintsTest, what_is_kept_until_a_time_is_as_any_other_after_it) {
  const auto kept = put(4, 1);
  const Hints::Time now{seconds(1000)};
  cache.hint(ns, kept, kKeepAnHour, 1, now);
  EXPECT_FALSE(cache->hints().expire(now + seconds(3599), 100));
  EXPECT_EQ(cache->hints().blocks(Tier::host), 4U);
  cache->expire_hints(now + seconds(3600));
  EXPECT_EQ(cache->hints().blocks(Tier::host), 0U);
  EXPECT_EQ(cache->hints().bytes(Tier::host), 0U);
  press(39);
  EXPECT_EQ(there(kept), 1U);
  EXPECT_TRUE(cache.tiers(kept[0]).has(Tier::host)) << "the tail goes before the head";
}

TEST_F(HintsTest, a_long_list_of_ends_is_gone_through_in_pieces) {
  const auto kept = put(4, 1);
  const Hints::Time now{};
  cache.hint(ns, kept, kKeepAnHour, 1, now);
  EXPECT_TRUE(cache->hints().expire(now + seconds(4000), 3));
  EXPECT_EQ(cache->hints().blocks(Tier::host), 1U);
}

TEST_F(HintsTest, a_keep_is_renewed_shortened_and_taken_back_by_its_user_alone) {
  const auto kept = put(3, 1);
  const Hints::Time now{seconds(1000)};
  cache.hint(ns, kept, kKeepAnHour, 1, now);
  cache.hint(ns, kept, {HintKind::keep, Tier::host, 0, seconds(10)}, 1, now);
  cache.hint(ns, kept, {HintKind::keep, Tier::host, 0, seconds(0)}, 2, now);
  EXPECT_EQ(cache.hints(HintKind::keep, HintOutcome::shared), 3U);
  cache->expire_hints(now + seconds(9));
  EXPECT_EQ(cache->hints().blocks(Tier::host), 3U);
  cache->expire_hints(now + seconds(10));
  EXPECT_EQ(cache->hints().blocks(Tier::host), 0U);
  cache.hint(ns, kept, kKeepAnHour, 1, now);
  cache.hint(ns, kept, {HintKind::keep, Tier::host, 0, seconds(0)}, 3, now);
  EXPECT_EQ(cache->hints().blocks(Tier::host), 0U) << "another session of the same user";
}

TEST_F(HintsTest, who_asks_for_more_than_another_user_has_pays_for_it) {
  const auto kept = put(4, 1);
  const Hints::Time now{seconds(1000)};
  cache.hint(ns, kept, kKeepAnHour, 1, now);
  cache.hint(ns, kept, {HintKind::keep, Tier::host, 0, seconds(10)}, 2, now);
  EXPECT_EQ(cache.hints(HintKind::keep, HintOutcome::already), 4U);
  const auto own = put(4, 5000);
  cache.hint(ns, own, kKeepAnHour, 1, now);
  EXPECT_EQ(cache.hints(HintKind::keep, HintOutcome::budget), 4U) << "the first still pays";
  cache.hint(ns, kept, {HintKind::keep, Tier::host, 0, seconds(7200)}, 2, now);
  cache.hint(ns, own, kKeepAnHour, 1, now);
  EXPECT_EQ(cache->hints().blocks(Tier::host), 8U);
}

TEST_F(HintsTest, a_higher_priority_stays_longer_whenever_it_was_used) {
  const auto low = put(1, 1), high = put(1, 2000), none = put(1, 4000);
  cache.hint(ns, low, priority(1));
  cache.hint(ns, high, priority(3));
  for (int i = 0; i < 3; ++i) use(none);
  press(37 + 1);
  EXPECT_EQ(there(none), 0U) << "the coldest of those without, though used last";
  EXPECT_EQ(there(low), 1U);
  const auto lease = cache.lease(ns, cache.prefix(ns, 1, next_), 2);
  press(500);
  EXPECT_EQ(there(low) + there(high), 2U) << "while there is anything without";
  cache->release(2, lease.lease);
}

TEST_F(HintsTest, hints_end_with_the_blocks_they_are_of) {
  const auto kept = put(4, 1);
  cache.hint(ns, kept, kKeepAnHour);
  cache->drop(ns, kHost);
  EXPECT_EQ(cache->hints().blocks(Tier::host), 0U);
  EXPECT_EQ(cache->hints().bytes(Tier::host), 0U);
  put_all(kept);
  press(40);
  EXPECT_EQ(there(kept), 0U);
}

TEST_F(HintsTest, a_keep_in_one_tier_says_nothing_of_another) {
  const auto block = put(1, 1);
  ASSERT_TRUE(cache.put(ns, block[0], Tier::device));
  cache.hint(ns, block, {HintKind::keep, Tier::device, 0, seconds(60)});
  EXPECT_EQ(cache->hints().blocks(Tier::device), 1U);
  press(40);
  EXPECT_EQ(cache.tiers(block[0]), TierSet{1});
  cache.hint(ns, block, kKeepAnHour);
  EXPECT_EQ(cache.hints(HintKind::keep, HintOutcome::absent), 1U);
}

TEST_F(HintsTest, unknown_keys_and_another_namespaces_are_passed_over_and_counted) {
  const auto mine = put(3, 1);
  const auto other = cache.open(small_namespace("other"));
  cache.hint(other, mine, kKeepAnHour);
  cache.hint(other, mine, kDemote);
  cache.hint(other, mine, kEnded);
  cache.hint(ns, cache.prefix(ns, 2, 77'000), kKeepAnHour);
  EXPECT_EQ(cache.hints(HintKind::keep, HintOutcome::absent), 5U);
  EXPECT_EQ(cache.hints(HintKind::demote, HintOutcome::absent), 3U);
  EXPECT_EQ(cache.hints(HintKind::ended, HintOutcome::absent), 3U);
  EXPECT_EQ(cache->hints().blocks(Tier::host) + demoted(), 0U);
}

class SmallPartTest : public HintsTest {
 protected:
  SmallPartTest() : HintsTest({.hints = {50, 25}}) {}
};

TEST_F(SmallPartTest, all_users_together_keep_at_most_half_of_a_tier) {
  const auto first = put(20, 1), second = put(20, 5000, 2);
  cache.hint(ns, std::span(first).first(15), kKeepAnHour, 1);
  cache.hint(ns, second, kKeepAnHour, 2);
  EXPECT_EQ(cache->hints().blocks(Tier::host), 20U);
  EXPECT_EQ(cache.hints(HintKind::keep, HintOutcome::budget), 15U);
}

TEST_F(SmallPartTest, another_record_size_takes_an_extent_without_kept_blocks_first) {
  const auto blocks = put(40, 1);
  // Those of the extent of the coldest block.
  const auto coldest = cache.find(blocks[39].key())->places[index_of(Tier::host)].container;
  std::vector<TestBlock> kept;
  for (const auto& block : blocks) {
    if (cache.find(block.key())->places[index_of(Tier::host)].container == coldest)
      kept.push_back(block);
  }
  for (const auto& block : kept) cache.hint(ns, {&block, 1}, kKeepAnHour);
  const auto wide = cache.open(small_namespace("w", true));
  ASSERT_TRUE(cache.put(wide, cache.prefix(wide, 1, 1)[0]));
  EXPECT_EQ(there(kept), kept.size());
}

// ---- demote

TEST_F(HintsTest, what_is_demoted_goes_first_though_it_was_used_last_and_tails_before_heads) {
  const auto old = put(20, 1), last = put(10, 50'000);
  cache.hint(ns, last, kDemote);
  EXPECT_EQ(cache.hints(HintKind::demote, HintOutcome::taken), 10U);
  press(10 + 4);
  EXPECT_EQ(there(old), 20U);
  EXPECT_EQ(there(std::span(last).first(6)), 6U);
  EXPECT_EQ(there(last), 6U);
  press(6);
  EXPECT_EQ(there(old), 20U);
  EXPECT_EQ(there(last), 0U);
  EXPECT_EQ(demoted(), 0U);
}

TEST_F(HintsTest, what_is_used_again_is_demoted_no_more) {
  const auto old = put(10, 1), back = put(10, 50'000);
  cache.hint(ns, back, kDemote);
  use(back);
  EXPECT_EQ(demoted(), 0U);
  press(30);
  EXPECT_EQ(there(back), 10U);
  EXPECT_EQ(there(old), 0U);
}

TEST_F(HintsTest, nobody_demotes_what_another_user_has_used) {
  const auto mine = put(10, 1, 1), theirs = put(10, 50'000, 2);
  use(mine, 2);
  cache.hint(ns, mine, kDemote, 1);
  cache.hint(ns, theirs, kDemote, 1);
  cache.hint(ns, theirs, kEnded, 1);
  EXPECT_EQ(cache.hints(HintKind::demote, HintOutcome::shared), 20U);
  EXPECT_EQ(cache.hints(HintKind::ended, HintOutcome::shared), 10U);
  EXPECT_EQ(demoted(), 0U);
  cache.hint(ns, theirs, kDemote, 2);
  EXPECT_EQ(demoted(), 10U) << "its own user may";
}

TEST_F(HintsTest, demoting_what_one_keeps_ends_the_keep) {
  const auto mine = put(4, 1);
  cache.hint(ns, mine, kKeepAnHour);
  cache.hint(ns, mine, kDemote);
  EXPECT_EQ(cache->hints().blocks(Tier::host), 0U);
  EXPECT_EQ(demoted(), 4U);
  cache.hint(ns, mine, kKeepAnHour);
  EXPECT_EQ(demoted(), 0U);
  EXPECT_EQ(cache->hints().blocks(Tier::host), 4U);
}

class HintsAtSecondHitTest : public HintsTest {
 protected:
  HintsAtSecondHitTest() : HintsTest({.admission = Admission::second_hit}, true) {}
};

TEST_F(HintsAtSecondHitTest, what_is_demoted_is_written_to_disk_before_it_goes) {
  const auto mine = put(5, 1), ended = put(5, 9000);
  ASSERT_EQ(cache->disk().queued(), 0U);
  cache.hint(ns, mine, kDemote);
  cache.hint(ns, ended, kEnded);
  EXPECT_EQ(cache->disk().queued(), 5U);
  cache.store().complete_all();
  press(40);
  for (const auto& block : mine) EXPECT_EQ(cache.tiers(block), kDisk);
  for (const auto& block : ended) EXPECT_EQ(cache.tiers(block), TierSet{});
}

// ---- ended

class EndedTest : public HintsTest {
 protected:
  // Two conversations with a head of four blocks in common, six blocks each.
  std::vector<TestBlock> branch(Token first) {
    auto blocks = head;
    Key parent = head.back().key();
    for (std::uint32_t i = 0; i < 2; ++i) {
      std::vector<Token> tokens(kBlockTokens, first + i);
      const auto& known = cache.known(ns);
      const Key key = chain_key(known.id, parent, tokens);
      blocks.push_back(
          {{known.id, key, parent, static_cast<std::uint32_t>(blocks.size())}, tokens});
      parent = key;
    }
    put_all(blocks);
    return blocks;
  }
  std::uint64_t ended(const std::vector<TestBlock>& prefix, SessionId session = 1) {
    const auto before = demoted();
    cache.hint(ns, prefix, kEnded, session);
    return demoted() - before;
  }
  const std::vector<TestBlock> head = put(4, 1);
};

TEST_F(EndedTest, of_one_that_shares_nothing_all_goes_first) {
  const auto alone = put(6, 80'000);
  EXPECT_EQ(ended(alone), 6U);
}

TEST_F(EndedTest, what_another_conversation_has_used_since_stays) {
  const auto a = branch(70'000), b = branch(71'000);
  use(a);
  use(b);
  EXPECT_EQ(ended(a), 2U);
  EXPECT_EQ(cache.hints(HintKind::ended, HintOutcome::shared), 4U);
  press(200);
  EXPECT_EQ(ended(b), 0U) << "all of it is gone by now";
}

TEST_F(EndedTest, what_another_conversation_used_before_stays_too) {
  const auto a = branch(70'000), b = branch(71'000);
  use(a);
  use(b);
  use(a);
  EXPECT_EQ(ended(a), 2U);
  EXPECT_EQ(ended(b), 2U);
  EXPECT_EQ(demoted(), 4U) << "the head of both ages as it always did";
}

TEST_F(EndedTest, what_somebody_holds_stays) {
  const auto a = branch(70'000);
  use(a);
  const auto lease = cache.lease(ns, std::span(a).first(5), 3);
  EXPECT_EQ(ended(a), 1U);
  cache->release(3, lease.lease);
}

TEST_F(EndedTest, what_another_user_has_used_stays_even_where_it_is_all) {
  const auto a = branch(70'000);
  use(a, 2);
  use(a, 1);
  EXPECT_EQ(ended(a), 0U);
}

// ---- tenants

TEST(HintsOfTenants, cost_no_other_tenant_a_block) {
  const auto lost = [](bool hints) {
    std::vector<Tenant> tenants(2);
    tenants[1].name = "other";
    tenants[1].salts = {"salt"};
    TestCache cache({.tenants = tenants, .hints = {50, 25}}, false);
    Namespace of_other = small_namespace("m");
    of_other.tenant = "salt";
    const auto ns = cache.open(small_namespace("m")), other = cache.open(of_other);
    std::vector<TestBlock> theirs;
    std::vector<TestBlock> mine;
    for (Token first = 1; first <= 20'000; first += 1000) {
      theirs.push_back(cache.prefix(other, 1, first)[0]);
      mine.push_back(cache.prefix(ns, 1, first)[0]);
      EXPECT_TRUE(cache.put(other, theirs.back()));
      EXPECT_TRUE(cache.put(ns, mine.back()));
    }
    for (const TestBlock& block : mine) {
      if (hints) cache.hint(ns, {&block, 1}, kKeepAnHour);
    }
    EXPECT_EQ(cache->hints().blocks(Tier::host), hints ? 20U : 0U);
    for (Token first = 100'000; first < 110'000; first += 1000)
      EXPECT_TRUE(cache.put(ns, cache.prefix(ns, 1, first)[0]));
    std::size_t gone = 0;
    for (const TestBlock& block : theirs) gone += cache.tiers(block).empty() ? 1 : 0;
    return gone;
  };
  EXPECT_LE(lost(true), lost(false));
  EXPECT_GT(lost(false), 0U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
