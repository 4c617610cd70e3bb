// The program kills itself, as SIGKILL would at that moment, at a named point of its code.
#pragma once

#include "kvtier/result.h"

namespace kvtier::daemon::testing {

// KVTIER_KILL_AT="name:n" in the environment: at the n-th passing (from 1) of that point
// (core/base/points.h), on whichever thread. Unset or empty: never. Errors: invalid.
Result<void> arm_kill_from_environment();

}  // namespace kvtier::daemon::testing
