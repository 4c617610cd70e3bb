// What Python's operators do with values. All count what they do and throw Fault.
#pragma once

#include <string>

#include "engine_adapter/reference/template/value/value.h"

namespace kvtier::jinja {

enum class Operator : unsigned char {
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  concatenate,
  equal,
  unequal,
  less,
  greater,
  at_most,
  at_least,
  in,
  not_in,
  // These decide whether the right side is looked at.
  and_,
  or_,
};
const char* sign_of(Operator op) noexcept;

bool equal(Meter& meter, const Value& a, const Value& b);
// Below 0, 0, above 0.
int order(Meter& meter, const Value& a, const Value& b, Operator op = Operator::less);
bool contains(Meter& meter, const Value& container, const Value& value);
// Any but `and` and `or`.
Value apply(Meter& meter, Operator op, const Value& a, const Value& b);
Value negate(Meter& meter, const Value& value);
[[noreturn]] void fail_undefined(Meter& meter, const Value& value);

// What a loop over it goes through; an iterator is read to its end.
List elements_of(Meter& meter, const Value& value);
List characters_of(Meter& meter, const std::string& text);
std::int64_t length_of(Meter& meter, const Value& value);
Value slice(Meter& meter, const Value& object, const Value (&bounds)[3]);

}  // namespace kvtier::jinja
