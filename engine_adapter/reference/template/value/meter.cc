#include "engine_adapter/reference/template/value/meter.h"

#include <ctime>

namespace kvtier::jinja {
namespace {

std::int64_t thread_time_ns() {
  std::timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

Meter::Meter(const RenderLimits& limits)
    : limits_(limits),
      end_ns_(thread_time_ns() + std::chrono::nanoseconds(limits.thread_time).count()) {}

void Meter::put(std::size_t bytes) {
  if (bytes > limits_.output_bytes - put_) fail("the text is too long");
  put_ += bytes;
  make(bytes);
}

void Meter::too_many_steps() const {
  fail("more than " + std::to_string(limits_.steps) + " steps");
}

void Meter::too_much_made() const {
  fail("the values that it makes are too large: more than " +
       std::to_string(limits_.made_bytes >> 20U) + " MiB");
}

void Meter::check_time() {
  looked_ = 0;
  if (thread_time_ns() > end_ns_) {
    fail("takes longer than " + std::to_string(limits_.thread_time.count()) + " ms");
  }
}

}  // namespace kvtier::jinja
