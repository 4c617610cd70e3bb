// How often blocks are used again, by the class of their last use and by their age: learnt from a
// sample of the keys, of blocks that were evicted meanwhile too.
//
// The last uses of sampled keys stand in a ring in the order of time, the newest use of a key
// alone. For each age (of 39, about two for each doubling) it is counted how many uses came to be
// so old without another, and how many were followed by another at that age: the quotient is the
// class's hit rate at that age. Rates of a class with few samples lean on those of all classes, and
// these on a prior. What is older counts for less: half for every two rings of uses.
//
// The density of a block is what it is worth in its place: the hits a second that are expected of
// it, over the time to come for which that is most,
//
//   max over T of  sum_{a in T} P(unused until a) h(a)  /  sum_{a in T} P(unused until a) w(a)
//
// with h an age's hit rate and w its seconds. It is what a slot should be given for: a block goes
// if it is of the least density. (The Gittins index of a block that may be let go of at any time;
// LHD, NSDI '18, takes one T for all.)
//
// Memory is fixed from the start. Owned by the control thread; it knows nothing of blocks but keys.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/prefetch.h"
#include "daemon/cache/policy/use_class.h"
#include "kvtier/key.h"

namespace kvtier::daemon {

class HitRates {
 public:
  // Ages in seconds: 0, 2, 4, 8, 12, 16, 24, 32, 48 and on to 18 days.
  static constexpr std::size_t kAges = 39;
  static constexpr std::uint32_t kSamples = 1U << 16;  // in the ring; a power of two

  explicit HitRates(std::uint32_t samples = kSamples);

  // Whether this key is one of the sample. A uniform part of all keys is.
  bool samples(const Key& key) const noexcept { return (key.tail() & skipped_) == 0; }
  // So many blocks are cached, and so many are used at a time: of a larger cache a smaller part of
  // the keys is sampled, so that the ring remembers several times as many blocks as there are, and
  // of longer prefixes as well, whose blocks have much the same to say. Powers of two.
  void set_blocks(std::uint64_t blocks, std::uint64_t blocks_of_a_use = 1);

  // Of a sampled key that is asked for soon: what it is looked up in, then what that leads to.
  void prefetch_bucket(const Key& key) const noexcept { prefetch_memory(&bucket(key.tail())); }
  void prefetch_sample(const Key& key) const noexcept {
    const std::uint32_t place = bucket(key.tail());
    if (place != kNone) prefetch_memory(&ring_[place]);
  }

  // The last use of a sampled key, where it is known still. It has been used again now, at `now` in
  // seconds, and is known no more until it is noted.
  std::optional<UseMark> used(const Key& key, std::uint32_t now);
  // The use of a sampled key that used() was asked for.
  void note(const Key& key, UseMark mark, std::uint32_t now);
  // More has come behind the sampled key in its prefix: it ends no prompt.
  void goes_on(const Key& key) noexcept;

  // About once a second: counts what has come of age, and computes the densities anew.
  void refresh(std::uint32_t now);

  // Of a block of this class that was last used so many seconds ago, in hits a second.
  double density(UseClass use, std::uint32_t age) const noexcept;
  // The part of a class's blocks of age index `age` that were used again at that age, as learnt.
  double rate(UseClass use, std::size_t age) const noexcept;
  // The chance that a block of this class is used again before its density falls to `least`.
  double chance(UseClass use, double least) const noexcept;
  bool refreshed() const noexcept { return refreshed_; }

  static std::size_t index_of_age(std::uint32_t seconds) noexcept;
  static std::uint32_t age_at(std::size_t index) noexcept;
  std::uint64_t bytes() const noexcept;

 private:
  using Rates = std::array<double, kAges>;
  struct Sample {
    std::uint64_t key = 0;  // its last eight bytes
    std::uint32_t at = 0;
    std::uint32_t next = kNone;  // in its bucket, by its place in the ring
    UseMark mark;
    bool live = false;  // not followed by another use of the key
  };
  static constexpr std::uint32_t kNone = ~0U;

  Sample& sample(std::uint64_t number) noexcept { return ring_[number & (ring_.size() - 1)]; }
  std::uint32_t& bucket(std::uint64_t key) noexcept {
    return buckets_[(key >> 32) & (buckets_.size() - 1)];
  }
  const std::uint32_t& bucket(std::uint64_t key) const noexcept {
    return buckets_[(key >> 32) & (buckets_.size() - 1)];
  }
  // What leads to a key's place in the ring: that place, or kNone.
  std::uint32_t& link_to(const Key& key) noexcept;
  void unlink(std::uint32_t place);
  void count_passed(std::uint64_t number, const Sample& of, std::size_t age);
  void advance(std::uint32_t now);
  void fade();
  static Rates densities(const Rates& rates) noexcept;

  std::uint64_t skipped_ = 0;  // bits of a key that are 0 in those of the sample
  std::vector<Sample> ring_;
  std::vector<std::uint32_t> buckets_;         // the first of each, by its place in the ring
  std::uint64_t begin_ = 0, end_ = 0;          // numbers of the samples in the ring
  std::array<std::uint64_t, kAges> passed_{};  // the first that has not come to this age
  std::uint64_t faded_at_ = 0;
  // By class and age: uses that came to it, those that were followed by another at it.
  std::array<Rates, use_class::kCount> came_{}, hits_{}, rates_{}, densities_{};
  bool refreshed_ = false;
};

}  // namespace kvtier::daemon
