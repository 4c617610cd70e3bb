// Walks a template's tree. One render; one thread.
#pragma once

#include <string>
#include <vector>

#include "engine_adapter/jinja/ast.h"
#include "engine_adapter/jinja/builtins.h"
#include "engine_adapter/jinja/template.h"

namespace kvtier::jinja {

class Interpreter {
 public:
  Interpreter(const Map& variables, std::int64_t now, const RenderLimits& limits);

  // Throws Fault.
  std::string run(const Block& block);

 private:
  enum class Flow : unsigned char { on, break_, continue_ };

  Flow execute(const Block& block);
  Flow execute(const Statement& statement);
  Flow execute_loop(const Statement& statement);
  void set(const Statement& statement);
  void bind(const Statement& statement, const Value& value);
  void put(std::string_view text, int line);

  Value evaluate(const Expression& e);
  Value evaluate_binary(const Expression& e);
  Value evaluate_slice(const Expression& e);
  Value evaluate_call(const Expression& e);
  Value evaluate_unary(const Expression& e);
  Arguments arguments_of(const Expression& e);
  Value look_up(const std::string& name) const;
  Value item_of(const Value& object, const Value& key, int line) const;
  Value attribute_of(const Value& object, const std::string& name, int line) const;
  Value call_function(const std::string& name, const Arguments& arguments, int line);
  void step(int line);
  Value bounded(std::string text, int line) const;

  const Map& variables_;
  const std::int64_t now_;
  const RenderLimits limits_;
  std::size_t steps_ = 0;
  std::vector<Map> scopes_;
  std::string out_;
};

}  // namespace kvtier::jinja
