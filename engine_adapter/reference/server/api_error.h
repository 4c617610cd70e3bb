// Errors as the OpenAI API tells them.
#pragma once

#include <boost/assert/source_location.hpp>
#include <boost/system/result.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "kvtier/result.h"

namespace kvtier::engine::server {

struct ApiError {
  unsigned status = 500;
  std::string message;
  std::string param{};  // the field at fault
  std::string code{};

  // {"error": {"message", "type", "param", "code"}}
  nlohmann::ordered_json body() const;
};

template <class T>
using ApiResult = boost::system::result<T, ApiError>;

ApiError bad_request(std::string param, std::string message);
// What a kvtier error is to a client: of a request that was not taken, and of one that was. What no
// client can mend is the operator's: its message, which may name files of this machine, goes to the
// log alone.
ApiError to_api(const Error& error);
ApiError to_api_once_taken(const Error& error);

// Found by boost::system::result when value() is called on an error: a programming error.
[[noreturn]] void throw_exception_from_error(const ApiError& error,
                                             const boost::source_location& location);

}  // namespace kvtier::engine::server
