#include "engine_adapter/reference/template/interpreter.h"

#include <utility>

#include "engine_adapter/reference/template/macro_arguments.h"

namespace kvtier::jinja {

using SK = Statement::Kind;

Interpreter::Interpreter(const Map& variables, std::int64_t now, const RenderLimits& limits)
    : meter_(limits),
      nesting_(meter_),
      scopes_(variables),
      output_(meter_),
      functions_(meter_, now),
      evaluator_(meter_, nesting_, scopes_, functions_, *this) {}

std::string Interpreter::run(const Block& block) {
  execute(block);
  return output_.take();
}

Interpreter::Flow Interpreter::execute(const Block& block) {
  const Nesting::Deeper deeper(nesting_);
  for (const Statement& statement : block) {
    if (const Flow flow = execute(statement); flow != Flow::on) return flow;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  meter_.line = statement.line;
  meter_.step();
  switch (statement.kind) {
    case SK::text:
      output_.put(std::string_view(statement.text));
      return Flow::on;
    case SK::print:
      output_.put(evaluator_.evaluate(*statement.value));
      return Flow::on;
    case SK::set:
      assign(statement.target, evaluator_.evaluate(*statement.value));
      return Flow::on;
    case SK::capture:
      execute_capture(statement);
      return Flow::on;
    case SK::branch:
      return execute_branch(statement);
    case SK::loop:
      begin_loop(statement);
      return Flow::on;
    case SK::break_:
      return Flow::break_;
    case SK::continue_:
      return Flow::continue_;
    case SK::macro:
      scopes_.innermost().set(statement.text, make_macro(statement));
      return Flow::on;
    case SK::call:
      execute_call(statement);
      return Flow::on;
    case SK::scope:
      execute_scope(statement);
      return Flow::on;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::execute_branch(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (!branch.condition || evaluator_.evaluate(*branch.condition).truthy())
      return execute(branch.body);
  }
  return Flow::on;
}

void Interpreter::execute_call(const Statement& statement) {
  const Value callee = evaluator_.evaluate(*statement.value->parts[0]);
  Arguments arguments = evaluator_.arguments_of(*statement.value);
  arguments.named.emplace_back("caller", make_macro(statement));
  output_.put(call(callee, arguments));
}

void Interpreter::execute_scope(const Statement& statement) {
  const auto scope = std::make_shared<Map>();
  for (const Parameter& one : statement.parameters) {
    scope->set(one.name, evaluator_.evaluate(*one.otherwise));
  }
  scopes_.push(scope);
  execute(statement.body);
  scopes_.pop();
}

void Interpreter::execute_capture(const Statement& statement) {
  std::string text = output_.caught([&] {
    scopes_.push();
    execute(statement.body);
    scopes_.pop();
  });
  evaluator_.set_captured(make_text(meter_, std::move(text)));
  meter_.line = statement.line;
  const Value value = evaluator_.evaluate(*statement.value);
  evaluator_.set_captured({});
  if (statement.target.name.empty()) {
    output_.put(value);
  } else {
    assign(statement.target, value);
  }
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (!target.several.empty()) {
    const List elements = elements_of(meter_, value);
    if (elements.size() != target.several.size()) {
      meter_.fail("wants " + std::to_string(target.several.size()) + " values, has " +
                  std::to_string(elements.size()));
    }
    for (std::size_t i = 0; i < elements.size(); ++i) assign(target.several[i], elements[i]);
  } else if (target.attribute.empty()) {
    scopes_.innermost().set(target.name, value);
  } else {
    const Value object = evaluator_.look_up(target.name);
    auto* space = object.shared<Namespace>();
    if (space == nullptr) meter_.fail("'" + target.name + "' is no namespace()");
    space->attributes.set(target.attribute, value);
  }
}

void Interpreter::begin_loop(const Statement& statement) {
  List items = elements_of(meter_, evaluator_.evaluate(*statement.value));
  const LoopClosure* recursive = nullptr;
  if (statement.recursive) {
    meter_.make(sizeof(LoopClosure) + scopes_.bytes());
    recursive = &loops_.emplace_back(LoopClosure{&statement, scopes_.stack()});
  }
  run_loop(statement, std::move(items), 1, recursive);
}

void Interpreter::run_loop(const Statement& statement, List items, std::int64_t level,
                           const LoopClosure* recursive) {
  scopes_.push();
  if (statement.condition) {
    List kept;
    for (const Value& item : items) {
      scopes_.renew();
      assign(statement.target, item);
      if (evaluator_.evaluate(*statement.condition).truthy()) kept.push_back(item);
    }
    items = std::move(kept);
  }
  const int depth = depth_of(meter_, items);
  const auto loop = std::make_shared<Loop>(
      Loop{.items = std::move(items), .level = level, .depth = depth, .recursive = recursive});
  Flow flow = Flow::on;
  for (std::size_t i = 0; i < loop->items.size() && flow != Flow::break_; ++i) {
    meter_.step();
    loop->round = i;
    // What is set in a round is forgotten after it, unless a macro that was made there sees it.
    scopes_.renew();
    scopes_.innermost().set("loop", Value(Value::Any(loop)));
    assign(statement.target, loop->items[i]);
    flow = execute(statement.body);
  }
  loop->changed = {};  // which may hold the loop
  scopes_.pop();
  if (loop->items.empty()) execute(statement.otherwise);
}

Value Interpreter::make_macro(const Statement& statement) {
  meter_.make(sizeof(MacroClosure) + sizeof(Callable) + scopes_.bytes());
  const MacroClosure& closure = macros_.emplace_back(MacroClosure{&statement, scopes_.stack()});
  return Value(Value::Any(std::make_shared<const Callable>(
      Callable{.kind = Callable::Kind::macro, .name = statement.text, .macro = &closure})));
}

Value Interpreter::call(const Value& callee, const Arguments& arguments) {
  const Nesting::Deeper deeper(nesting_);
  if (const auto* loop = callee.shared<Loop>()) return call_loop(*loop, arguments);
  const auto* callable = callee.shared<const Callable>();
  if (callee.is_undefined()) fail_undefined(meter_, callee);
  if (callable == nullptr) meter_.fail(std::string(callee.type_name()) + " cannot be called");
  switch (callable->kind) {
    case Callable::Kind::function:
      return functions_.call(callable->name, arguments);
    case Callable::Kind::method:
      return call_method(meter_, *callable, arguments);
    case Callable::Kind::macro:
      return call_macro(*callable->macro, arguments);
  }
  return {};
}

Value Interpreter::call_macro(const MacroClosure& closure, const Arguments& arguments) {
  const int line = meter_.line;
  Scopes::Stack outside = scopes_.exchange(closure.scopes);
  scopes_.push();
  bind_arguments(meter_, evaluator_, *closure.macro, arguments, scopes_.innermost());
  std::string text = output_.caught([&] { execute(closure.macro->body); });
  scopes_.exchange(std::move(outside));
  meter_.line = line;
  return make_text(meter_, std::move(text));
}

Value Interpreter::call_loop(const Loop& loop, const Arguments& arguments) {
  if (loop.recursive == nullptr) meter_.fail("the loop is not 'recursive'");
  if (arguments.plain.size() != 1 || !arguments.named.empty()) {
    meter_.fail("loop() wants one argument");
  }
  // The loop itself may go while this one runs.
  const LoopClosure& closure = *loop.recursive;
  const std::int64_t level = loop.level + 1;
  Scopes::Stack outside = scopes_.exchange(closure.scopes);
  std::string text = output_.caught(
      [&] { run_loop(*closure.loop, elements_of(meter_, arguments.plain[0]), level, &closure); });
  scopes_.exchange(std::move(outside));
  return make_text(meter_, std::move(text));
}

}  // namespace kvtier::jinja
