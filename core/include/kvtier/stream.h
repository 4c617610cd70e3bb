// A stream of a GPU as those see it who do not own it. Also what an engine names its own stream
// with, which the client's copies are ordered on.
#pragma once

#include <cstddef>

struct CUstream_st;  // what cudaStream_t points to

namespace kvtier {

// Never ends the stream, and must not outlive it. Without one: the default stream, or none where
// the engine computes on the CPU, whose copies run on the client's copy thread and whose waits
// block the calling thread.
class StreamView {
 public:
  constexpr StreamView() noexcept = default;
  constexpr explicit StreamView(CUstream_st* stream) noexcept : stream_(stream) {}
  // A stream of no number and no null pointer: say StreamView() where none is meant.
  explicit StreamView(int) = delete;
  explicit StreamView(std::nullptr_t) = delete;

  constexpr CUstream_st* get() const noexcept { return stream_; }
  // Whether it is any but the default one.
  constexpr explicit operator bool() const noexcept { return stream_ != nullptr; }

  friend constexpr bool operator==(StreamView, StreamView) noexcept = default;

 private:
  CUstream_st* stream_ = nullptr;
};

}  // namespace kvtier
