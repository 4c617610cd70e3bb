// A hook between a store and its device, for tests (tests/storage/faults/).
#pragma once

#include <functional>
#include <memory>

#include "storage/device/block_device.h"

namespace kvtier::storage {

// Gives a device that has another inside it.
using WrapDevice = std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)>;

}  // namespace kvtier::storage
