#include <nlohmann/json.hpp>

#include "engine_adapter/reference/template/value/value.h"

namespace kvtier::jinja {

Value Value::from_json(const OrderedJson& json) {
  if (json.is_object()) {
    Map map;
    for (const auto& [key, entry] : json.items()) map.set(key, from_json(entry));
    return of(std::move(map));
  }
  if (json.is_array()) {
    List list;
    list.reserve(json.size());
    for (const OrderedJson& entry : json) list.push_back(from_json(entry));
    return of(std::move(list));
  }
  if (json.is_string()) return of(json.get<std::string>());
  if (json.is_boolean()) return of(json.get<bool>());
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX) {
    return of(json.get<double>());
  }
  if (json.is_number_integer()) return of(json.get<std::int64_t>());
  if (json.is_number()) return of(json.get<double>());
  return none();
}

}  // namespace kvtier::jinja
