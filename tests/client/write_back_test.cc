#include "tests/client/fixture.h"

namespace kvtier::test {
namespace {

class WriteBackTest : public ClientTest {
 protected:
  WriteBackTest() : pages(4, layout.record_bytes) {
    for (std::size_t i = 0; i < pages.memory.size(); ++i) {
      std::ranges::fill(pages.memory[i], std::byte(0x40 + i));
    }
  }
  const std::vector<Token> prompt = prompt_of(64);
  RecordPages pages;
};

TEST_F(WriteBackTest, BlocksAreCommittedWithTheirHeaderAndBytes) {
  daemon.with([](auto& s) { s.slots_left = {64, 64}; });
  start_connected();
  auto write = cache->write_back(prompt, 0, pages.pages());
  write.wait();
  EXPECT_EQ(write.accepted(), 4U);
  ASSERT_TRUE(client->flush(soon()));
  const auto committed = daemon.with([](auto& s) { return s.committed; });
  ASSERT_EQ(committed.size(), 4U);
  const auto chain = keys(prompt);
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto& block = committed[i];
    const BlockIdentity identity{cache->id(), chain[i], i == 0 ? Key{} : chain[i - 1], i};
    const auto tokens = std::span(prompt).subspan(i * 16, 16);
    EXPECT_EQ(block.key, identity.key);
    EXPECT_EQ(block.parent, identity.parent);
    EXPECT_EQ(block.block_index, i);
    EXPECT_TRUE(std::ranges::equal(block.tokens, tokens));
    ASSERT_EQ(block.slots.size(), 2U) << "one on the host, one on the device";
    EXPECT_EQ(block.slots[0] >> 32, index_of(Tier::host) + 1);
    for (const auto slot : block.slots) {
      const auto record = daemon.slot(slot);
      EXPECT_TRUE(verify_header(record, layout, identity, tokens));
      EXPECT_TRUE(std::ranges::equal(record.subspan(layout.header_bytes, layout.payload_bytes),
                                     payload(pages.memory[i])));
    }
  }
  EXPECT_EQ(client->stats().blocks_written, 4U);
  EXPECT_EQ(client->stats().blocks_dropped, 0U);
}

TEST_F(WriteBackTest, LaterBlocksOfAPrefixAreWrittenAlone) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected();
  RecordPages two(2, layout.record_bytes);
  auto write = cache->write_back(prompt, 2, two.pages());
  write.wait();
  EXPECT_EQ(write.accepted(), 2U);
  ASSERT_TRUE(client->flush(soon()));
  const auto committed = daemon.with([](auto& s) { return s.committed; });
  ASSERT_EQ(committed.size(), 2U);
  EXPECT_EQ(committed[0].key, keys(prompt)[2]);
  EXPECT_EQ(committed[0].parent, keys(prompt)[1]);
  EXPECT_EQ(committed[0].block_index, 2U);
  ASSERT_EQ(committed[0].slots.size(), 1U);
}

TEST_F(WriteBackTest, WhatIsKnownOfTheSequenceGoesWithItsBlocks) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected();
  auto prefix = cache->prefix();
  ASSERT_TRUE(prefix.append(std::span(prompt).first(48)));
  prefix.expect_answer(77);
  auto first = cache->write_back(prefix, 0, pages.pages());
  first.wait();
  ASSERT_TRUE(prefix.append(std::span(prompt).subspan(48)));
  auto grown = prefix;
  grown.expect_answer(0);
  RecordPages one(1, layout.record_bytes);
  auto last = cache->write_back(grown, 3, one.pages());
  last.wait();
  ASSERT_TRUE(client->flush(soon()));
  const auto committed = daemon.with([](auto& s) { return s.committed; });
  ASSERT_EQ(committed.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(committed[i].prompt_blocks, i < 3 ? 3U : 4U);
    EXPECT_EQ(committed[i].answer_tokens, i < 3 ? 77U : 0U);
  }
}

TEST_F(WriteBackTest, OnlyCompleteBlocksAreOffered) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected();
  auto write = cache->write_back(prompt_of(63), 0, pages.pages());
  write.wait();
  EXPECT_EQ(write.accepted(), 3U);
  auto nothing = cache->write_back(prompt_of(63), 7, pages.pages());
  nothing.wait();
  EXPECT_EQ(nothing.accepted(), 0U);
  EXPECT_EQ(client->stats().blocks_dropped, 0U);
}

TEST_F(WriteBackTest, BlocksThatAreCachedAreSkipped) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  daemon.publish(keys(prompt)[0], TierSet{}.with(Tier::host), 0);
  daemon.publish(keys(prompt)[1], TierSet{}.with(Tier::disk), 0);
  start_connected();
  auto write = cache->write_back(prompt, 0, pages.pages());
  write.wait();
  EXPECT_EQ(write.accepted(), 2U);
  EXPECT_EQ(client->stats().blocks_dropped, 0U);
}

TEST_F(WriteBackTest, WithoutSlotsBlocksAreDroppedAndCounted) {
  daemon.with([](auto& s) { s.lease_ms = 300; });
  start_connected();
  auto write = cache->write_back(prompt, 0, pages.pages());
  write.wait();
  EXPECT_EQ(write.accepted(), 0U);
  EXPECT_EQ(client->stats().blocks_dropped, 4U);
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.reported_drops == 4; }));
}

