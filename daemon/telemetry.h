// What the control thread counts for those who watch it: plain integers, changed where the thing
// itself happens and read by snapshots. Nothing here allocates, locks or waits.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "core/base/log2_buckets.h"
#include "kvtier/tier.h"

namespace kvtier::daemon {

// How often which value came, by powers of two (core/base/log2_buckets.h).
class Histogram {
 public:
  void add(std::uint64_t value, std::uint64_t times = 1) noexcept {
    counts_[log2_bucket(value)] += times;
    sum_ += value * times;
  }
  // `bucket`: at most kLog2Buckets.
  void add_counted(std::size_t bucket, std::uint64_t times) noexcept { counts_[bucket] += times; }
  void add_to_sum(std::uint64_t sum) noexcept { sum_ += sum; }

  Histogram& operator+=(const Histogram& other) noexcept {
    for (std::size_t b = 0; b < counts_.size(); ++b) counts_[b] += other.counts_[b];
    sum_ += other.sum_;
    return *this;
  }

  const std::array<std::uint64_t, kLog2Buckets + 1>& counts() const noexcept { return counts_; }
  std::uint64_t sum() const noexcept { return sum_; }
  std::uint64_t total() const noexcept {
    std::uint64_t total = 0;
    for (const std::uint64_t count : counts_) total += count;
    return total;
  }

 private:
  std::array<std::uint64_t, kLog2Buckets + 1> counts_{};
  std::uint64_t sum_ = 0;
};

// The greatest of the last 30 to 60 seconds.
class RecentGreatest {
 public:
  using Time = std::chrono::steady_clock::time_point;
  void add(Time now, std::chrono::microseconds value) noexcept {
    if (now - window_ >= kWindow) {
      before_ = now - window_ < 2 * kWindow ? greatest_ : std::chrono::microseconds{};
      greatest_ = {};
      window_ = now;
    }
    greatest_ = std::max(greatest_, value);
  }
  std::chrono::microseconds greatest() const noexcept { return std::max(greatest_, before_); }

  static constexpr std::chrono::seconds kWindow{30};

 private:
  Time window_{};
  std::chrono::microseconds greatest_{}, before_{};
};

// Why a block left a tier.
enum class Removal : std::uint8_t {
  capacity,    // another block of the same size needed its slot, or the tier became smaller
  other_size,  // its extent or segment was given up for records of another size
  index_full,  // the index was full
  quota,       // its tenant had more than its quota
  drop,        // an administrator asked for it
  forgotten,   // a client found that it did not hold, or its namespace is another than was thought
  corrupt,     // header, key or checksum did not hold when it was read from disk
  io           // the disk failed to read it
};
inline constexpr std::size_t kRemovals = 8;
constexpr const char* name(Removal why) noexcept {
  constexpr const char* kNames[] = {"capacity", "other_size", "index_full", "quota",
                                    "drop",     "forgotten",  "corrupt",    "io"};
  return kNames[static_cast<std::size_t>(why)];
}
using Removals = std::array<std::uint64_t, kRemovals>;
// To make room, as against because it was wrong or unwanted.
constexpr std::uint64_t evictions(const Removals& by) noexcept {
  return by[0] + by[1] + by[2] + by[3];
}

// What became of the blocks that clients looked up. There is no count of lookups beside it: what
// was looked up is the sum, so a block cannot be counted twice without having been looked up twice.
// A block counts once its fate is known: a miss at once, a leased block when its lease ends.
struct Lookups {
  std::array<std::uint64_t, kTiersWithRemote> hits{};  // by the tier that had it
  std::uint64_t misses = 0;
  std::uint64_t looked_up() const noexcept {
    return hits[0] + hits[1] + hits[2] + hits[3] + misses;
  }
  Lookups& operator+=(const Lookups& other) noexcept {
    for (std::size_t t = 0; t < hits.size(); ++t) hits[t] += other.hits[t];
    misses += other.misses;
    return *this;
  }
};

// Turns stamps of the cache's logical clock into ages, to about a sixteenth: remembers when the
// clock stood where, densely for the last seconds and ever more sparsely before. Times are whole
// seconds from 1 up; 0 is not known.
class StampAges {
 public:
  // About once a second: the clock stands at `stamp`.
  void pass(std::uint32_t now, std::uint64_t stamp) {
    now_ = now;
    if (samples_.empty() || samples_.back().stamp != stamp) samples_.push_back({stamp, now});
    // Of a clock that stands, the last time counts: what comes next comes later.
    samples_.back().at = now;
    remembered_ = {};
    if (samples_.size() >= kSamplesMax) thin();
  }

  struct Age {
    bool known = false;
    std::uint32_t seconds = 0;
  };
  // Not known: from before the first pass().
  Age of(std::uint64_t stamp) noexcept {
    if (stamp == remembered_.stamp) return remembered_.age;  // blocks of a prefix share theirs
    remembered_ = {stamp, find(stamp)};
    return remembered_.age;
  }
  std::size_t samples() const noexcept { return samples_.size(); }

  static constexpr std::size_t kSamplesMax = 1024;

 private:
  struct Sample {
    std::uint64_t stamp;
    std::uint32_t at;
  };
  Age find(std::uint64_t stamp) const noexcept {
    // The stamp was given out after the last sample at or below it, until the next.
    std::size_t low = 0, high = samples_.size();
    while (low < high) {
      const std::size_t mid = (low + high) / 2;
      samples_[mid].stamp < stamp ? low = mid + 1 : high = mid;
    }
    if (low == 0) return {};
    return {true, now_ - samples_[low - 1].at};
  }
  // Drops a sample where its neighbours are closer than a sixteenth of their age.
  void thin() {
    std::size_t kept = 1;
    for (std::size_t i = 1; i + 1 < samples_.size(); ++i) {
      const std::uint32_t gap = samples_[i + 1].at - samples_[kept - 1].at;
      if (gap * 16 >= now_ - samples_[kept - 1].at) samples_[kept++] = samples_[i];
    }
    samples_[kept++] = samples_.back();
    samples_.resize(kept);  // at most 16 for each doubling of the age: a few hundred
  }

  std::uint32_t now_ = 0;
  std::vector<Sample> samples_;
  struct {
    std::uint64_t stamp = ~0ULL;
    Age age;
  } remembered_;
};

}  // namespace kvtier::daemon
