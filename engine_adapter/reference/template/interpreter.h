// Walks a template's tree: runs its statements, and calls what its expressions call. One render;
// one thread.
//
// It owns what the render has: the variables (Scopes), what is written (Output), functions and
// their namespaces (Functions), the expressions' values (Evaluator). Macros and recursive loops are
// kept to its end, since values refer to them.
#pragma once

#include <deque>
#include <string>

#include "engine_adapter/reference/template/builtins/functions.h"
#include "engine_adapter/reference/template/evaluator.h"
#include "engine_adapter/reference/template/nesting.h"
#include "engine_adapter/reference/template/output.h"
#include "engine_adapter/reference/template/scopes.h"
#include "engine_adapter/reference/template/syntax/ast.h"

namespace kvtier::jinja {

struct MacroClosure {
  const Statement* macro;
  Scopes::Stack scopes;
};

struct LoopClosure {
  const Statement* loop;
  Scopes::Stack scopes;
};

class Interpreter final : private Calls {
 public:
  // `variables` outlives it.
  Interpreter(const Map& variables, std::int64_t now, const RenderLimits& limits);
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Throws Fault.
  std::string run(const Block& block);

 private:
  enum class Flow : unsigned char { on, break_, continue_ };

  Flow execute(const Block& block);
  Flow execute(const Statement& statement);
  Flow execute_branch(const Statement& statement);
  void execute_call(const Statement& statement);
  void execute_scope(const Statement& statement);
  void execute_capture(const Statement& statement);
  void assign(const Target& target, const Value& value);

  void begin_loop(const Statement& statement);
  void run_loop(const Statement& statement, List items, std::int64_t level,
                const LoopClosure* recursive);
  Value make_macro(const Statement& statement);

  Value call(const Value& callee, const Arguments& arguments) override;
  Value call_macro(const MacroClosure& closure, const Arguments& arguments);
  Value call_loop(const Loop& loop, const Arguments& arguments);

  Meter meter_;
  Nesting nesting_;
  Scopes scopes_;
  Output output_;
  std::deque<MacroClosure> macros_;
  std::deque<LoopClosure> loops_;
  Functions functions_;
  Evaluator evaluator_;
};

}  // namespace kvtier::jinja