TEST_F(WriteBackTest, NobodyWaitsForADaemonThatGrantsNothing) {
  daemon.with([](auto& s) { s.ignored = {Which::RESERVE}; });
  start();
  ASSERT_TRUE(client->wait_connected(soon()));
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.seen.contains(Which::RESERVE); }));
  const auto before = Clock::now();
  auto write = cache->write_back(prompt, 0, pages.pages());
  write.wait();
  EXPECT_LT(Clock::now() - before, milliseconds(3000));
  EXPECT_EQ(client->stats().blocks_dropped, 4U);
}

TEST_F(WriteBackTest, BlocksMayLingerUntilSlotsCome) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected({.slots_ahead = 2});
  auto write = cache->write_back(prompt, 0, pages.pages());
  ASSERT_TRUE(client->flush(soon()));
  write.wait();
  EXPECT_EQ(write.accepted(), 4U);
}

TEST_F(WriteBackTest, TheQueueIsBounded) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected({.write_backs_queued_max = 3});
  auto write = cache->write_back(prompt, 0, pages.pages());
  write.wait();
  EXPECT_EQ(write.accepted(), 3U);
  EXPECT_EQ(client->stats().blocks_dropped, 1U);
}

TEST_F(WriteBackTest, SlotsAtHandAreForgottenWithTheConnection) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected();
  daemon.with([](auto& s) { s.slots_left = {0, 0}; });
  daemon.hang_up();
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.connections == 2; }));
  ASSERT_TRUE(client->wait_connected(soon()));
  ASSERT_TRUE(client->flush(soon()));
  auto write = cache->write_back(prompt, 0, pages.pages());
  write.wait();
  EXPECT_EQ(write.accepted(), 0U);
}

TEST_F(WriteBackTest, UnusedSlotsAreHandedBackAtTheEnd) {
  daemon.with([](auto& s) { s.slots_left = {8, 8}; });
  start_connected({.slots_ahead = 8});
  auto write = cache->write_back(prompt, 0, pages.pages());
  write.wait();
  ASSERT_EQ(write.accepted(), 4U);
  client.reset();
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.committed.size() == 4; }));
  // A block takes a slot of the device tier where there is one at that moment.
  EXPECT_TRUE(daemon.eventually([](const auto& s) {
    std::size_t used = 0;
    for (const auto& block : s.committed) used += block.slots.size();
    return s.abandoned.size() >= 8 &&
           s.abandoned.size() + used + s.slots_left[0] + s.slots_left[1] == 16;
  }));
}

TEST_F(WriteBackTest, IdleSlotsGoBackWhenTheDaemonAsksForThem) {
  daemon.with([](auto& s) { s.slots_left = {64, 64}; });
  start_connected();
  daemon.send_recall(5, {}, std::pair{Tier::host, 10U});
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.returned.size() == 1; }));
  daemon.with([](auto& s) {
    EXPECT_EQ(s.returned[0], 5U);
    EXPECT_EQ(s.abandoned_before_returned, 54U);
  });
  daemon.send_recall(6, {1});
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.returned.size() == 2; }));
  daemon.with([](auto& s) {
    EXPECT_EQ(s.abandoned_before_returned, 54U + 64U);
    EXPECT_EQ(s.abandoned.back() >> 32, 1U);
    s.slots_left = {0, 0};
  });
  // What is left is of use.
  auto write = cache->write_back(prompt, 0, pages.pages());
  write.wait();
  EXPECT_EQ(write.accepted(), 4U);
}

// Idle slots stayed with a client until its end, though nobody could write under their namespace.
TEST_F(WriteBackTest, SlotsOfACacheThatIsClosedGoBackAndComeAgainWithTheNextOne) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected();
  auto another = client->open(ns).value();
  cache.reset();
  ASSERT_TRUE(client->flush(soon()));
  EXPECT_EQ(daemon.with([](auto& s) { return s.abandoned.size(); }), 0U) << "one still uses it";
  another.reset();
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.abandoned.size() == 64; }));
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  cache = client->open(ns).value();
  ASSERT_TRUE(client->flush(soon()));
  auto write = cache->write_back(prompt, 0, pages.pages());
  write.wait();
  EXPECT_EQ(write.accepted(), 4U);
}

TEST_F(WriteBackTest, SlotsThatComeAfterTheirCacheWasClosedGoBack) {
  daemon.with([](auto& s) {
    s.slots_left = {0, 64};
    s.ignored = {Which::RESERVE};
  });
  start();
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.seen.contains(Which::RESERVE); }));
  cache.reset();
  daemon.answer_ignored();
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.abandoned.size() == 64; }));
}

TEST_F(WriteBackTest, ManyBlocksAreWrittenInTurn) {
  const auto many = prompt_of(100 * 16);
  daemon.with([](auto& s) { s.slots_left = {0, 1000}; });
  start_connected();
  RecordPages big(100, layout.record_bytes);
  auto write = cache->write_back(many, 0, big.pages());
  ASSERT_TRUE(client->flush(soon()));
  write.wait();
  EXPECT_EQ(write.accepted() + client->stats().blocks_dropped, 100U);
  EXPECT_GE(write.accepted(), 64U);
  EXPECT_TRUE(
      daemon.eventually([&](const auto& s) { return s.committed.size() == write.accepted(); }));
}

}  // namespace
}  // namespace kvtier::test
