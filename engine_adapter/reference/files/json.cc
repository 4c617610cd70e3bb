#include "engine_adapter/reference/files/json.h"

#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <vector>

#include "core/base/fd.h"
#include "engine_adapter/reference/files/file_kind.h"

namespace kvtier::engine {
namespace {

// What is written as text again, as in messages, is walked recursively.
constexpr int kDepthMax = 256;

// Refuses what nlohmann::json would settle silently, two values under one key, and what is nested
// too deeply.
class Watch {
 public:
  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    too_deep_ = too_deep_ || depth > kDepthMax;
    switch (event) {
      case Json::parse_event_t::object_start:
        open_.emplace_back();
        break;
      case Json::parse_event_t::object_end:
        open_.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!open_.back().insert(parsed.get<std::string>()).second && found_.empty()) {
          found_ = parsed.get<std::string>();
        }
        break;
      default:
        break;
    }
    return true;
  }
  const std::string& found() const noexcept { return found_; }
  bool too_deep() const noexcept { return too_deep_; }

 private:
  std::vector<std::set<std::string>> open_;
  std::string found_;
  bool too_deep_ = false;
};

}  // namespace

Result<std::string> read_file(const std::filesystem::path& path) {
  std::error_code code;
  if (!std::filesystem::is_regular_file(path, code)) {
    return make_error(Errc::not_found, path.string() + ": no such file");
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return errno_error(Errc::io, path.string() + ": cannot be opened");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file.good() && !file.eof()) return make_error(Errc::io, path.string() + ": cannot be read");
  return text;
}

Result<Json> parse_json(std::string_view text, const std::string& where) {
  Watch keys;
  try {
    Json parsed = Json::parse(text, std::ref(keys));
    if (keys.too_deep()) return make_error(Errc::malformed, where + ": nested too deeply");
    if (keys.found().empty()) return Result<Json>(boost::system::in_place_value, std::move(parsed));
  } catch (const Json::exception& error) {
    return make_error(Errc::malformed, where + ": not JSON: " + error.what());
  }
  return make_error(Errc::malformed, where + ": the key '" + keys.found() + "' is given twice");
}

Result<Json> read_json(const std::filesystem::path& path) {
  const auto text = read_file(path);
  if (!text) return text.error();
  return parse_json_file(*text, path.string());
}

Result<Json> parse_json_file(std::string_view text, const std::string& where) {
  auto parsed = parse_json(text, where);
  if (parsed) return parsed;
  const auto other = kind_of(std::as_bytes(std::span(text)));
  return other ? make_error(Errc::malformed, where + ": is " + *other) : parsed.error();
}

const Json* find(const Json& object, const char* key) noexcept {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

JsonFields::JsonFields(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object.is_object()) fail(Errc::malformed, "not an object");
}

void JsonFields::fail(Errc code, const std::string& message) {
  if (!error_) error_ = make_error(code, where_ + ": " + message);
}

const Json* JsonFields::field(const char* key, bool required) {
  const Json* value = find(object_, key);
  if (value == nullptr && required) fail(Errc::malformed, std::string(key) + " is missing");
  return value;
}

std::uint32_t JsonFields::count(const char* key, std::optional<std::uint32_t> fallback) {
  const Json* value = field(key, !fallback);
  if (value == nullptr) return fallback.value_or(0);
  if (value->is_number_unsigned()) {
    const auto number = value->get<std::uint64_t>();
    if (number <= std::numeric_limits<std::uint32_t>::max()) {
      return static_cast<std::uint32_t>(number);
    }
  }
  fail(Errc::malformed, std::string(key) + " = " + value->dump() + " is not a 32-bit count");
  return 0;
}

double JsonFields::number(const char* key, std::optional<double> fallback) {
  const Json* value = field(key, !fallback);
  if (value == nullptr) return fallback.value_or(0);
  if (value->is_number()) return value->get<double>();
  fail(Errc::malformed, std::string(key) + " = " + value->dump() + " is not a number");
  return 0;
}

bool JsonFields::flag(const char* key, std::optional<bool> fallback) {
  const Json* value = field(key, !fallback);
  if (value == nullptr) return fallback.value_or(false);
  if (value->is_boolean()) return value->get<bool>();
  fail(Errc::malformed, std::string(key) + " = " + value->dump() + " is not true or false");
  return false;
}

std::string JsonFields::text(const char* key, const std::optional<std::string>& fallback) {
  const Json* value = field(key, !fallback);
  if (value == nullptr) return fallback.value_or("");
  if (value->is_string()) return value->get<std::string>();
  fail(Errc::malformed, std::string(key) + " = " + value->dump() + " is not a text");
  return {};
}

}  // namespace kvtier::engine
