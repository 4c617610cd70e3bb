// Traces that the fleet's tests make.
#pragma once

#include <list>
#include <random>
#include <vector>

#include "daemon/trace/trace_file.h"

namespace kvtier::bench {

inline constexpr std::uint32_t kTraceBlock = 512;  // tokens

// A request a second unless it is said otherwise, of whole blocks.
class TraceMaker {
 public:
  TraceMaker& ask(std::vector<std::uint64_t> blocks, std::uint64_t wait_ms = 1000) {
    daemon::TracedRequest request;
    request.at_ms = at_ms_;
    at_ms_ += wait_ms;
    request.input_tokens = static_cast<std::uint32_t>(blocks.size()) * kTraceBlock;
    request.output_tokens = 100;
    trace_.blocks += blocks.size();
    request.blocks = std::move(blocks);
    trace_.requests.push_back(std::move(request));
    trace_.block_tokens = kTraceBlock;
    trace_.different_blocks = trace_.blocks;  // at most
    return *this;
  }
  operator const daemon::Trace&() const noexcept { return trace_; }

 private:
  daemon::Trace trace_;
  std::uint64_t at_ms_ = 0;
};

// Conversations that go on after a while, among prompts that are never seen again.
inline daemon::Trace conversations_of(std::uint64_t seed, std::size_t requests) {
  std::mt19937_64 random(seed);
  const auto upto = [&](std::uint64_t n) { return random() % n; };
  TraceMaker maker;
  std::uint64_t next = 1;
  std::list<std::vector<std::uint64_t>> going_on;
  for (std::size_t i = 0; i < requests; ++i) {
    std::vector<std::uint64_t> blocks{0};
    if (!going_on.empty() && upto(3) != 0) {
      blocks = std::move(going_on.front());
      going_on.pop_front();
    }
    for (std::uint64_t n = 1 + upto(6); n > 0; --n) blocks.push_back(next++);
    if (upto(5) != 0 && going_on.size() < 30 && blocks.size() < 40) going_on.push_back(blocks);
    maker.ask(std::move(blocks), 100 + upto(400));
  }
  return maker;
}

}  // namespace kvtier::bench
