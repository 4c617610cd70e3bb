// What the parts of a tokenizer.json have in common: a type, and patterns that are a text
// ("String") or an expression ("Regex").
#pragma once

#include <string>

#include "engine_adapter/reference/files/json.h"
#include "engine_adapter/reference/tokenizer/splitter.h"

namespace kvtier::engine {

// The part's "type"; empty where it has none.
std::string type_of(const Json& part);

// The splitter of part's "pattern". Errors: malformed, invalid, naming `where`.
Result<Splitter> compile_pattern(const Json& part, const std::string& where, SplitBehavior behavior,
                                 bool invert);

}  // namespace kvtier::engine
