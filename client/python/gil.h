// Python's lock: nothing that waits or copies holds it.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

#include "kvtier/deadline.h"

struct _ts;  // what PyThreadState is

namespace kvtier::python {

// While one lives its thread does not hold Python's lock and touches no object of Python's. Made by
// a thread that holds it; never one inside another.
//
// A thread that comes back when the interpreter is about to end would be ended by it in the middle
// of C++ frames, which cannot be unwound. Such a thread (Python calls it a daemon) stays where it
// is instead; the process ends without it.
class WithoutGil {
 public:
  WithoutGil() noexcept;
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  _ts* thread_;
};

// From atexit: only the calling thread goes on.
void note_exit() noexcept;

template <class F>
auto without_gil(F&& f) {
  const WithoutGil released;
  return std::forward<F>(f)();
}

// `seconds` from now; none: never (ten years). Less than 0 is 0. Errors: invalid (not a number).
Deadline deadline_in(std::optional<double> seconds);

// Waits until `fd` can be read, at most until `deadline`, and lets signals be handled meanwhile
// (KeyboardInterrupt, which is thrown). Whether it can.
bool wait_readable(int fd, Deadline deadline);

}  // namespace kvtier::python
