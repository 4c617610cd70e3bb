// A template as a tree.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine_adapter/reference/template/builtins/builtins.h"
#include "engine_adapter/reference/template/value/operators.h"
#include "engine_adapter/reference/template/value/value.h"

namespace kvtier::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind : unsigned char {
    literal,    // value
    name,       // text
    list,       // parts
    tuple,      // parts
    map,        // parts: key, value, key, value, ...
    attribute,  // parts[0] . text
    item,       // parts[0] [ parts[1] ]
    slice,      // parts[0] [ parts[1] : parts[2] : parts[3] ], null where left out
    call,       // parts[0] ( parts[1...], named )
    filter,     // parts[0] | text ( parts[1...], named )
    test,       // parts[0] is text ( parts[1...], named )
    not_,       // parts[0]
    negative,   // parts[0]
    positive,   // parts[0]
    binary,     // parts[0] op parts[1]
    chain,      // parts[0] ops[0] parts[1] ops[1] parts[2] ...: each with the next
    choice,     // parts[1] if parts[0] else parts[2], which may be null
    captured,   // what the statement around it has written
  } kind;
  int line;
  int depth = 1;  // of the tree
  Operator op{};
  std::string text{};
  Filter filter = nullptr;
  Test test = nullptr;
  Value value{};
  std::vector<ExpressionPtr> parts{};
  std::vector<std::pair<std::string, ExpressionPtr>> named{};
  std::vector<Operator> ops{};
};

struct Statement;
using Block = std::vector<Statement>;

// What is assigned to: name, name.attribute, or several of them.
struct Target {
  std::string name{};
  std::string attribute{};
  std::vector<Target> several{};
};

struct Parameter {
  std::string name;
  ExpressionPtr otherwise;  // null: none
};

struct Branch {
  ExpressionPtr condition;  // null: else
  std::vector<Statement> body;
};

struct Statement {
  enum class Kind : unsigned char {
    text,     // text
    print,    // value
    set,      // target = value
    capture,  // body, as the expression `value` makes of it, into target; printed where it has none
    branch,   // branches
    loop,     // for target in value [if condition]: body; else: otherwise
    break_,   // of the loop around it
    continue_,
    macro,  // text ( parameters ): body
    call,   // the call `value`, whose caller() is ( parameters ): body
    scope,  // parameters with their values: body
  } kind;
  int line;
  std::string text{};
  Target target{};
  ExpressionPtr value{};
  ExpressionPtr condition{};
  std::vector<Parameter> parameters{};
  std::vector<Branch> branches{};
  Block body{};
  Block otherwise{};
  bool recursive = false;    // of a loop
  bool takes_more = false;   // a macro that reads varargs
  bool takes_named = false;  // or kwargs
};

// Throws Fault, naming a construct that is not supported.
Block parse(std::string_view source);

}  // namespace kvtier::jinja
