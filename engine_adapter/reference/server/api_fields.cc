#include "engine_adapter/reference/server/api_fields.h"

#include <algorithm>

namespace kvtier::engine::server {

const OrderedJson* Fields::find(const char* key) {
  seen_.emplace_back(key);
  const auto at = object_.find(key);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

void Fields::fail(const char* key, const std::string& message) {
  if (!error_) error_ = bad_request(key, std::string(key) + ": " + message);
}

std::optional<double> Fields::number(const char* key, double low, double high) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return {};
  if (value->is_number() && value->get<double>() >= low && value->get<double>() <= high) {
    return value->get<double>();
  }
  fail(key, shown(*value) + " is not a number from " + OrderedJson(low).dump() + " to " +
                OrderedJson(high).dump());
  return {};
}

std::optional<std::int64_t> Fields::whole(const char* key, std::int64_t low, std::int64_t high) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return {};
  const bool fits = value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<std::uint64_t>() > INT64_MAX) &&
                    value->get<std::int64_t>() >= low && value->get<std::int64_t>() <= high;
  if (fits) return value->get<std::int64_t>();
  fail(key, shown(*value) + " is not a whole number from " + std::to_string(low) + " to " +
                std::to_string(high));
  return {};
}

std::optional<std::uint32_t> Fields::count(const char* key, std::int64_t low, std::int64_t high) {
  const auto value = whole(key, low, high);
  if (!value) return {};
  return static_cast<std::uint32_t>(*value);
}

bool Fields::flag(const char* key, bool otherwise) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  fail(key, shown(*value) + " is not true or false");
  return otherwise;
}

std::string Fields::text(const char* key, std::size_t bytes_max) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return {};
  if (value->is_string() && value->get_ref<const std::string&>().size() <= bytes_max) {
    return value->get<std::string>();
  }
  fail(key, "is not a text of at most " + std::to_string(bytes_max) + " bytes");
  return {};
}

void Fields::refuse_unless(const char* key, AsksNothing nothing, const char* why) {
  if (seen(key)) return;
  const OrderedJson* value = find(key);
  if (value != nullptr && !nothing(*value)) fail(key, why);
}

bool Fields::seen(const std::string& key) const {
  return std::ranges::find(seen_, key) != seen_.end();
}

void Fields::refuse_unknown() {
  for (const auto& [key, value] : object_.items()) {
    if (error_) return;
    if (seen(key)) continue;
    error_ =
        bad_request(shown(key), "the field '" + shown(key) + "' is not supported; leave it out");
  }
}

}  // namespace kvtier::engine::server
