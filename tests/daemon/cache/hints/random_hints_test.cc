// Random hints among everything else that a cache does: what is counted of them is what there is,
// and no bound is passed.
#include <map>
#include <random>

#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

using std::chrono::seconds;

class RandomHints {
 public:
  explicit RandomHints(unsigned seed) : random_(seed) {
    for (SessionId session = 1; session <= 4; ++session)
      cache_->begin_session(session, 1000 + session % 3);
    for (Token first = 1; first < 30'000; first += 1000)
      prompts_.push_back(cache_.prefix(ns_, 1 + below(10), first));
  }

  void step() {
    const std::size_t which = below(prompts_.size());
    auto prefix = std::span<const TestBlock>(prompts_[which]);
    prefix = prefix.first(1 + below(prefix.size()));
    // Mostly each has prompts of its own.
    const SessionId session = 1 + (below(8) == 0 ? below(4) : which % 4);
    switch (below(10)) {
      case 0:
      case 1:
      case 2:
        for (const TestBlock& block : prefix)
          (void)cache_.put(ns_, block, below(3) == 0 ? Tier::device : Tier::host, session);
        break;
      case 3:
        leases_.emplace_back(session, cache_.lease(ns_, prefix, session).lease);
        break;
      case 4:
      case 5:
        release_one();
        break;
      case 6:
      case 7:
        cache_.hint(ns_, prefix.subspan(below(prefix.size())), any_hint(), session, now_);
        break;
      case 8:
        complete_some();
        break;
      default:
        if (below(6) == 0)
          (void)cache_->drop(ns_, TierSet{static_cast<std::uint8_t>(1 + below(3))});
        now_ += seconds(below(20));
        cache_->expire_hints(now_);
    }
  }
  void finish() {
    while (!leases_.empty()) release_one();
    cache_.store().complete_all();
    cache_->expire_hints(now_ + seconds(100'000));
  }

  // Looks at every block.
  void check() {
    struct Sum {
      std::uint64_t raised = 0, demoted = 0;
      std::map<std::uint32_t, std::uint32_t> kept;  // by extent
    };
    std::array<Sum, kTiers> sums;
    const Catalogue& catalogue = cache_->catalogue();
    catalogue.each([&](BlockId id) {
      const Block& block = catalogue.block(id);
      for (const Tier tier : {Tier::device, Tier::host}) {
        const Rank rank = block.rank(tier);
        Sum& sum = sums[index_of(tier)];
        const auto raised = cache_->hints().raised(id, tier);
        EXPECT_EQ(raised.until.has_value(), is_kept(rank));
        EXPECT_EQ(raised.until.has_value() || raised.priority != 0, is_raised(rank));
        if (!block.tiers.has(tier)) {
          EXPECT_EQ(rank, Rank::normal);
          continue;
        }
        const Place at = block.places[index_of(tier)];
        EXPECT_EQ(cache_->memory(tier, at).table(at).entry(at.slot).last_access, block.last_access)
            << "what a restart has its order from";
        sum.raised += is_raised(rank) ? 1 : 0;
        sum.demoted += rank == Rank::spent ? 1 : 0;
        sum.kept[at.container] += is_kept(rank) ? 1 : 0;
      }
      return true;
    });
    for (const Tier tier : {Tier::device, Tier::host}) {
      const Sum& sum = sums[index_of(tier)];
      EXPECT_EQ(cache_->hints().blocks(tier), sum.raised);
      EXPECT_EQ(cache_->hints().bytes(tier), sum.raised * kRecordBytes);
      EXPECT_LE(cache_->hints().bytes(tier), cache_->hints().bytes_max(tier, 0));
      EXPECT_EQ(catalogue.counts(tier).raised, sum.raised);
      EXPECT_EQ(catalogue.counts(tier).demoted, sum.demoted);
      cache_->memory(tier).each_extent([&](storage::Extent& extent) {
        const auto kept = sum.kept.find(extent.id().value);
        EXPECT_EQ(cache_->memory(tier).kept_in(extent.id()),
                  kept == sum.kept.end() ? 0U : kept->second);
      });
    }
  }

  TestCache& cache() { return cache_; }

 private:
  std::size_t below(std::size_t n) { return random_() % n; }
  Hint any_hint() {
    return {static_cast<HintKind>(below(kHintKinds)), below(3) == 0 ? Tier::device : Tier::host,
            static_cast<std::uint8_t>(below(kHintPriorityMax + 1)),
            seconds(below(2) == 0 ? 0 : below(100))};
  }
  void release_one() {
    if (leases_.empty()) return;
    const std::size_t at = below(leases_.size());
    cache_->release(leases_[at].first, leases_[at].second);
    leases_.erase(leases_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  void complete_some() {
    const auto under_way = cache_.store().under_way();
    for (std::size_t i = 0; i < under_way.size() && below(4) != 0; ++i) {
      if (cache_.store()[0].has(under_way[i]))
        cache_.store().complete(under_way[i],
                                below(12) == 0 ? FakeStore::Fate::corrupt : FakeStore::Fate::good);
    }
  }

  std::mt19937 random_;
  TestCache cache_{CacheSizes{.hints = {8, 40}}};
  const std::uint16_t ns_ = cache_.open(small_namespace("m"));
  std::vector<std::vector<TestBlock>> prompts_;
  std::vector<std::pair<SessionId, LeaseId>> leases_;
  Hints::Time now_{seconds(1000)};
};

TEST(RandomHintsTest, keep_every_count_and_every_bound_over_fifty_thousand_steps) {
  HintCounts seen;
  for (unsigned seed = 1; seed <= 5 && !::testing::Test::HasFailure(); ++seed) {
    RandomHints random(seed);
    for (int i = 0; i < 10'000 && !::testing::Test::HasFailure(); ++i) {
      random.step();
      if (i % 10 == 0) random.check();
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << ", step " << i;
    }
    random.finish();
    random.check();
    TestCache& cache = random.cache();
    EXPECT_EQ(cache->leases(), 0U);
    EXPECT_EQ(cache->hints().prefetching(), 0U);
    each_hint_count(cache->hints().counts(),
                    [&](HintKind kind, HintOutcome outcome, std::uint64_t blocks) {
                      seen.add(kind, outcome, blocks);
                    });
  }
  // A test that no longer tests anything is noticed.
  for (std::size_t k = 0; k < kHintKinds; ++k) {
    const auto kind = static_cast<HintKind>(k);
    EXPECT_GT(seen.of(kind, HintOutcome::taken), 100U) << name(kind);
    EXPECT_GT(seen.of(kind, HintOutcome::already), 10U) << name(kind);
    EXPECT_GT(seen.of(kind, HintOutcome::absent), 100U) << name(kind);
  }
  EXPECT_GT(seen.of(HintKind::keep, HintOutcome::budget), 100U);
  EXPECT_GT(seen.of(HintKind::ended, HintOutcome::shared), 100U);
  EXPECT_GT(seen.of(HintKind::demote, HintOutcome::shared), 100U);
  EXPECT_GT(seen.of(HintKind::prefetch, HintOutcome::failed), 10U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
