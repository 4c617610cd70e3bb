// A child of a process with threads that is to have threads of its own.
#pragma once

#include <pthread.h>

#include <cstddef>

namespace kvtier {

// In the child, before it starts any. To GCC 12's TSan the parent's threads are still there, and a
// new one on the stack of one of those, which is free, is the same one twice: it ends the process.
// Larger stacks are new ones.
inline void expect_threads_in_the_child() {
#ifdef __SANITIZE_THREAD__
  pthread_attr_t attributes;
  std::size_t bytes = 0;
  ::pthread_getattr_default_np(&attributes);
  ::pthread_attr_getstacksize(&attributes, &bytes);
  ::pthread_attr_setstacksize(&attributes, bytes + (std::size_t{1} << 20));
  ::pthread_setattr_default_np(&attributes);
#endif
}

}  // namespace kvtier
