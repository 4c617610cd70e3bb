// Reading JSON that others wrote: every field is checked, every message names the file and the
// field.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "kvtier/result.h"

namespace kvtier::engine {

using Json = nlohmann::json;

// Errors: io, not_found.
Result<std::string> read_file(const std::filesystem::path& path);
// Errors: malformed, naming `where` and the place; a key given twice in one object is malformed.
Result<Json> parse_json(std::string_view text, const std::string& where);
Result<Json> read_json(const std::filesystem::path& path);
// Of a file's text: one that is something else altogether is named for what it is.
Result<Json> parse_json_file(std::string_view text, const std::string& where);

// Null where the key is absent or its value is null.
const Json* find(const Json& object, const char* key) noexcept;

// Reads the fields of one object. After the first field that does not hold, error() is set and what
// the getters return means nothing.
class JsonFields {
 public:
  JsonFields(const Json& object, std::string where);

  // Without a fallback the field must be there.
  std::uint32_t count(const char* key, std::optional<std::uint32_t> fallback = {});
  double number(const char* key, std::optional<double> fallback = {});
  bool flag(const char* key, std::optional<bool> fallback = {});
  std::string text(const char* key, const std::optional<std::string>& fallback = {});

  void fail(Errc code, const std::string& message);
  const std::optional<Error>& error() const noexcept { return error_; }

 private:
  const Json* field(const char* key, bool required);

  const Json& object_;
  std::string where_;
  std::optional<Error> error_;
};

}  // namespace kvtier::engine
