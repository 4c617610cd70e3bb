// Histograms and ages against plain models.
#include "daemon/telemetry.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "core/base/shown.h"
#include "daemon/ops/scrape.h"
#include "daemon/server/status/namespace_labels.h"
#include "tests/daemon/support/records.h"

namespace kvtier::daemon::testing {
namespace {

TEST(Histogram, counts_what_a_model_that_keeps_every_value_counts) {
  std::mt19937_64 random(7);
  std::vector<std::uint64_t> values{0, 1, 2, 3, 4, ~0ULL >> 20, (1ULL << 27) - 1, 1ULL << 27};
  for (int i = 0; i < 10'000; ++i) values.push_back(random() >> (20 + random() % 44));
  Histogram histogram, half;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    (i % 2 == 0 ? histogram : half).add(values[i]);
    sum += values[i];
  }
  histogram += half;
  EXPECT_EQ(histogram.total(), values.size());
  EXPECT_EQ(histogram.sum(), sum);
  std::uint64_t below = 0;
  for (std::size_t bucket = 0; bucket < kLog2Buckets; ++bucket) {
    below += histogram.counts()[bucket];
    const auto model = std::ranges::count_if(
        values, [&](std::uint64_t value) { return value < std::uint64_t{1} << bucket; });
    EXPECT_EQ(below, static_cast<std::uint64_t>(model)) << "bucket " << bucket;
  }
}

TEST(StampAges, are_right_to_a_sixteenth_over_a_month_and_take_bounded_memory) {
  std::mt19937 random(11);
  StampAges ages;
  std::map<std::uint64_t, std::uint32_t> given;  // stamp: the second it was given in
  std::uint64_t clock = 1000;
  std::size_t most = 0;
  const std::uint32_t month = 30 * 86400;
  for (std::uint32_t now = 1; now <= month; ++now) {
    ages.pass(now, clock);
    most = std::max(most, ages.samples());
    const std::uint64_t uses = random() % 4;
    if (uses > 0 && random() % 1000 == 0) given[clock + 1] = now;
    clock += uses;
  }
  EXPECT_LT(most, StampAges::kSamplesMax + 1);
  ASSERT_GT(given.size(), 1000U);
  for (const auto& [stamp, at] : given) {
    const auto age = ages.of(stamp);
    ASSERT_TRUE(age.known);
    const double truth = month - at;
    EXPECT_NEAR(age.seconds, truth, 2 + truth / 8) << "stamp " << stamp;
  }
  EXPECT_FALSE(ages.of(999).known) << "given before the start";
  EXPECT_FALSE(ages.of(1000).known);
}

// A cache that nobody used for an hour took the first uses after it for an hour old.
TEST(StampAges, of_what_is_used_after_a_rest_do_not_count_the_rest) {
  StampAges ages;
  std::uint32_t now = 1;
  for (; now <= 10; ++now) ages.pass(now, 100 + now);
  for (; now <= 3600; ++now) ages.pass(now, 110);
  ages.pass(now, 115);  // five uses
  ages.pass(now + 7, 115);
  const auto age = ages.of(113);
  ASSERT_TRUE(age.known);
  EXPECT_GE(age.seconds, 7U);
  EXPECT_LE(age.seconds, 8U);
  EXPECT_NEAR(ages.of(105).seconds, 3601.0 + 7 - 5, 1.0) << "and what was before it does";
}

TEST(NamespaceLabels, are_kept_and_no_series_ever_goes_back) {
  const Tenants tenants;
  Namespaces namespaces(tenants);
  NamespaceLabels labels(3);
  std::map<std::string, std::uint64_t> before;
  std::mt19937 random(3);
  for (int round = 0; round < 40; ++round) {
    const auto opened = namespaces.open(encode(small_namespace("m" + std::to_string(round))));
    ASSERT_TRUE(opened.has_value());
    namespaces[*opened].bytes[1] = 1000 + random() % 100'000;
    for (std::uint16_t n = 0; n < namespaces.size(); ++n)
      namespaces[n].lookups.misses += random() % 9;
    Snapshot s;
    labels.fill(namespaces, Tenants(), s);
    EXPECT_EQ(s.named.size(), std::min<std::size_t>(3, namespaces.size()));
    s.named.push_back(s.others);
    std::uint64_t sum = 0;
    for (const auto& ns : s.named) {
      EXPECT_GE(ns.lookups.misses, before[ns.id]) << ns.id;
      before[ns.id] = ns.lookups.misses;
      sum += ns.lookups.misses;
    }
    EXPECT_EQ(sum, namespaces.lookups().misses);
  }
  EXPECT_EQ(before.size(), 4U);
}

TEST(NamespaceLabels, go_to_the_largest_of_those_that_come_at_once) {
  const Tenants tenants;
  Namespaces namespaces(tenants);
  for (const std::uint64_t bytes : {10, 500, 20, 400, 30}) {
    const auto ns = namespaces.open(encode(small_namespace("m" + std::to_string(bytes))));
    namespaces[*ns].bytes[2] = bytes;
  }
  Snapshot s;
  NamespaceLabels(2).fill(namespaces, Tenants(), s);
  ASSERT_EQ(s.named.size(), 2U);
  EXPECT_EQ(s.named[0].model, "m500");
  EXPECT_EQ(s.named[1].model, "m400");
  EXPECT_EQ(s.others.bytes[2], 60U);
}

TEST(ShownText, keeps_what_can_be_shown_and_escapes_the_rest) {
  EXPECT_EQ(shown("naïve 模型 🦙", 100), "naïve 模型 🦙");
  EXPECT_EQ(shown(std::string("a\nb\0c\x1b[31m\x7f", 11), 100), R"(a\x0ab\x00c\x1b[31m\x7f)");
  EXPECT_EQ(shown("\xff\xc3(\xe2\x82\xed\xa0\x80\xf5\x80\xc0\xaf", 100),
            R"(\xff\xc3(\xe2\x82\xed\xa0\x80\xf5\x80\xc0\xaf)");
  EXPECT_EQ(shown("ab\u202Egnp.exe", 100), R"(ab\xe2\x80\xaegnp.exe)");
  EXPECT_EQ(shown("abcdef", 4), "abcd...");
  EXPECT_EQ(shown("ab\u6a21", 4), "ab...");
  EXPECT_EQ(shown("ab\n", 5), "ab...") << "an escape is not cut in two";
}

TEST(History, has_the_counts_since_the_point_before_and_no_more_than_an_hour) {
  ops::History history;
  Snapshot s;
  for (std::int64_t at = 0; at < 1000; ++at) {
    s.lookups.hits[1] += 5;
    s.lookups.misses += static_cast<std::uint64_t>(at);
    history.add(at, s);
  }
  ASSERT_EQ(history.points().size(), ops::kHistoryPoints);
  EXPECT_EQ(history.points().back().at, 999);
  EXPECT_EQ(history.points().back().lookups.hits[1], 5U);
  EXPECT_EQ(history.points().back().lookups.misses, 999U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
