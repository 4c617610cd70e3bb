// Who is given pages, who gives them up, and how many a request needs: each part by itself.
#include "engine_adapter/reference/scheduler/pages/page_needs.h"
#include "tests/engine/scheduler/engine_parts.h"

namespace kvtier::engine::test {
namespace {

using State = LiveRequest::State;

class PagesTest : public ScheduledTest {};

TEST_F(PagesTest, ARequestNeedsThePagesOfItsPromptOnceWhateverItsAnswers) {
  EngineParts parts(*model_, 16);
  Request two = request(40, 8);  // two blocks and a half
  two.samples = 2;
  LiveRequest& live = parts.add(two);
  EXPECT_EQ(pages_wanted(live, 16), 3U);
  ASSERT_TRUE(parts.admission.admit());
  EXPECT_EQ(pages_missing(live, 16), 3U);
  parts.step();
  parts.step();
  ASSERT_EQ(live.branches.size(), 2U);
  EXPECT_EQ(pages_wanted(live, 16), 4U) << "two blocks in common, one of its own for each";
  EXPECT_EQ(pages_missing(live, 16), 1U) << "the fork takes its own with its next step";
  parts.step();
  EXPECT_EQ(pages_missing(live, 16), 0U);
  live.branches[1]->ended = true;
  EXPECT_EQ(pages_wanted(live, 16), 3U);
  parts.requests.cancel_all();
}

TEST_F(PagesTest, NobodyIsLetInBeforeTheOneInFrontOfIt) {
  EngineParts parts(*model_, 8);
  LiveRequest& running = parts.add(request(60, 4));
  ASSERT_TRUE(parts.admission.admit());
  LiveRequest& large = parts.add(request(100, 4));
  LiveRequest& small = parts.add(request(5, 4));
  EXPECT_FALSE(parts.admission.admit());
  EXPECT_EQ(large.state, State::waiting);
  EXPECT_EQ(small.state, State::waiting) << "it would fit";
  parts.requests.cancel(running.id);
  EXPECT_TRUE(parts.admission.admit());
  EXPECT_EQ(large.state, State::running);
  parts.requests.cancel_all();
}

TEST_F(PagesTest, WhatIsParkedComesBackBeforeWhatWaits) {
  EngineParts parts(*model_, 8);
  LiveRequest& first = parts.add(request(60, 4));
  ASSERT_TRUE(parts.admission.admit());
  LiveRequest& waits = parts.add(request(60, 4));
  parts.parking.park(first);
  EXPECT_EQ(first.state, State::parked) << "there is no cache to wait for";
  EXPECT_TRUE(parts.admission.admit());
  EXPECT_EQ(first.state, State::running);
  EXPECT_EQ(waits.state, State::waiting);
  EXPECT_EQ(parts.metrics.resumptions, 1U);
  parts.requests.cancel_all();
}

TEST_F(PagesTest, TheExactPagesOfAllAnswersAreThereOnceARequestIsLetIn) {
  EngineParts parts(*model_, 16, {.running_max = 3});
  Request two = request(10, 4);
  two.samples = 2;
  parts.add(two);
  ASSERT_TRUE(parts.admission.admit());
  EXPECT_EQ(parts.pool.exact_made(), 4U);
  LiveRequest& wide = parts.add(two);
  EXPECT_FALSE(parts.exact.provide(wide)) << "four answers, where three may run";
  EXPECT_EQ(wide.state, State::waiting);
  LiveRequest& narrow = parts.add(request(10, 4));
  EXPECT_TRUE(parts.exact.provide(narrow));
  EXPECT_EQ(parts.pool.exact_made(), 6U);
  parts.requests.cancel_all();
}

TEST_F(PagesTest, RoomIsMadeOfBlocksThatNobodyUsesAndThenOfWhoComesLast) {
  EngineParts parts(*model_, 6);
  parts.add(request(32, 1, 1));
  ASSERT_TRUE(parts.admission.admit());
  parts.step();
  parts.requests.sweep();
  EXPECT_EQ(parts.pool.pages_idle(), 2U) << "kept for whoever has the same prefix";
  LiveRequest& first = parts.add(request(20, 4, 2));
  ASSERT_TRUE(parts.admission.admit());
  parts.step();
  LiveRequest& last = parts.add(request(20, 4, 3));
  ASSERT_TRUE(parts.admission.admit());
  parts.step();
  EXPECT_TRUE(parts.room.make(2, first));
  EXPECT_EQ(parts.pool.pages_idle(), 0U);
  EXPECT_EQ(last.state, State::running);
  EXPECT_FALSE(parts.room.make(3, last)) << "nobody comes after it";
  EXPECT_EQ(first.state, State::running);
  EXPECT_TRUE(parts.room.make(3, first));
  EXPECT_EQ(last.state, State::parked);
  parts.requests.cancel_all();
}

TEST_F(PagesTest, AParkedRequestKeepsItsPagesUntilTheCacheHasItsBlocks) {
  FakeCache cache = make_cache();
  cache.write_delay = 3;
  EngineParts parts(*model_, 8);
  LiveRequest& live = parts.add(request(40, 8), &cache);
  ASSERT_TRUE(parts.admission.admit());
  parts.step();
  parts.step();
  parts.parking.park(live);
  EXPECT_EQ(live.state, State::parking);
  EXPECT_TRUE(live.has_pages());
  for (int i = 0; live.state == State::parking; ++i) {
    ASSERT_LT(i, 100);
    parts.parking.advance();
  }
  EXPECT_EQ(live.state, State::parked);
  const Branch& branch = *live.branches[0];
  EXPECT_EQ(branch.sequence, nullptr);
  EXPECT_EQ(branch.known_tokens, 40U);
  EXPECT_FALSE(branch.open_values.empty());
  EXPECT_EQ(branch.hold.value().blocks(), 2U);
  parts.requests.cancel_all();
}

TEST_F(PagesTest, TheOpenBlockOfAParkedRequestIsDueOnceTheBlocksBeforeItAreThere) {
  EngineParts parts(*model_, 8);
  LiveRequest& live = parts.add(request(40, 8));
  ASSERT_TRUE(parts.admission.admit());
  parts.step();
  parts.step();
  parts.parking.park(live);
  ASSERT_TRUE(parts.admission.admit());
  Branch& branch = *live.branches[0];
  EXPECT_EQ(parts.parking.open_tokens_due(branch), 0U);
  ASSERT_TRUE(branch.fill->advance()) << "the engine has kept its blocks";
  ASSERT_EQ(parts.parking.open_tokens_due(branch), 8U);
  ASSERT_TRUE(parts.room.reserve(live, branch, 8));
  EXPECT_TRUE(parts.parking.restore_open(live, branch));
  EXPECT_EQ(branch.sequence->length(), 40U);
  EXPECT_EQ(parts.parking.open_tokens_due(branch), 0U);
  parts.requests.cancel_all();
}

}  // namespace
}  // namespace kvtier::engine::test
