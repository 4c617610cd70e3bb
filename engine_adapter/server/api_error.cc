#include "engine_adapter/server/api_error.h"

#include <stdexcept>

namespace kvtier::engine::server {
namespace {

const char* type_of(unsigned status) noexcept {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

nlohmann::ordered_json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}

}  // namespace

nlohmann::ordered_json ApiError::body() const {
  return {{"error",
           {{"message", message},
            {"type", type_of(status)},
            {"param", text_or_null(param)},
            {"code", text_or_null(code)}}}};
}

ApiError bad_request(std::string param, std::string message) {
  return {.status = 400, .message = std::move(message), .param = std::move(param)};
}

ApiError to_api(const Error& error) {
  switch (error.code) {
    case Errc::invalid:
    case Errc::malformed:
      return {.status = 400, .message = error.message};
    case Errc::no_space:
      return {.status = 400, .message = error.message, .code = "context_length_exceeded"};
    case Errc::refused:
      return {.status = 429, .message = error.message, .code = "too_many_requests"};
    default:
      return {.status = 500, .message = error.message};
  }
}

// By then it is nothing that the client could mend.
ApiError to_api_once_taken(const Error& error) {
  return {.status = error.code == Errc::no_space ? 503U : 500U, .message = error.message};
}

void throw_exception_from_error(const ApiError& error, const boost::source_location&) {
  throw std::logic_error("value() of an error: " + error.message);
}

}  // namespace kvtier::engine::server
