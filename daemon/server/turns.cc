#include "daemon/server/turns.h"

#include <time.h>

namespace kvtier::daemon {

namespace {

std::chrono::microseconds thread_cpu() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

}  // namespace

void Turns::ended(Clock::time_point now) {
  using std::chrono::duration_cast;
  using std::chrono::microseconds;
  constexpr std::chrono::milliseconds kCpuEvery{1};
  const auto took = duration_cast<microseconds>(now - began_);
  us_.add(static_cast<std::uint64_t>(took.count()));
  wall_.add(now, took);
  if (now - cpu_read_ < kCpuEvery) return;
  // What the thread has used since the last look is of this turn, but for turns of less than a
  // millisecond together.
  const auto cpu = thread_cpu();
  const bool looked = cpu_read_ != Clock::time_point{};
  const bool own = looked && took >= kCpuEvery;
  if (own) cpu_.add(now, std::min(cpu - cpu_at_, took));
  cpu_at_ = cpu;
  cpu_read_ = now;
}

}  // namespace kvtier::daemon
