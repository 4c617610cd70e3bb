// Filters, tests, functions and methods that templates may call.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine_adapter/jinja/value.h"

namespace kvtier::jinja {

struct Arguments {
  std::vector<Value> plain;
  std::vector<std::pair<std::string, Value>> named;
};

// All throw Fault, naming what is not supported.
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments,
                   int line);
bool apply_test(const std::string& name, const Value& value, const std::vector<Value>& arguments,
                int line);
Value call_method(const Value& object, const std::string& name, const Arguments& arguments,
                  int line);
bool contains(const Value& container, const Value& value, int line);

// Characters, not bytes; malformed UTF-8 counts by bytes.
std::vector<std::string> characters_of(const std::string& text);

}  // namespace kvtier::jinja
