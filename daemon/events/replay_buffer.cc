#include "daemon/events/replay_buffer.h"

#include <utility>

namespace kvtier::daemon::events {

namespace {

std::uint64_t size_of(const Payload& batch) {
  return batch->size() + ReplayBuffer::kBatchBytes;
}

}  // namespace

void ReplayBuffer::add(Payload batch) {
  bytes_ += size_of(batch);
  batches_.push_back(std::move(batch));
  ++next_;
  while (bytes_ > bytes_max_) {
    bytes_ -= size_of(batches_.front());
    batches_.pop_front();
  }
}

}  // namespace kvtier::daemon::events
