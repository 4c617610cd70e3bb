// What is learnt of uses: rates by class and age, and the densities that follow.
#include "daemon/cache/policy/hit_rates.h"

#include <gtest/gtest.h>

#include "tests/daemon/cache/policy/keys.h"

namespace kvtier::daemon::testing {
namespace {

constexpr UseClass kSoon = 2, kNever = 3, kRare = 4;

class HitRatesTest : public ::testing::Test {
 protected:
  void use(std::uint64_t number, UseClass as) {
    const Key key = key_of(number);
    rates.used(key, now);
    rates.note(key, {as, 0, false}, now);
  }
  // Each second some blocks of one class that are used again 10 seconds later, and some of another
  // that never are.
  void live(std::uint32_t seconds, UseClass soon = kSoon, UseClass never = kNever) {
    for (std::uint32_t end = now + seconds; now < end; ++now) {
      for (std::uint64_t i = 0; i < 20; ++i) {
        use(std::uint64_t{now} * 100 + i, soon);
        if (now >= 10) use((std::uint64_t{now} - 10) * 100 + i, kRare);
        use(std::uint64_t{now} * 100 + 50 + i, never);
      }
      rates.refresh(now);
    }
  }

  HitRates rates{1U << 14};
  std::uint32_t now = 1;
};

TEST_F(HitRatesTest, ages_are_two_for_each_doubling_and_every_second_has_one) {
  for (std::size_t age = 0; age + 1 < HitRates::kAges; ++age) {
    EXPECT_LT(HitRates::age_at(age), HitRates::age_at(age + 1));
    EXPECT_EQ(HitRates::index_of_age(HitRates::age_at(age)), age);
    EXPECT_EQ(HitRates::index_of_age(HitRates::age_at(age + 1) - 1), age);
  }
  EXPECT_EQ(HitRates::index_of_age(~0U), HitRates::kAges - 1);
}

TEST_F(HitRatesTest, a_class_that_is_used_again_is_denser_until_its_time_has_passed) {
  live(200);
  EXPECT_GT(rates.density(kSoon, 5), 5 * rates.density(kNever, 5));
  EXPECT_GT(rates.density(kSoon, 5), 5 * rates.density(kSoon, 20));
  EXPECT_GT(rates.rate(kSoon, HitRates::index_of_age(10)), 0.8);
  EXPECT_LT(rates.rate(kNever, HitRates::index_of_age(10)), 0.1);
  EXPECT_GT(rates.chance(kSoon, 0), 0.8);
}

TEST_F(HitRatesTest, a_class_of_which_nothing_is_known_is_as_all_are) {
  live(200);
  EXPECT_LT(rates.density(use_class::kUnknown, 5), rates.density(kSoon, 5));
  EXPECT_GT(rates.density(use_class::kUnknown, 5), rates.density(kNever, 5));
}

TEST_F(HitRatesTest, before_anything_is_known_the_older_is_the_less_dense) {
  rates.refresh(now);
  EXPECT_GT(rates.density(kSoon, 0), rates.density(kSoon, 60));
  EXPECT_GT(rates.density(kSoon, 60), rates.density(kSoon, 3600));
  EXPECT_GT(rates.density(kSoon, 3600), 0);
}

TEST_F(HitRatesTest, what_was_learnt_fades_when_classes_change_places) {
  live(200);
  live(1500, kNever, kSoon);
  EXPECT_GT(rates.density(kNever, 5), 2 * rates.density(kSoon, 5));
}

TEST_F(HitRatesTest, a_use_is_known_until_the_next_one_or_until_the_ring_has_gone_round) {
  use(1, kSoon);
  rates.goes_on(key_of(1));
  const auto known = rates.used(key_of(1), now);
  ASSERT_TRUE(known);
  EXPECT_EQ(known->use, kSoon);
  EXPECT_FALSE(rates.used(key_of(1), now));
  use(2, kSoon);
  for (std::uint64_t i = 0; i < 1U << 14; ++i) use(1000 + i, kNever);
  EXPECT_FALSE(rates.used(key_of(2), now));
  EXPECT_TRUE(rates.used(key_of(1000), now));
}

TEST_F(HitRatesTest, that_a_prompt_went_on_is_remembered_with_its_use) {
  const Key key = key_of(7);
  rates.note(key, {kSoon, 3, true}, now);
  rates.goes_on(key);
  const auto known = rates.used(key, now);
  ASSERT_TRUE(known);
  EXPECT_EQ(known->turn, 3);
  EXPECT_FALSE(known->ends_prompt);
}

TEST_F(HitRatesTest, of_a_larger_cache_fewer_keys_are_sampled_and_the_rates_stay) {
  live(200);
  rates.set_blocks(1U << 17);
  std::uint32_t sampled = 0;
  for (std::uint64_t i = 0; i < 32'000; ++i) sampled += rates.samples(key_of(i)) ? 1 : 0;
  EXPECT_GT(sampled, 32'000 / 32 * 3 / 4);
  EXPECT_LT(sampled, 32'000 / 32 * 5 / 4);
  EXPECT_GT(rates.density(kSoon, 5), 5 * rates.density(kNever, 5));
  rates.set_blocks(100);
  EXPECT_TRUE(rates.samples(key_of(1)) && rates.samples(key_of(2)) && rates.samples(key_of(3)));
}

TEST(UseClass, prompts_are_told_apart_by_size_answer_and_turn) {
  EXPECT_NE(use_class::fresh(500, 0), use_class::fresh(5000, 0));
  EXPECT_NE(use_class::fresh(500, use_class::answer(10)),
            use_class::fresh(500, use_class::answer(1000)));
  EXPECT_LT(use_class::fresh(1U << 30, 3), use_class::kLast);
  EXPECT_NE(use_class::grown(1), use_class::grown(3));
  EXPECT_LT(use_class::again(UseMark::kTurnMax), use_class::kCount);
}

TEST(UseClass, a_packed_mark_is_the_same_mark) {
  for (const UseMark mark : {UseMark{}, UseMark{use_class::again(15), 15, true},
                             UseMark{use_class::kLast, 0, true}, UseMark{use_class::grown(9), 9}}) {
    const UseMark again = PackedMark(mark).unpacked();
    EXPECT_EQ(again.use, mark.use);
    EXPECT_EQ(again.turn, mark.turn);
    EXPECT_EQ(again.ends_prompt, mark.ends_prompt);
  }
}

}  // namespace
}  // namespace kvtier::daemon::testing
