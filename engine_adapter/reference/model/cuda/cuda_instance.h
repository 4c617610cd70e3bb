// Instances on a GPU.
#pragma once

#include "engine_adapter/reference/model/instance.h"

namespace kvtier::engine {

// As Instance::make; options.pool_tokens is settled and options.device a GPU.
Result<Instance> make_cuda_instance(const LoadedModel& loaded, const InstanceOptions& options);

}  // namespace kvtier::engine
