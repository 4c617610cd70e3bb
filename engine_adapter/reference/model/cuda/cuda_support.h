// What the CUDA backend can compute, and on which devices.
#pragma once

#include <cstdint>

#include "engine_adapter/reference/model/weights/model_config.h"
#include "kvtier/record_layout.h"
#include "kvtier/result.h"

namespace kvtier::engine::cuda {

// Whether there are kernels for the shape. Errors: invalid, naming what there are none for.
Result<void> check_shape(const ModelConfig& config, const RecordLayout& layout);
// Whether there is such a GPU. Errors: unavailable.
Result<void> check_device(std::uint32_t device);

}  // namespace kvtier::engine::cuda
