// The last batches that were published, by their numbers, bounded in bytes. Owned by the events'
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace kvtier::daemon::events {

using Payload = std::shared_ptr<const std::vector<std::uint8_t>>;

class ReplayBuffer {
 public:
  // What a batch takes beside its own bytes.
  static constexpr std::uint64_t kBatchBytes = 96;

  // `first`: the number of the first batch that will be added.
  ReplayBuffer(std::uint64_t first, std::uint64_t bytes_max)
      : next_(first), bytes_max_(bytes_max) {}

  // The next batch. The oldest go so that all fit; one that does not fit alone is not kept.
  void add(Payload batch);
  // The number of the batch that comes next.
  std::uint64_t next() const noexcept { return next_; }
  // Of the oldest that is here; next() if there is none.
  std::uint64_t first() const noexcept { return next_ - batches_.size(); }
  // All from this one on are here.
  bool has_from(std::uint64_t number) const noexcept {
    return number >= first() && number <= next_;
  }
  // One that is here.
  const Payload& at(std::uint64_t number) const { return batches_[number - first()]; }
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  std::deque<Payload> batches_;
  std::uint64_t next_;
  std::uint64_t bytes_ = 0;
  const std::uint64_t bytes_max_;
};

}  // namespace kvtier::daemon::events
