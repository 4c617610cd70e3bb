#include "client/python/gil.h"

#include <nanobind/nanobind.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>

#include "client/python/errors.h"

namespace kvtier::python {
namespace {

// Also of a child of fork(), whose one thread may have another number than the parent's that ends.
std::atomic<unsigned long> ending_thread{0};

}  // namespace

WithoutGil::WithoutGil() noexcept : thread_(PyEval_SaveThread()) {}

WithoutGil::~WithoutGil() {
  const unsigned long ending = ending_thread.load();
  if (ending != 0 && ending != PyThread_get_thread_ident()) {
    for (;;) ::pause();
  }
  PyEval_RestoreThread(thread_);
}

void note_exit() noexcept {
  ending_thread = PyThread_get_thread_ident();
}

Deadline deadline_in(std::optional<double> seconds) {
  constexpr double kNever = 10.0 * 365 * 24 * 3600;
  const double in = seconds.value_or(kNever);
  if (std::isnan(in)) throw Raised{make_error(Errc::invalid, "the timeout is not a number")};
  const std::chrono::duration<double> wait(std::clamp(in, 0.0, kNever));
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
}

bool wait_readable(int fd, Deadline deadline) {
  for (;;) {
    const auto left = std::max(deadline - Clock::now(), Clock::duration{0});
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const std::chrono::nanoseconds rest = left - seconds;
    const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = rest.count()};
    pollfd polled{.fd = fd, .events = POLLIN, .revents = 0};
    const auto [found, error] = without_gil([&] {
      const int result = ::ppoll(&polled, 1, &timeout, nullptr);
      return std::pair(result, errno);
    });
    if (found > 0) return true;
    if (found == 0) return false;
    if (error != EINTR) throw Raised{make_error(Errc::io, "cannot poll a lease's descriptor")};
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  }
}

}  // namespace kvtier::python
