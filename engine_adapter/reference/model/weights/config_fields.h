// Which fields a config.json may have: what changes a model's arithmetic and is not done here is
// refused, never ignored; what is known neither way is named.
#pragma once

#include <string>
#include <vector>

#include "engine_adapter/reference/files/json.h"

namespace kvtier::engine {

// Fails `fields` at a field of config.json that changes the arithmetic in a way we do not have.
void refuse_unsupported(const Json& json, bool latent, JsonFields& fields);
// The same of rope_scaling or rope_parameters, all of whose fields change the arithmetic.
void refuse_unknown_rope(const Json& json, JsonFields& fields);
// The names of the fields that are known neither as part of the arithmetic nor as none of it.
std::vector<std::string> unknown_config_fields(const Json& json, bool latent);

}  // namespace kvtier::engine
