#include "engine_adapter/jinja/value.h"

#include <algorithm>
#include <cmath>

namespace kvtier::jinja {
namespace {

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return nlohmann::json(value).dump();
}

std::string quoted(const std::string& text) {
  const bool single = text.find('\'') == std::string::npos || text.find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else {
      out += c;
    }
  }
  return out + quote;
}

void new_line(int indent, int depth, std::string& out) {
  if (indent < 0) return;
  out += '\n';
  out.append(static_cast<std::size_t>(indent) * static_cast<std::size_t>(depth), ' ');
}

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool write(const Value& value, int indent, int depth, std::string& out) {
  const char* const between = indent < 0 ? ", " : ",";
  if (const List* list = value.list()) {
    out += '[';
    for (std::size_t i = 0; i < list->size(); ++i) {
      if (i != 0) out += between;
      new_line(indent, depth + 1, out);
      if (!write((*list)[i], indent, depth + 1, out)) return false;
    }
    if (!list->empty()) new_line(indent, depth, out);
    out += ']';
  } else if (const Map* map = value.map()) {
    out += '{';
    bool first = true;
    for (const auto& [key, entry] : map->entries()) {
      if (!first) out += between;
      first = false;
      new_line(indent, depth + 1, out);
      out += json_text(key) + ": ";
      if (!write(entry, indent, depth + 1, out)) return false;
    }
    if (!first) new_line(indent, depth, out);
    out += '}';
  } else if (const std::string* text = value.text()) {
    out += json_text(*text);
  } else if (value.is_none()) {
    out += "null";
  } else if (const bool* flag = value.get_if<bool>()) {
    out += *flag ? "true" : "false";
  } else if (value.is_number()) {
    out += value.str();
  } else {
    return false;
  }
  return true;
}

}  // namespace

const Value* Map::find(std::string_view key) const noexcept {
  for (const auto& [name, value] : entries_) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Map::set(std::string key, Value value) {
  for (auto& [name, old] : entries_) {
    if (name != key) continue;
    old = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
}

Value Value::from_json(const OrderedJson& json) {
  if (json.is_object()) {
    Map map;
    for (const auto& [key, entry] : json.items()) map.set(key, from_json(entry));
    return of(std::move(map));
  }
  if (json.is_array()) {
    List list;
    for (const OrderedJson& entry : json) list.push_back(from_json(entry));
    return of(std::move(list));
  }
  if (json.is_string()) return of(json.get<std::string>());
  if (json.is_boolean()) return of(json.get<bool>());
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX) {
    return Value(Any(json.get<double>()));
  }
  if (json.is_number_integer()) return of(json.get<std::int64_t>());
  if (json.is_number()) return Value(Any(json.get<double>()));
  return none();
}

const List* Value::list() const noexcept {
  const auto* list = get_if<std::shared_ptr<const List>>();
  return list != nullptr ? list->get() : nullptr;
}

const Map* Value::map() const noexcept {
  const auto* map = get_if<std::shared_ptr<const Map>>();
  return map != nullptr ? map->get() : nullptr;
}

bool Value::is_number() const noexcept {
  return get_if<bool>() != nullptr || get_if<std::int64_t>() != nullptr ||
         get_if<double>() != nullptr;
}

double Value::number() const noexcept {
  if (const bool* flag = get_if<bool>()) return *flag ? 1 : 0;
  if (const auto* whole = get_if<std::int64_t>()) return static_cast<double>(*whole);
  const double* real = get_if<double>();
  return real != nullptr ? *real : 0;
}

bool Value::truthy() const noexcept {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (const std::string* t = text()) return !t->empty();
  if (const List* l = list()) return !l->empty();
  if (const Map* m = map()) return !m->entries().empty();
  return true;
}

const char* Value::type_name() const noexcept {
  constexpr const char* kNames[] = {"undefined",      "none",      "a boolean",
                                    "a whole number", "a number",  "a string",
                                    "a list",         "a mapping", "a namespace"};
  return kNames[any_.index()];
}

std::string Value::str() const {
  if (const std::string* t = text()) return *t;
  return is_undefined() ? std::string{} : repr();
}

std::string Value::repr() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "None";
  if (const bool* flag = get_if<bool>()) return *flag ? "True" : "False";
  if (const auto* whole = get_if<std::int64_t>()) return std::to_string(*whole);
  if (const double* real = get_if<double>()) return float_text(*real);
  if (const std::string* t = text()) return quoted(*t);
  std::string out;
  if (const List* l = list()) {
    for (const Value& entry : *l) out += (out.empty() ? "" : ", ") + entry.repr();
    return "[" + out + "]";
  }
  if (const Map* m = map()) {
    for (const auto& [key, entry] : m->entries()) {
      out += (out.empty() ? "" : ", ") + quoted(key) + ": " + entry.repr();
    }
    return "{" + out + "}";
  }
  return "<Namespace>";
}

bool operator==(const Value& a, const Value& b) noexcept {
  if (a.is_number() && b.is_number()) {
    const auto* left = a.get_if<std::int64_t>();
    const auto* right = b.get_if<std::int64_t>();
    return left != nullptr && right != nullptr ? *left == *right : a.number() == b.number();
  }
  if (a.any().index() != b.any().index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (const std::string* text = a.text()) return *text == *b.text();
  if (const List* list = a.list()) return *list == *b.list();
  if (const Map* map = a.map()) {
    const Map& other = *b.map();
    return map->entries().size() == other.entries().size() &&
           std::all_of(map->entries().begin(), map->entries().end(), [&other](const auto& entry) {
             const Value* found = other.find(entry.first);
             return found != nullptr && *found == entry.second;
           });
  }
  return *a.get_if<std::shared_ptr<Value::Namespace>>() ==
         *b.get_if<std::shared_ptr<Value::Namespace>>();
}

bool write_json(const Value& value, int indent, std::string& out) {
  return write(value, indent, 0, out);
}

}  // namespace kvtier::jinja
