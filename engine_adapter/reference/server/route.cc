#include "engine_adapter/reference/server/route.h"

#include "engine_adapter/reference/server/body_json.h"

namespace kvtier::engine::server {
namespace {

int digit_of(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

std::string path_of(std::string_view target) {
  if (!target.starts_with('/')) {
    const std::size_t scheme = target.find("://");
    if (scheme != std::string_view::npos) {
      const std::size_t path = target.find_first_of("/?#", scheme + 3);
      target = path == std::string_view::npos ? "/" : target.substr(path);
    }
  }
  target = target.substr(0, target.find_first_of("?#"));
  std::string path;
  for (std::size_t i = 0; i < target.size(); ++i) {
    const bool escaped = target[i] == '%' && i + 2 < target.size() &&
                         digit_of(target[i + 1]) >= 0 && digit_of(target[i + 2]) >= 0;
    if (!escaped) {
      path += target[i];
      continue;
    }
    path += static_cast<char>(digit_of(target[i + 1]) * 16 + digit_of(target[i + 2]));
    i += 2;
  }
  return path;
}

Route route_of(const std::string& method, std::string_view target, const std::string& model_name) {
  using To = Route::To;
  const std::string path = path_of(target);
  Route route{.needs_key = path.starts_with("/v1/")};
  const bool one_model = path.starts_with("/v1/models/");
  if (path == "/v1/completions") {
    route.to = To::completions;
  } else if (path == "/v1/chat/completions") {
    route.to = To::chats;
  } else if (path == "/v1/models") {
    route.to = To::models;
  } else if (path == "/health") {
    route.to = To::health;
  } else if (path == "/metrics") {
    route.to = To::metrics;
  } else if (one_model && path.substr(11) == model_name) {
    route.to = To::model;
  } else {
    route.error =
        ApiError{.status = 404,
                 .message = one_model ? "the model '" + shown(path.substr(11)) + "' does not exist"
                                      : "there is no " + shown(path) +
                                            "; there are /v1/completions, /v1/chat/completions, "
                                            "/v1/models, /health and /metrics",
                 .code = one_model ? "model_not_found" : "not_found"};
    return route;
  }
  const bool post = route.to == To::completions || route.to == To::chats;
  if (post ? method == "POST" : method == "GET" || method == "HEAD") return route;
  route.allow = post ? "POST" : "GET, HEAD";
  route.error = ApiError{
      .status = 405,
      .message = shown(path) + " wants " + (post ? "POST" : "GET") + ", not " + shown(method),
      .code = "method_not_allowed"};
  return route;
}

}  // namespace kvtier::engine::server
