// The values of a template: what Jinja has of Python's. Lists and maps are shared and never
// change; a namespace() does.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvtier::jinja {

using OrderedJson = nlohmann::ordered_json;

class Value;
using List = std::vector<Value>;

struct Undefined {
  std::string name;
};

// Keys are strings, in the order in which they were given.
class Map {
 public:
  const Value* find(std::string_view key) const noexcept;
  void set(std::string key, Value value);
  const std::vector<std::pair<std::string, Value>>& entries() const noexcept { return entries_; }

 private:
  std::vector<std::pair<std::string, Value>> entries_;
};

class Value {
 public:
  struct Namespace;
  using Any = std::variant<Undefined, std::nullptr_t, bool, std::int64_t, double, std::string,
                           std::shared_ptr<const List>, std::shared_ptr<const Map>,
                           std::shared_ptr<Namespace>>;

  Value() : any_(Undefined{}) {}
  Value(Any any) : any_(std::move(any)) {}
  static Value none() { return Value(Any(nullptr)); }
  static Value of(bool value) { return Value(Any(value)); }
  static Value of(std::int64_t value) { return Value(Any(value)); }
  static Value of(std::string text) { return Value(Any(std::move(text))); }
  static Value of(List list) { return Value(Any(std::make_shared<const List>(std::move(list)))); }
  static Value of(Map map) { return Value(Any(std::make_shared<const Map>(std::move(map)))); }
  static Value from_json(const OrderedJson& json);

  template <class T>
  const T* get_if() const noexcept {
    return std::get_if<T>(&any_);
  }
  // Null where it is something else.
  const List* list() const noexcept;
  const Map* map() const noexcept;
  const std::string* text() const noexcept { return std::get_if<std::string>(&any_); }
  bool is_undefined() const noexcept { return std::holds_alternative<Undefined>(any_); }
  bool is_none() const noexcept { return std::holds_alternative<std::nullptr_t>(any_); }
  bool is_number() const noexcept;  // true and false are 1 and 0
  double number() const noexcept;   // of a number

  bool truthy() const noexcept;
  const char* type_name() const noexcept;  // "a string"

  std::string str() const;   // Python's str(), empty for what is undefined
  std::string repr() const;  // Python's repr()

  const Any& any() const noexcept { return any_; }

 private:
  Any any_;
};

struct Value::Namespace {
  Map attributes;
};

bool operator==(const Value& a, const Value& b) noexcept;

// json.dumps(value, ensure_ascii=False, indent=indent); indent below 0 is none. False where a value
// has no JSON form.
bool write_json(const Value& value, int indent, std::string& out);

}  // namespace kvtier::jinja
