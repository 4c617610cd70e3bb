// The values of a template: what Jinja has of Python's. Everything is shared and never changes, but
// that a namespace() is assigned to, an iterator moves on and a loop goes round.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "engine_adapter/reference/template/value/meter.h"

namespace kvtier::jinja {

using OrderedJson = nlohmann::ordered_json;

class Value;
class Map;
struct Sequence;
struct Iterator;
struct Namespace;
struct Callable;
struct Loop;
using List = std::vector<Value>;

// A name that has no value, which errors tell.
struct Undefined {
  std::shared_ptr<const std::string> name;
  const std::string& what() const noexcept;
};

struct Text {
  std::string bytes;
  bool markup = false;  // of the filters safe and escape: what is added to it is escaped
};

class Value {
 public:
  using Any = std::variant<
      Undefined, std::nullptr_t, bool, std::int64_t, double, std::shared_ptr<const Text>,
      std::shared_ptr<const Sequence>, std::shared_ptr<const Map>, std::shared_ptr<Namespace>,
      std::shared_ptr<Iterator>, std::shared_ptr<const Callable>, std::shared_ptr<Loop>>;

  Value() : any_(Undefined{}) {}
  Value(Any any) : any_(std::move(any)) {}
  static Value undefined(const std::string& name);
  static Value none() { return Value(Any(nullptr)); }
  static Value of(bool value) { return Value(Any(value)); }
  static Value of(std::int64_t value) { return Value(Any(value)); }
  static Value of(double value) { return Value(Any(value)); }
  static Value of(std::string text, bool markup = false);
  static Value of(List list);
  static Value of(Map map);
  static Value from_json(const OrderedJson& json);

  template <class T>
  const T* get_if() const noexcept {
    return std::get_if<T>(&any_);
  }
  // What it points to; null where it is something else.
  template <class T>
  T* shared() const noexcept {
    const auto* found = std::get_if<std::shared_ptr<T>>(&any_);
    return found != nullptr ? found->get() : nullptr;
  }
  const Sequence* sequence() const noexcept { return shared<const Sequence>(); }
  const Map* map() const noexcept { return shared<const Map>(); }
  const std::string* text() const noexcept;
  bool is_markup() const noexcept;
  bool is_undefined() const noexcept { return std::holds_alternative<Undefined>(any_); }
  bool is_none() const noexcept { return std::holds_alternative<std::nullptr_t>(any_); }
  bool is_number() const noexcept;  // true and false are 1 and 0
  double number() const noexcept;   // of a number
  // Of a whole number, true or false.
  bool is_whole() const noexcept;
  std::int64_t whole() const noexcept;

  bool truthy() const noexcept;
  const char* type_name() const noexcept;  // "a string"
  int depth() const noexcept;              // 0 for what holds nothing

  const Any& any() const noexcept { return any_; }

 private:
  Any any_;
};

// Keys are strings, in the order in which they were given.
class Map {
 public:
  const Value* find(std::string_view key) const noexcept;
  void set(std::string key, Value value);
  const std::vector<std::pair<std::string, Value>>& entries() const noexcept { return entries_; }
  int depth() const noexcept { return depth_; }
  void clear();

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>{}(text);
    }
  };
  std::vector<std::pair<std::string, Value>> entries_;
  // Of a map with more than a few entries.
  std::unordered_map<std::string, std::size_t, Hash, std::equal_to<>> places_;
  int depth_ = 1;
};

struct Sequence {
  enum class Kind : unsigned char { list, tuple, group, range, keys, values, items } kind;
  List items;
  int depth = 1;
};

// What filters like map() give: read once.
struct Iterator {
  List items;
  std::size_t next = 0;
  int depth = 1;
};

// Lists may hold it and it may hold them: the interpreter, which knows all of its own, empties them
// at its end.
struct Namespace {
  Map attributes;
};

struct MacroClosure;  // the interpreter's

// A function, a method of `self`, or a macro.
struct Callable {
  enum class Kind : unsigned char { function, method, macro } kind;
  std::string name;
  Value self{};
  const MacroClosure* macro = nullptr;
};

struct LoopClosure;

// The variable `loop` of one loop, whichever round it is in.
struct Loop {
  List items;
  std::size_t round = 0;
  std::int64_t level = 1;
  int depth = 1;
  const LoopClosure* recursive = nullptr;
  Value changed{};  // what loop.changed() was last given
  bool asked_changed = false;
};

// These count what they make and refuse what is nested too deeply. They throw Fault.
Value make_text(Meter& meter, std::string text, bool markup = false);
Value make_sequence(Meter& meter, List items, Sequence::Kind kind = Sequence::Kind::list);
Value make_map(Meter& meter, Map map);
Value make_iterator(Meter& meter, List items);
int depth_of(Meter& meter, const List& items);

}  // namespace kvtier::jinja
