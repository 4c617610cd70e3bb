// Traces replayed through the catalogue, beside models that keep nothing but numbers.
#include "daemon/trace/replay.h"

#include <gtest/gtest.h>

#include <list>
#include <random>
#include <unordered_map>

#include "daemon/trace/replay_cache.h"

namespace kvtier::daemon::testing {
namespace {

constexpr std::uint32_t kBlock = 512;

// Conversations that go on after a while, among prompts of several kinds that are never seen again.
Trace conversations(std::uint64_t seed, std::size_t requests) {
  std::mt19937_64 random(seed);
  const auto upto = [&](std::uint64_t n) { return random() % n; };
  Trace trace;
  trace.block_tokens = kBlock;
  std::uint64_t next = 1;
  std::list<std::vector<std::uint64_t>> going_on;
  for (std::size_t i = 0; i < requests; ++i) {
    TracedRequest request;
    request.at_ms = i * 300;
    if (!going_on.empty() && upto(3) == 0) {
      request.blocks = std::move(going_on.front());
      going_on.pop_front();
    } else {
      request.blocks.push_back(0);  // all have it in common
      for (std::uint64_t n = 2 + upto(12); n > 0; --n) request.blocks.push_back(next++);
    }
    const bool more = upto(4) != 0 && going_on.size() < 40;
    request.output_tokens = more ? 400 : 10;
    for (std::uint64_t n = 1 + upto(2); n > 0; --n) request.blocks.push_back(next++);
    if (more) going_on.push_back(request.blocks);
    request.input_tokens = static_cast<std::uint32_t>(request.blocks.size()) * kBlock;
    trace.blocks += request.blocks.size();
    trace.requests.push_back(std::move(request));
  }
  trace.different_blocks = next;
  return trace;
}

// The least recently used of all blocks goes, and of a prompt the last of its prefix.
Replayed lru_model(const Trace& trace, std::size_t capacity) {
  std::list<std::uint64_t> order;  // oldest first
  std::unordered_map<std::uint64_t, std::list<std::uint64_t>::iterator> there;
  Replayed done;
  for (const TracedRequest& request : trace.requests) {
    std::size_t known = 0;
    while (known < request.blocks.size() && there.contains(request.blocks[known])) ++known;
    done.blocks += request.blocks.size();
    done.hits[1] += known;
    for (auto block = request.blocks.rbegin(); block != request.blocks.rend(); ++block) {
      if (const auto found = there.find(*block); found != there.end()) order.erase(found->second);
      there[*block] = order.insert(order.end(), *block);
    }
    for (; order.size() > capacity; order.pop_front()) there.erase(order.front());
  }
  return done;
}

TEST(Replay, by_lru_the_catalogue_hits_what_a_plain_list_does) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const Trace trace = conversations(seed, 1500);
    for (const std::uint64_t blocks : {60U, 200U, 700U}) {
      const auto done = replay(trace, {EvictionPolicy::lru, blocks});
      ASSERT_TRUE(done);
      EXPECT_EQ(done->all_hits(), lru_model(trace, blocks).all_hits())
          << "seed " << seed << ", " << blocks << " blocks";
    }
  }
}

TEST(Replay, hit_density_keeps_conversations_that_go_on_and_no_policy_is_above_the_optimum) {
  for (const std::uint64_t seed : {4U, 5U, 6U}) {
    const Trace trace = conversations(seed, 4000);
    for (const std::uint64_t blocks : {150U, 300U, 600U}) {
      const double lru = replay(trace, {EvictionPolicy::lru, blocks})->share();
      const double density = replay(trace, {EvictionPolicy::hit_density, blocks})->share();
      const double optimum = replay_optimum(trace, blocks).share();
      EXPECT_GT(density, lru - 0.003) << "seed " << seed << ", " << blocks << " blocks";
      EXPECT_LE(density, optimum);
      EXPECT_LE(lru, optimum);
      EXPECT_LE(optimum, replay_endless(trace).share());
      if (blocks != 300) continue;
      EXPECT_GT(density, 1.1 * lru) << "seed " << seed;
    }
  }
}

TEST(Replay, a_cache_that_has_room_for_all_hits_as_one_without_an_end) {
  const Trace trace = conversations(7, 800);
  const double endless = replay_endless(trace).share();
  for (const EvictionPolicy policy : {EvictionPolicy::lru, EvictionPolicy::hit_density}) {
    EXPECT_DOUBLE_EQ(replay(trace, {policy, trace.different_blocks})->share(), endless);
  }
  EXPECT_DOUBLE_EQ(replay_optimum(trace, trace.different_blocks).share(), endless);
}

TEST(Replay, what_leaves_memory_is_hit_on_disk_and_each_block_is_written_once_while_it_stays) {
  const Trace trace = conversations(8, 1500);
  const auto memory = replay(trace, {EvictionPolicy::lru, 100});
  const auto both = replay(trace, {EvictionPolicy::lru, 100, trace.different_blocks});
  EXPECT_EQ(both->share(), replay_endless(trace).share());
  EXPECT_GT(both->share(Tier::disk), 0);
  EXPECT_EQ(both->hits[1], memory->hits[1]);
  EXPECT_EQ(both->written, trace.different_blocks);
  const auto second =
      replay(trace, {EvictionPolicy::lru, 100, trace.different_blocks, Admission::second_hit});
  EXPECT_LT(second->written, both->written / 2);
  EXPECT_GT(second->written, 0U);
}

TEST(Replay, by_expected_reuse_a_part_is_written_and_it_is_worth_more_than_another) {
  const Trace trace = conversations(8, 6000);
  const auto replayed = [&](Admission admission, double share) {
    return replay(trace, {EvictionPolicy::hit_density, 100, 1500, admission, share});
  };
  const auto all = replayed(Admission::all, 1);
  const auto half = replayed(Admission::expected_reuse, 0.5);
  EXPECT_LT(half->written, 0.65 * static_cast<double>(all->written));
  EXPECT_GT(half->written, 0.2 * static_cast<double>(all->written));
  const auto gain = [](const Replayed& of) {
    return static_cast<double>(of.hits[index_of(Tier::disk)]) / static_cast<double>(of.written);
  };
  EXPECT_GT(gain(*half), 1.3 * gain(*all));
}

TEST(Replay, tiers_are_never_above_their_capacity_and_a_prompt_may_be_larger_than_them) {
  const Trace trace = conversations(9, 600);
  for (const EvictionPolicy policy : {EvictionPolicy::lru, EvictionPolicy::hit_density}) {
    for (const std::uint64_t blocks : {1U, 5U, 17U, 64U}) {
      auto cache = ReplayCache::create(trace, {policy, blocks, 2 * blocks});
      ASSERT_TRUE(cache);
      for (const TracedRequest& request : trace.requests) {
        (*cache)->request(request);
        EXPECT_LE((*cache)->catalogue().counts(Tier::host).blocks, blocks);
        EXPECT_LE((*cache)->catalogue().counts(Tier::disk).blocks, 2 * blocks);
      }
      EXPECT_EQ((*cache)->replayed().blocks, trace.blocks);
    }
  }
}

TEST(Replay, a_cache_without_a_block_is_refused) {
  const auto done = replay(conversations(1, 1), {EvictionPolicy::lru, 0});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Errc::invalid);
}

}  // namespace
}  // namespace kvtier::daemon::testing
