// What a config.json says of layers that attend to K and V of an earlier one (adr/0068).
#pragma once

#include "engine_adapter/reference/files/json.h"
#include "engine_adapter/reference/model/weights/model_config.h"

namespace kvtier::engine {

// Sets config.kv_source, after layers and windows have been read. Fails `fields` where what is said
// leaves a layer without any, or is said twice.
void read_sharing(const Json& json, ModelConfig& config, JsonFields& fields);

}  // namespace kvtier::engine
