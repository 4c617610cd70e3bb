#include "core/base/thread_priority.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace kvtier {
namespace {

// struct sched_attr of the kernel, which C libraries came to know late.
struct Attributes {
  std::uint32_t size = sizeof(Attributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0;  // ns: of SCHED_OTHER, the length of a turn; 0 is the kernel's own
  std::uint64_t deadline = 0;
  std::uint64_t period = 0;
};

}  // namespace

void ask_for_short_turns() noexcept {
  // A larger share, where it is granted: who has used up its share is not woken at once.
  constexpr int kNice = -5;
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
  errno = 0;
  const int nice = ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()));
  if (errno != 0) return;
  Attributes attributes;
  attributes.policy = SCHED_OTHER;
  attributes.nice = nice;
  attributes.runtime = 100'000;
  (void)::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

void yield_to_others() noexcept {
  constexpr int kNice = 5;
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
}

}  // namespace kvtier
