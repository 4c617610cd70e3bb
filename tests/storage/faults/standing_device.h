// A BlockDevice around a real one whose thread stands still whenever it is told to, as one does
// that waits in the kernel for a disk that does not answer.
#pragma once

#include <functional>
#include <memory>

#include "storage/device/block_device.h"

namespace kvtier::storage {

// Whoever calls the device, be it to wait for completions, stays in the call for as long as
// `stands` says so; it is asked every few milliseconds.
std::unique_ptr<BlockDevice> make_standing_device(std::unique_ptr<BlockDevice> inner,
                                                  std::function<bool()> stands);

// KVTIER_DISK_STANDS in the environment: it stands while there is a file of that name. None where
// it is unset or empty.
std::function<bool()> standstill_from_environment();

}  // namespace kvtier::storage
