#include "tests/client/fixture.h"

namespace kvtier::test {
namespace {

using MatchTest = ClientTest;

TEST_F(MatchTest, NeverCoversTheLastToken) {
  const auto longest = prompt_of(64);
  cache_prompt(longest);
  start_connected();
  struct Case {
    std::size_t tokens;
    std::uint32_t blocks;
  };
  for (const Case c : {Case{0, 0}, {1, 0}, {15, 0}, {16, 0}, {17, 1}, {32, 1}, {33, 2}, {64, 3}}) {
    const auto prompt = prompt_of(c.tokens);
    EXPECT_EQ(cache->match(prompt).blocks, c.blocks) << c.tokens << " tokens";
  }
}

TEST_F(MatchTest, StopsAtTheFirstBlockThatIsMissing) {
  const auto prompt = prompt_of(321);
  cache_prompt(prompt);
  start_connected();
  EXPECT_EQ(cache->match(prompt).blocks, 20U);
  daemon.publish(keys(prompt)[11], {}, 0);
  EXPECT_EQ(cache->match(prompt).blocks, 11U);
  daemon.publish(keys(prompt)[0], {}, 0);
  EXPECT_EQ(cache->match(prompt).blocks, 0U);
}

TEST_F(MatchTest, CountsTheFastestTierOfEachBlock) {
  const auto prompt = prompt_of(65);
  const auto chain = keys(prompt);
  daemon.publish(chain[0], TierSet{}.with(Tier::device).with(Tier::disk), 0);
  daemon.publish(chain[1], TierSet{}.with(Tier::host).with(Tier::disk), 0);
  daemon.publish(chain[2], TierSet{}.with(Tier::disk), 0);
  daemon.publish(chain[3], TierSet{}.with(Tier::disk), 0);
  start_connected();
  const Match match = cache->match(prompt);
  EXPECT_EQ(match.blocks, 4U);
  EXPECT_EQ(match.per_tier, (std::array<std::uint32_t, kTiers>{1, 1, 2}));
}

TEST_F(MatchTest, OtherTokensOrAnotherNamespaceDoNotMatch) {
  cache_prompt(prompt_of(65));
  start_connected();
  EXPECT_EQ(cache->match(prompt_of(65, 101)).blocks, 0U);
  Namespace other = ns;
  other.tenant = "other";
  EXPECT_EQ(client->open(other).value()->match(prompt_of(65)).blocks, 0U);
}

TEST_F(MatchTest, GoesOnWhileTheConnectionComesAndGoes) {
  const auto prompt = prompt_of(65);
  cache_prompt(prompt);
  start_connected();
  std::atomic<bool> stop{false};
  std::atomic<int> odd{0};
  std::vector<std::thread> engines;
  for (int i = 0; i < 2; ++i) {
    engines.emplace_back([&] {
      while (!stop) {
        const auto blocks = cache->match(prompt).blocks;
        odd += blocks != 0 && blocks != 4;
      }
    });
  }
  for (int i = 2; i < 12; ++i) {
    daemon.hang_up();
    ASSERT_TRUE(daemon.eventually([&](const auto& s) { return s.connections >= i; }));
    ASSERT_TRUE(client->wait_connected(soon()));
  }
  stop = true;
  for (auto& e : engines) e.join();
  EXPECT_EQ(odd, 0);
}

}  // namespace
}  // namespace kvtier::test
