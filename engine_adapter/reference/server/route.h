// Which of the server's answers a request is for.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine_adapter/reference/server/api_error.h"

namespace kvtier::engine::server {

// The path that a request's target names: without scheme and authority, which proxies are sent,
// without query and fragment, and with %XX decoded: "/v1/models/a%2Fb?x" is "/v1/models/a/b". What
// only looks like an escape stays.
std::string path_of(std::string_view target);

struct Route {
  enum class To : unsigned char { completions, chats, models, model, health, metrics } to{};
  bool needs_key = false;
  std::optional<ApiError> error{};
  std::string allow{};  // the methods that there are, with status 405
};

Route route_of(const std::string& method, std::string_view target, const std::string& model_name);

}  // namespace kvtier::engine::server
