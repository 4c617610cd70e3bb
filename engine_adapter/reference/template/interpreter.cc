#include "engine_adapter/reference/template/interpreter.h"

#include <utility>

#include "engine_adapter/reference/template/value/write.h"

namespace kvtier::jinja {
namespace {

using SK = Statement::Kind;

}  // namespace

Interpreter::Interpreter(const Map& variables, std::int64_t now, const RenderLimits& limits)
    : variables_(variables), now_(now), meter_(limits) {
  push_scope();
}

// All are held here while each is emptied, so that a chain of them does not go down one by one,
// each from within the one before.
Interpreter::~Interpreter() {
  for (const auto& space : namespaces_) space->attributes.clear();
}

std::string Interpreter::run(const Block& block) {
  execute(block);
  return std::move(out_);
}

void Interpreter::put(std::string_view text) {
  meter_.put(text.size());
  out_ += text;
}

void Interpreter::put(const Value& value) {
  const std::string* text = value.text();
  if (text != nullptr) return put(std::string_view(*text));
  put(std::string_view(str_of(meter_, value)));
}

std::string Interpreter::captured(const Block& body) {
  std::string before = std::exchange(out_, {});
  push_scope();
  execute(body);
  scopes_.pop_back();
  return std::exchange(out_, std::move(before));
}

Interpreter::Flow Interpreter::execute(const Block& block) {
  const Deeper deeper(*this);
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
      put(std::string_view(statement.text));
      return Flow::on;
    case SK::print:
      put(evaluate(*statement.value));
      return Flow::on;
    case SK::set:
      assign(statement.target, evaluate(*statement.value));
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
      scopes_.back()->set(statement.text, make_macro(statement));
      return Flow::on;
    case SK::call: {
      const Value callee = evaluate(*statement.value->parts[0]);
      Arguments arguments = arguments_of(*statement.value);
      arguments.named.emplace_back("caller", make_macro(statement));
      put(call(callee, arguments));
      return Flow::on;
    }
    case SK::scope:
      execute_scope(statement);
      return Flow::on;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::execute_branch(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (!branch.condition || evaluate(*branch.condition).truthy()) return execute(branch.body);
  }
  return Flow::on;
}

void Interpreter::execute_scope(const Statement& statement) {
  const auto scope = std::make_shared<Map>();
  for (const Parameter& one : statement.parameters) {
    scope->set(one.name, evaluate(*one.otherwise));
  }
  scopes_.push_back(scope);
  execute(statement.body);
  scopes_.pop_back();
}

void Interpreter::execute_capture(const Statement& statement) {
  captured_ = make_text(meter_, captured(statement.body));
  meter_.line = statement.line;
  const Value value = evaluate(*statement.value);
  captured_ = {};
  if (statement.target.name.empty()) {
    put(value);
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
    scopes_.back()->set(target.name, value);
  } else {
    const Value object = look_up(target.name);
    auto* space = object.shared<Namespace>();
    if (space == nullptr) meter_.fail("'" + target.name + "' is no namespace()");
    space->attributes.set(target.attribute, value);
  }
}

// What is set in a round is forgotten after it, unless a macro that was made there sees it.
void Interpreter::renew_scope() {
  if (scopes_.back().use_count() > 1) {
    scopes_.back() = std::make_shared<Map>();
  } else {
    scopes_.back()->clear();
  }
}

void Interpreter::begin_loop(const Statement& statement) {
  List items = elements_of(meter_, evaluate(*statement.value));
  const LoopClosure* recursive = nullptr;
  if (statement.recursive) {
    meter_.make(sizeof(LoopClosure) + scopes_.size() * sizeof(scopes_[0]));
    recursive = &loops_.emplace_back(LoopClosure{&statement, scopes_});
  }
  run_loop(statement, std::move(items), 1, recursive);
}

void Interpreter::run_loop(const Statement& statement, List items, std::int64_t level,
                           const LoopClosure* recursive) {
  push_scope();
  if (statement.condition) {
    List kept;
    for (const Value& item : items) {
      renew_scope();
      assign(statement.target, item);
      if (evaluate(*statement.condition).truthy()) kept.push_back(item);
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
    renew_scope();
    scopes_.back()->set("loop", Value(Value::Any(loop)));
    assign(statement.target, loop->items[i]);
    flow = execute(statement.body);
  }
  loop->changed = {};  // which may hold the loop
  scopes_.pop_back();
  if (loop->items.empty()) execute(statement.otherwise);
}

Value Interpreter::make_macro(const Statement& statement) {
  meter_.make(sizeof(MacroClosure) + sizeof(Callable) + scopes_.size() * sizeof(scopes_[0]));
  const MacroClosure& closure = macros_.emplace_back(MacroClosure{&statement, scopes_});
  return Value(Value::Any(std::make_shared<const Callable>(
      Callable{.kind = Callable::Kind::macro, .name = statement.text, .macro = &closure})));
}

}  // namespace kvtier::jinja
