#include "daemon/cache/policy/hit_rates.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/base/check.h"

namespace kvtier::daemon {
namespace {

// So many samples of a class weigh as much as all classes together do for it, and so many of all as
// the prior.
constexpr double kLean = 100;
constexpr double kRateMax = 0.95;
// The ring has uses of so many times the blocks in the cache.
constexpr std::uint64_t kRemembered = 4;
// Of a use at least so many of its blocks are of the sample, if it has them.
constexpr std::uint64_t kSampledOfAUse = 32;
constexpr double kRingsToHalf = 2;

double width(std::size_t age) noexcept {
  const double from = HitRates::age_at(age);
  return age + 1 < HitRates::kAges ? HitRates::age_at(age + 1) - from : from;
}

// Before anything is known: as of uses whose rate falls with their age, by 60 seconds at first.
double prior(std::size_t age) noexcept {
  return std::min(0.5, 0.075 * width(age) / (HitRates::age_at(age) + 60.0));
}

}  // namespace

HitRates::HitRates(std::uint32_t samples) : ring_(samples), buckets_(samples, kNone) {
  KVTIER_CHECK(std::has_single_bit(samples));
}

std::size_t HitRates::index_of_age(std::uint32_t seconds) noexcept {
  if (seconds < 4) return seconds / 2;
  if (seconds < 8) return 2;
  const auto bits = static_cast<std::uint32_t>(std::bit_width(seconds));
  const std::size_t index = 3 + 2 * (bits - 4) + (seconds >> (bits - 2) & 1);
  return std::min(index, kAges - 1);
}

std::uint32_t HitRates::age_at(std::size_t index) noexcept {
  if (index < 3) return static_cast<std::uint32_t>(2 * index);
  const std::size_t doublings = (index - 3) / 2;
  return (index - 3) % 2 == 0 ? 8U << doublings : 12U << doublings;
}

std::uint64_t HitRates::bytes() const noexcept {
  return sizeof *this + ring_.size() * sizeof(Sample) + buckets_.size() * sizeof(std::uint32_t);
}

void HitRates::set_blocks(std::uint64_t blocks, std::uint64_t blocks_of_a_use) {
  const std::uint64_t wanted =
      std::max(kRemembered * blocks / ring_.size(), blocks_of_a_use / kSampledOfAUse);
  const std::uint64_t skipped = wanted <= 1 ? 0 : std::bit_ceil(wanted) - 1;
  // Half as many blocks, before more is sampled: a cache that grows and shrinks by a few does not
  // start anew each time.
  if (skipped == skipped_ || (skipped < skipped_ && skipped >= skipped_ / 4)) return;
  skipped_ = skipped;
  // What is of the sample no more would never be seen to be used again.
  for (std::uint64_t number = begin_; number < end_; ++number) {
    Sample& each = sample(number);
    if (!each.live || (each.key & skipped_) == 0) continue;
    unlink(static_cast<std::uint32_t>(number & (ring_.size() - 1)));
    each.live = false;
  }
}

void HitRates::unlink(std::uint32_t place) {
  std::uint32_t* at = &bucket(ring_[place].key);
  while (*at != place) at = &ring_[*at].next;
  *at = ring_[place].next;
}

// What refresh() has not come to see: the sample was so old, and older than each age below.
void HitRates::count_passed(std::uint64_t number, const Sample& of, std::size_t age) {
  for (; age > 0 && number >= passed_[age]; --age) came_[of.mark.use][age] += 1;
}

std::uint32_t& HitRates::link_to(const Key& key) noexcept {
  std::uint32_t* at = &bucket(key.tail());
  while (*at != kNone && ring_[*at].key != key.tail()) at = &ring_[*at].next;
  return *at;
}

void HitRates::goes_on(const Key& key) noexcept {
  const std::uint32_t place = link_to(key);
  if (place != kNone) ring_[place].mark.ends_prompt = false;
}

std::optional<UseMark> HitRates::used(const Key& key, std::uint32_t now) {
  std::uint32_t& link = link_to(key);
  const std::uint32_t place = link;
  if (place == kNone) return std::nullopt;
  Sample& before = ring_[place];
  // Its number: the last one at or below end_ that has this place.
  const std::uint64_t mask = ring_.size() - 1;
  const std::uint64_t number = end_ - 1 - ((end_ - 1 - place) & mask);
  const std::size_t age = index_of_age(now > before.at ? now - before.at : 0);
  count_passed(number, before, age);
  hits_[before.mark.use][age] += 1;
  link = before.next;
  before.live = false;
  return before.mark;
}

void HitRates::note(const Key& key, UseMark mark, std::uint32_t now) {
  if (end_ - begin_ == ring_.size()) {
    const auto oldest = static_cast<std::uint32_t>(begin_ & (ring_.size() - 1));
    if (ring_[oldest].live) unlink(oldest);
    ++begin_;
  }
  Sample& fresh = sample(end_);
  std::uint32_t& first = bucket(key.tail());
  fresh = {key.tail(), now, first, mark, true};
  first = static_cast<std::uint32_t>(end_ & (ring_.size() - 1));
  came_[mark.use][0] += 1;
  ++end_;
  prefetch_memory(&bucket(sample(end_).key));  // what goes next, in a ring that is full
}

void HitRates::advance(std::uint32_t now) {
  for (std::size_t age = 1; age < kAges; ++age) {
    std::uint64_t& at = passed_[age];
    at = std::max(at, begin_);
    for (; at < end_; ++at) {
      const Sample& each = sample(at);
      if (std::uint64_t{each.at} + age_at(age) > now) break;
      if (each.live) came_[each.mark.use][age] += 1;
    }
  }
}

void HitRates::fade() {
  const auto uses = static_cast<double>(end_ - faded_at_);
  if (uses < static_cast<double>(ring_.size()) / 64) return;
  faded_at_ = end_;
  const double left = std::exp2(-uses / (kRingsToHalf * static_cast<double>(ring_.size())));
  for (auto* const counts : {&came_, &hits_}) {
    for (Rates& of_class : *counts) {
      for (double& count : of_class) count *= left;
    }
  }
}

void HitRates::refresh(std::uint32_t now) {
  advance(now);
  fade();
  Rates all{};
  for (std::size_t age = 0; age < kAges; ++age) {
    double came = kLean, hits = kLean * prior(age);
    for (std::size_t use = 0; use < use_class::kCount; ++use) {
      came += came_[use][age];
      hits += hits_[use][age];
    }
    all[age] = std::min(kRateMax, hits / came);
  }
  // Most classes may have no use at all.
  const Rates of_all = densities(all);
  for (std::size_t use = 0; use < use_class::kCount; ++use) {
    if (came_[use][0] < 0.5) {
      rates_[use] = all;
      densities_[use] = of_all;
      continue;
    }
    for (std::size_t age = 0; age < kAges; ++age) {
      rates_[use][age] =
          std::min(kRateMax, (hits_[use][age] + kLean * all[age]) / (came_[use][age] + kLean));
    }
    densities_[use] = densities(rates_[use]);
  }
  refreshed_ = true;
}

// Uses within an age fall evenly on it.
HitRates::Rates HitRates::densities(const Rates& rates) noexcept {
  Rates best{};
  for (std::size_t from = 0; from < kAges; ++from) {
    double unused = 1, hits = 0, seconds = 0;
    for (std::size_t age = from; age < kAges; ++age) {
      const double hit = unused * rates[age];
      hits += hit;
      seconds += (unused - hit / 2) * width(age);
      unused -= hit;
      best[from] = std::max(best[from], hits / seconds);
    }
  }
  return best;
}

double HitRates::density(UseClass use, std::uint32_t age) const noexcept {
  const Rates& of = densities_[use];
  const std::size_t index = index_of_age(age);
  if (index + 1 == kAges) return of[index];
  const double part = (age - static_cast<double>(age_at(index))) / width(index);
  return of[index] * (1 - part) + of[index + 1] * part;
}

double HitRates::rate(UseClass use, std::size_t age) const noexcept {
  return rates_[use][age];
}

double HitRates::chance(UseClass use, double least) const noexcept {
  double unused = 1;
  for (std::size_t age = 0; age < kAges && densities_[use][age] > least; ++age)
    unused *= 1 - rates_[use][age];
  return 1 - unused;
}

}  // namespace kvtier::daemon
