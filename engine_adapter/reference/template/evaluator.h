// The values of a template's expressions. One rendering's, on one thread.
//
// What a call does is others' business (Calls), and nothing is set here.
#pragma once

#include <string>

#include "engine_adapter/reference/template/builtins/functions.h"
#include "engine_adapter/reference/template/nesting.h"
#include "engine_adapter/reference/template/scopes.h"
#include "engine_adapter/reference/template/syntax/ast.h"

namespace kvtier::jinja {

// Calls what an expression calls: a function, a method, a macro, or a recursive loop.
class Calls {
 public:
  // Throws Fault.
  virtual Value call(const Value& callee, const Arguments& arguments) = 0;

 protected:
  ~Calls() = default;
};

class Evaluator {
 public:
  // All outlive it.
  Evaluator(Meter& meter, Nesting& nesting, const Scopes& scopes, const Functions& functions,
            Calls& calls)
      : meter_(meter), nesting_(nesting), scopes_(scopes), functions_(functions), calls_(calls) {}
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  // All throw Fault.
  Value evaluate(const Expression& e);
  // Of what an expression calls, a filter or a test.
  Arguments arguments_of(const Expression& e);
  Value look_up(const std::string& name) const;
  // What Expression::Kind::captured stands for.
  void set_captured(Value value) { captured_ = std::move(value); }

 private:
  Value evaluate_list(const Expression& e, Sequence::Kind kind);
  Value evaluate_map(const Expression& e);
  Value evaluate_slice(const Expression& e);
  Value evaluate_binary(const Expression& e);
  Value evaluate_chain(const Expression& e);
  Value evaluate_filter(const Expression& e);
  Value evaluate_test(const Expression& e);
  Value evaluate_sign(const Expression& e);

  Meter& meter_;
  Nesting& nesting_;
  const Scopes& scopes_;
  const Functions& functions_;
  Calls& calls_;
  Value captured_;
};

}  // namespace kvtier::jinja
