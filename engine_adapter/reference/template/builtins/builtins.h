// The filters, tests, attributes and methods that templates have. All count what they do and throw
// Fault.
#pragma once

#include <array>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine_adapter/reference/template/value/value.h"

namespace kvtier::jinja {

struct Arguments {
  List plain;
  std::vector<std::pair<std::string, Value>> named;
};

// The arguments of one call by the names that Python gives them; a name that begins with '/' has
// none there.
class Parameters {
 public:
  Parameters(Meter& meter, std::string_view callee, const Arguments& arguments,
             std::initializer_list<std::string_view> names);

  // Null where it was not given.
  const Value* at(std::size_t i) const noexcept { return found_[i]; }
  const Value& needed(std::size_t i) const;
  // Null also where it is none.
  const std::string* text(std::size_t i) const;
  const std::string& needed_text(std::size_t i) const;
  std::int64_t whole(std::size_t i, std::int64_t otherwise) const;
  bool flag(std::size_t i, bool otherwise) const;

 private:
  Meter& meter_;
  const std::string_view callee_;
  std::array<const Value*, 6> found_{};
};

using Filter = Value (*)(Meter&, const Value&, const Arguments&);
using Test = bool (*)(Meter&, const Value&, const Arguments&);

// Null for one that there is not.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);
// "the filter 'x' is not supported; supported are ..."
std::string unknown_filter(std::string_view name);
std::string unknown_test(std::string_view name);

// object.name and object[key]
Value attribute_of(Meter& meter, const Value& object, const std::string& name);
Value item_of(Meter& meter, const Value& object, const Value& key);
// "a.b.0" of filters like map and sort; `otherwise`, where there is one, for what is undefined.
Value path_of(Meter& meter, const Value& object, const Value& path,
              const Value* otherwise = nullptr);

Value call_method(Meter& meter, const Callable& method, const Arguments& arguments);
// Those of strings; `self` is one.
bool is_text_method(std::string_view name) noexcept;
Value call_text_method(Meter& meter, const Value& self, const std::string& name,
                       const Arguments& arguments);

// The tables, by what they are about.
Filter find_text_filter(std::string_view name) noexcept;
Filter find_number_filter(std::string_view name) noexcept;
Filter find_list_filter(std::string_view name) noexcept;
Filter find_choice_filter(std::string_view name) noexcept;

}  // namespace kvtier::jinja
