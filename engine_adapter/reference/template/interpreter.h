// Walks a template's tree. One render; one thread.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine_adapter/reference/template/builtins/builtins.h"
#include "engine_adapter/reference/template/syntax/ast.h"

namespace kvtier::jinja {

// The innermost last. A macro sees those around its definition, whatever is set in them later.
using Scopes = std::vector<std::shared_ptr<Map>>;

struct MacroClosure {
  const Statement* macro;
  Scopes scopes;
};

struct LoopClosure {
  const Statement* loop;
  Scopes scopes;
};

class Interpreter {
 public:
  // Both outlive it.
  Interpreter(const Map& variables, std::int64_t now, const RenderLimits& limits);
  // Empties the namespaces: they may hold each other.
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Throws Fault.
  std::string run(const Block& block);

 private:
  enum class Flow : unsigned char { on, break_, continue_ };
  struct Deeper;

  Flow execute(const Block& block);
  Flow execute(const Statement& statement);
  Flow execute_branch(const Statement& statement);
  void run_loop(const Statement& statement, List items, std::int64_t level,
                const LoopClosure* recursive);
  void begin_loop(const Statement& statement);
  void execute_scope(const Statement& statement);
  void execute_capture(const Statement& statement);
  void assign(const Target& target, const Value& value);
  Value make_macro(const Statement& statement);
  void put(const Value& value);
  void put(std::string_view text);
  void push_scope() { scopes_.push_back(std::make_shared<Map>()); }
  void renew_scope();
  // What `body` writes, in a scope of its own.
  std::string captured(const Block& body);

  Value evaluate(const Expression& e);
  Value evaluate_list(const Expression& e, Sequence::Kind kind);
  Value evaluate_map(const Expression& e);
  Value evaluate_slice(const Expression& e);
  Value evaluate_binary(const Expression& e);
  Value evaluate_chain(const Expression& e);
  Value evaluate_filter(const Expression& e);
  Value evaluate_test(const Expression& e);
  Value evaluate_sign(const Expression& e);
  Arguments arguments_of(const Expression& e);
  Value look_up(const std::string& name);

  Value call(const Value& callee, const Arguments& arguments);
  Value call_macro(const Callable& callable, const Arguments& arguments);
  void bind_parameters(const Statement& macro, const Arguments& arguments);
  void bind_more(const Statement& macro, const Arguments& arguments);
  Value call_loop(const Loop& loop, const Arguments& arguments);
  Value call_function(const std::string& name, const Arguments& arguments);
  Value make_namespace(const Arguments& arguments);
  Value make_range(const Arguments& arguments);
  Value format_now(const Arguments& arguments);

  const Map& variables_;
  const std::int64_t now_;
  Meter meter_;
  int depth_ = 0;
  Scopes scopes_;
  std::string out_;
  Value captured_;  // what Expression::Kind::captured stands for
  std::deque<MacroClosure> macros_;
  std::deque<LoopClosure> loops_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

// Statements, expressions and calls under way: each a few frames of the stack.
struct Interpreter::Deeper {
  explicit Deeper(Interpreter& interpreter) : depth(interpreter.depth_) {
    if (++depth > kEvaluationDepthMax) interpreter.meter_.fail("nested too deeply");
  }
  ~Deeper() { --depth; }
  Deeper(const Deeper&) = delete;
  int& depth;
};

}  // namespace kvtier::jinja
