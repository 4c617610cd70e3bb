// Which of two policies is followed.
#include "daemon/cache/policy/rivals.h"

#include <gtest/gtest.h>

#include "tests/daemon/cache/policy/keys.h"

namespace kvtier::daemon::testing {
namespace {

constexpr UseClass kPraised = 2, kBlamed = 3;

class RivalsTest : public ::testing::Test {
 protected:
  // It is learnt that blocks of one class are used again after 20 seconds, those of another never.
  RivalsTest() {
    for (; now < 400; ++now) {
      for (std::uint64_t i = 0; i < 40; ++i) {
        learn(std::uint64_t{now} * 1000 + i, kPraised);
        if (now > 20) learn((std::uint64_t{now} - 20) * 1000 + i, kPraised);
        learn(std::uint64_t{now} * 1000 + 500 + i, kBlamed);
      }
      rates.refresh(now);
    }
    rivals.set_blocks(700);
  }
  void learn(std::uint64_t number, UseClass as) {
    rates.used(key_of(number), now);
    rates.note(key_of(number), {as, 0, false}, now);
  }
  // Each second 40 blocks of each class; those of one are used again 5 seconds later. There is room
  // for those of more than 5 seconds.
  void play(std::uint32_t seconds, UseClass used_again) {
    for (const std::uint32_t end = now + seconds; now < end; ++now) {
      for (std::uint64_t i = 0; i < 40; ++i) {
        for (const UseClass as : {kPraised, kBlamed}) {
          const std::uint64_t number = std::uint64_t{as} << 40;
          rivals.use(key_of(number + std::uint64_t{now} * 1000 + i), as, now);
          if (as == used_again)
            rivals.use(key_of(number + (std::uint64_t{now} - 5) * 1000 + i), as, now);
        }
      }
    }
  }

  HitRates rates;
  Rivals rivals{rates};
  std::uint32_t now = 1;
};

TEST_F(RivalsTest, density_is_followed_as_long_as_it_does_not_do_worse) {
  play(200, kPraised);
  EXPECT_FALSE(rivals.oldest_is_better());
}

TEST_F(RivalsTest,
       age_is_followed_where_what_was_learnt_misleads_and_density_once_it_has_caught_up) {
  play(200, kBlamed);
  EXPECT_TRUE(rivals.oldest_is_better());
  rivals.set_blocks(500);
  play(3000, kPraised);
  EXPECT_FALSE(rivals.oldest_is_better());
}

TEST_F(RivalsTest, nothing_is_played_for_a_tier_of_which_nothing_is_known) {
  rivals.set_blocks(0);
  EXPECT_FALSE(rivals.samples(key_of(1)));
}

TEST_F(RivalsTest, of_a_larger_tier_fewer_keys_are_played_with) {
  rivals.set_blocks(16 * Rivals::kKeys);
  std::uint32_t sampled = 0;
  for (std::uint64_t i = 0; i < 16'000; ++i) sampled += rivals.samples(key_of(i)) ? 1 : 0;
  EXPECT_GT(sampled, 800U);
  EXPECT_LT(sampled, 1200U);
}

TEST(RivalCache, the_least_recently_used_goes_and_none_is_above_its_capacity) {
  RivalCache cache(nullptr, 8);
  for (std::uint64_t i = 1; i <= 4; ++i) EXPECT_FALSE(cache.use(i, kPraised, 1, 3));
  EXPECT_EQ(cache.size(), 3U);
  EXPECT_TRUE(cache.use(2, kBlamed, 2, 3));
  EXPECT_FALSE(cache.use(5, kBlamed, 3, 3));
  EXPECT_FALSE(cache.use(3, kBlamed, 3, 3));
  EXPECT_TRUE(cache.use(2, kBlamed, 3, 3));
  EXPECT_FALSE(cache.use(9, kBlamed, 3, 1));
  EXPECT_EQ(cache.size(), 1U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
