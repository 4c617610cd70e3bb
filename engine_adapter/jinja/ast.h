// A template as a tree.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine_adapter/jinja/value.h"

namespace kvtier::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind : unsigned char {
    literal,    // value
    name,       // text
    list,       // parts
    map,        // parts: key, value, key, value, ...
    attribute,  // parts[0] . text
    item,       // parts[0] [ parts[1] ]
    slice,      // parts[0] [ parts[1] : parts[2] : parts[3] ], null where left out
    call,       // parts[0] ( parts[1...], named )
    filter,     // parts[0] | text ( parts[1...], named )
    test,       // parts[0] is text ( parts[1...] )
    unary,      // text: "not", "-", "+"
    binary,     // text: an operator
    choice,     // parts[1] if parts[0] else parts[2], which may be null
  } kind;
  int line;
  std::string text;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Statement;
using Block = std::vector<Statement>;

struct Statement {
  enum class Kind : unsigned char {
    text,    // text
    print,   // value
    set,     // targets = value, or targets[0].attribute = value
    branch,  // if value: body; else: otherwise
    loop,    // for targets in value [if condition]: body; else: otherwise
    break_,  // of the loop around it
    continue_,
  } kind;
  int line;
  std::string text;
  std::vector<std::string> targets;
  std::string attribute;
  ExpressionPtr value;
  ExpressionPtr condition;
  Block body;
  Block otherwise;
};

// Throws Fault, naming a construct that is not supported.
Block parse(std::string_view source);

}  // namespace kvtier::jinja
