#include "engine_adapter/reference/server/api_error.h"

#include <cstdio>
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

ApiError logged(unsigned status, const Error& error, const char* told) {
  std::fprintf(stderr, "kvtier-engine: a request failed: %s\n", error.message.c_str());
  return {.status = status, .message = told};
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
      return logged(500, error, "the engine could not take the request; its log says why");
  }
}

// By then it is nothing that the client could mend.
ApiError to_api_once_taken(const Error& error) {
  if (error.code == Errc::no_space) {
    return logged(503, error, "the engine's memory is full; try again later");
  }
  return logged(500, error, "the engine failed while it answered; its log says why");
}

void throw_exception_from_error(const ApiError& error, const boost::source_location&) {
  throw std::logic_error("value() of an error: " + error.message);
}

}  // namespace kvtier::engine::server
