// kvtierd from its command line to its exit code: for the program that is shipped, and for one of
// tests that puts something between it and its disks.
#pragma once

#include "storage/device/wrap_device.h"

namespace kvtier::daemon {

struct KvtierdHooks {
  storage::WrapDevice wrap_device;  // around the device of each disk; none: as it is
};

// Once in a process, on its first thread. Returns the exit code that --help explains.
int run_kvtierd(int argc, char** argv, const KvtierdHooks& hooks = {});

}  // namespace kvtier::daemon
