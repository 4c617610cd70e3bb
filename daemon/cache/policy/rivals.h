// Whether hit density is better than least recently used for a tier, as far as the last hours tell:
// both are played on a sample of the keys, each with a cache of as much smaller a capacity as the
// sample is smaller than all keys, and what only one of them would have had is counted.
//
// The games know nothing of prefixes, holds, tenants or sizes. They are there for workloads that
// the classes do not describe: then what was learnt misleads, and the tier does better by age
// alone.
//
// Memory is fixed from the start. Owned by the control thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "daemon/cache/policy/hit_rates.h"

namespace kvtier::daemon {

// A cache of keys, without anything in it.
class RivalCache {
 public:
  // 0: the least recently used goes; else the one of the least density.
  RivalCache(const HitRates* rates, std::uint32_t keys_max);

  // The key is used; whether it was there. Of more than `capacity` keys some go first.
  bool use(std::uint64_t key, UseClass use, std::uint32_t now, std::uint32_t capacity);
  void clear() noexcept;
  std::uint32_t size() const noexcept { return size_; }

 private:
  static constexpr std::uint32_t kNone = ~0U;
  struct Node {
    std::uint64_t key = 0;
    std::uint32_t at = 0;
    std::uint32_t newer = kNone, older = kNone;
    std::uint32_t next = kNone;  // in its bucket, or free
    UseClass use = 0;
  };
  struct Ends {
    std::uint32_t newest = kNone, oldest = kNone;
  };
  std::uint32_t& bucket(std::uint64_t key) noexcept {
    return buckets_[(key >> 32) & (buckets_.size() - 1)];
  }
  std::uint32_t find(std::uint64_t key) noexcept;
  void push(std::uint32_t at, UseClass use) noexcept;
  void pull(std::uint32_t at) noexcept;
  std::uint32_t victim(std::uint32_t now) const noexcept;
  void remove(std::uint32_t at) noexcept;

  const HitRates* rates_;
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> buckets_;
  std::array<Ends, use_class::kCount> ends_{};
  std::uint32_t free_ = kNone;
  std::uint32_t size_ = 0;
};

class Rivals {
 public:
  static constexpr std::uint32_t kKeys = 1024;  // in each game, at most

  // `rates` outlives this.
  explicit Rivals(const HitRates& rates);

  // So many blocks the tier has room for; 0: nothing is known of it yet.
  void set_blocks(std::uint64_t blocks);
  bool plays() const noexcept { return capacity_ > 0; }
  bool samples(const Key& key) const noexcept {
    return capacity_ > 0 && (key.tail() >> 16 & skipped_) == 0;
  }
  // The use of a sampled key.
  void use(const Key& key, UseClass use, std::uint32_t now);

  // Age alone has done better, by more than chance explains; until density has caught up.
  bool oldest_is_better() const noexcept { return oldest_is_better_; }
  std::uint64_t bytes() const noexcept;

 private:
  void judge() noexcept;

  RivalCache oldest_, density_;
  std::uint64_t skipped_ = 0;
  std::uint32_t capacity_ = 0;
  std::uint32_t uses_ = 0;                     // since what was counted was last halved
  double only_oldest_ = 0, only_density_ = 0;  // hits that the other did not have
  bool oldest_is_better_ = false;
};

}  // namespace kvtier::daemon
