// Values as text.
#pragma once

#include <string>

#include "engine_adapter/reference/template/value/value.h"

namespace kvtier::jinja {

// All count what they write and throw Fault.
// Python's str(), empty for what is undefined.
std::string str_of(Meter& meter, const Value& value);
std::string repr_of(Meter& meter, const Value& value);

struct JsonStyle {
  int indent = -1;      // below 0: on one line
  std::string between;  // elements
  std::string after_key = ": ";
  bool ascii = false;
  bool sorted = false;
};
std::string json_of(Meter& meter, const Value& value, const JsonStyle& style);

// "%s and %d" % arguments.
std::string percent_format(Meter& meter, const std::string& format, const List& arguments,
                           const Map* named);
// '{} {0} {name}'.format(...).
std::string brace_format(Meter& meter, const std::string& format, const List& arguments,
                         const Map& named);

}  // namespace kvtier::jinja
