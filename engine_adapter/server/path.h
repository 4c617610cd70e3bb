// The path that a request's target names.
#pragma once

#include <string>
#include <string_view>

namespace kvtier::engine::server {

// Without scheme and authority, which proxies are sent, without query and fragment, and with
// %XX decoded: "/v1/models/a%2Fb?x" is "/v1/models/a/b". What only looks like an escape stays.
std::string path_of(std::string_view target);

}  // namespace kvtier::engine::server
