// How kvtierctl ends. Scripts depend on it.
#pragma once

#include "kvtier/result.h"

namespace kvtier::ctl {

enum Exit : int {
  kDone = 0,
  kFailed = 1,     // an error that is none of those below; check-system: something failed
  kUsage = 2,      // the command line
  kNoDaemon = 3,   // not reachable, or no answer in time
  kRefused = 4,    // the daemon said no: rights, or a bound
  kNotFound = 5,   // no such block, namespace or tenant
  kIncomplete = 6  // done in part: what is left is said
};

constexpr int exit_of(Errc code) noexcept {
  switch (code) {
    case Errc::unavailable:
    case Errc::deadline:
    case Errc::version:
      return kNoDaemon;
    case Errc::refused:
    case Errc::no_space:
    case Errc::invalid:
      return kRefused;
    case Errc::not_found:
      return kNotFound;
    default:
      return kFailed;
  }
}

}  // namespace kvtier::ctl
