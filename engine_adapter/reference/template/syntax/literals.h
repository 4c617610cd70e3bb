// Strings and numbers as they are written in a template.
#pragma once

#include <string>
#include <string_view>

namespace kvtier::jinja {

// What is between the quotes, with Python's escapes. Throws Fault.
std::string string_value(std::string_view written, int line);

struct NumberLiteral {
  std::size_t size;
  bool real;
  std::string value;  // without '_'; a whole number in decimal
};
// The number that `rest`, which begins with a digit, begins with. Throws Fault.
NumberLiteral number_at(std::string_view rest, int line);

}  // namespace kvtier::jinja
