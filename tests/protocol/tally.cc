#include "tests/protocol/tally.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

namespace kvtier::protocol {

void Latencies::add(std::chrono::nanoseconds took) noexcept {
  const auto us = static_cast<std::uint64_t>(std::max<std::int64_t>(took.count() / 1000, 0));
  std::size_t bucket = us;
  if (us >= kFine) {
    const auto octave = static_cast<std::size_t>(std::bit_width(us)) - 5;  // us >> octave: 16 to 31
    bucket = kFine * octave + (us >> octave);
  }
  ++buckets_[std::min(bucket, kBuckets - 1)];
  ++count_;
  std::uint64_t before = max_.load();
  while (before < us && !max_.compare_exchange_weak(before, us)) {
  }
}

std::chrono::microseconds Latencies::quantile(double part) const noexcept {
  const auto wanted = static_cast<double>(count_.load()) * part;
  std::uint64_t seen = 0;
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    seen += buckets_[bucket].load();
    if (static_cast<double>(seen) < wanted || seen == 0) continue;
    if (bucket < 2 * kFine) return std::chrono::microseconds(bucket);
    const std::size_t octave = bucket / kFine - 1;
    return std::chrono::microseconds((bucket - kFine * octave + 1) << octave);
  }
  return max();
}

void Failures::add(const std::string& what) noexcept {
  const std::string kept = what.substr(0, kBytes - 1);
  for (std::size_t i = 0; i < kKept; ++i) {
    Kind& kind = kinds[i];
    std::uint32_t state = kNone;
    if (kind.state.compare_exchange_strong(state, kBeingWritten)) {
      std::strncpy(kind.text, kept.c_str(), kBytes - 1);
      ++kind.times;
      kind.state = kWritten;
      return;
    }
    // Two that are written at once may be of one kind; that does no harm.
    if (state == kWritten && kept == kind.text) {
      ++kind.times;
      return;
    }
  }
  ++others;
}

bool Failures::any() const noexcept {
  return kinds[0].state != kNone;
}

std::vector<std::string> Failures::all() const {
  std::vector<std::string> found;
  for (const Kind& kind : kinds) {
    if (kind.state == kWritten)
      found.push_back(std::string(kind.text) + " (" + std::to_string(kind.times.load()) + ")");
  }
  if (others > 0) found.push_back("and " + std::to_string(others.load()) + " more");
  return found;
}

bool ExtentOwners::seen(std::uint64_t inode, std::uint8_t pool) noexcept {
  const std::uint64_t mine = inode << 8 | pool;
  for (std::size_t step = 0; step < by_inode_.size(); ++step) {
    auto& entry = by_inode_[(inode + step) % by_inode_.size()];
    std::uint64_t there = 0;
    if (entry.compare_exchange_strong(there, mine)) return true;
    if (there >> 8 == inode) return there == mine;
  }
  return true;
}

void ExtentOwners::clear() noexcept {
  for (auto& entry : by_inode_) entry = 0;
}

Tally* Tally::share() {
  void* const at =
      ::mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return at == MAP_FAILED ? nullptr : new (at) Tally;
}

void Tally::did(Act act) noexcept {
  ++acts[static_cast<std::size_t>(act)];
  ++operations;
}

void Tally::sent_message(std::uint16_t kind) noexcept {
  ++sent[std::min<std::size_t>(kind, kMessages - 1)];
  ++operations;
}

std::int64_t now_us() noexcept {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace kvtier::protocol
