// Reads the JSON of a request's body in time that is linear in its bytes, within bounds on what it
// makes of them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine_adapter/reference/server/api_error.h"

namespace kvtier::engine::server {

using OrderedJson = nlohmann::ordered_json;

// An object. Its keys, and those of every object in it, are few (limits.h): a look for one is a
// walk over all. Of members with one key the last counts. Errors: 400.
ApiResult<OrderedJson> parse_body(std::string_view body);

// For messages: the beginning of what a client sent, where it is long.
std::string shown(const std::string& text);
std::string shown(const OrderedJson& value);

}  // namespace kvtier::engine::server
