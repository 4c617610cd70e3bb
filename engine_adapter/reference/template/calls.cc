// The interpreter's functions, macros and recursive loops.
#include <algorithm>
#include <array>
#include <ctime>

#include "engine_adapter/reference/template/interpreter.h"
#include "engine_adapter/reference/template/value/write.h"

namespace kvtier::jinja {
namespace {

const Value* named_argument(const Arguments& arguments, std::string_view name) {
  for (const auto& [key, value] : arguments.named) {
    if (key == name) return &value;
  }
  return nullptr;
}

bool has_parameter(const Statement& macro, std::string_view name) {
  return std::ranges::any_of(macro.parameters,
                             [name](const auto& one) { return one.name == name; });
}

}  // namespace

Value Interpreter::call(const Value& callee, const Arguments& arguments) {
  const Deeper deeper(*this);
  if (const auto* loop = callee.shared<Loop>()) return call_loop(*loop, arguments);
  const auto* callable = callee.shared<const Callable>();
  if (callee.is_undefined()) fail_undefined(meter_, callee);
  if (callable == nullptr) meter_.fail(std::string(callee.type_name()) + " cannot be called");
  switch (callable->kind) {
    case Callable::Kind::function:
      return call_function(callable->name, arguments);
    case Callable::Kind::method:
      return call_method(meter_, *callable, arguments);
    case Callable::Kind::macro:
      return call_macro(*callable, arguments);
  }
  return {};
}

Value Interpreter::call_macro(const Callable& callable, const Arguments& arguments) {
  const MacroClosure& closure = *callable.macro;
  const int line = meter_.line;
  Scopes outside = std::exchange(scopes_, closure.scopes);
  push_scope();
  bind_parameters(*closure.macro, arguments);
  bind_more(*closure.macro, arguments);
  std::string before = std::exchange(out_, {});
  execute(closure.macro->body);
  std::string text = std::exchange(out_, std::move(before));
  scopes_ = std::move(outside);
  meter_.line = line;
  return make_text(meter_, std::move(text));
}

void Interpreter::bind_parameters(const Statement& macro, const Arguments& arguments) {
  Map& scope = *scopes_.back();
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    const Value* given = named_argument(arguments, parameter.name);
    if (i < arguments.plain.size()) {
      if (given != nullptr) {
        meter_.fail("'" + macro.text + "' is given '" + parameter.name + "' twice");
      }
      given = &arguments.plain[i];
    }
    if (given != nullptr) {
      scope.set(parameter.name, *given);
    } else if (parameter.otherwise) {
      scope.set(parameter.name, evaluate(*parameter.otherwise));
    } else {
      scope.set(parameter.name, Value::undefined(parameter.name));
    }
  }
}

// What is beyond its parameters: varargs, kwargs and caller.
void Interpreter::bind_more(const Statement& macro, const Arguments& arguments) {
  Map& scope = *scopes_.back();
  List more;
  for (std::size_t i = macro.parameters.size(); i < arguments.plain.size(); ++i) {
    more.push_back(arguments.plain[i]);
  }
  if (!more.empty() && !macro.takes_more) {
    meter_.fail("the macro '" + macro.text + "' takes at most " +
                std::to_string(macro.parameters.size()) + " arguments");
  }
  if (!has_parameter(macro, "caller")) scope.set("caller", Value::undefined("caller"));
  Map named;
  for (const auto& [name, value] : arguments.named) {
    if (has_parameter(macro, name)) continue;
    if (name == "caller") {
      scope.set(name, value);
    } else if (macro.takes_named) {
      named.set(name, value);
    } else {
      meter_.fail("the macro '" + macro.text + "' has no parameter '" + name + "'");
    }
  }
  if (macro.takes_more) {
    scope.set("varargs", make_sequence(meter_, std::move(more), Sequence::Kind::tuple));
  }
  if (macro.takes_named) scope.set("kwargs", make_map(meter_, std::move(named)));
}

Value Interpreter::call_loop(const Loop& loop, const Arguments& arguments) {
  if (loop.recursive == nullptr) meter_.fail("the loop is not 'recursive'");
  if (arguments.plain.size() != 1 || !arguments.named.empty()) {
    meter_.fail("loop() wants one argument");
  }
  // The loop itself may go while this one runs.
  const LoopClosure& closure = *loop.recursive;
  const std::int64_t level = loop.level + 1;
  Scopes outside = std::exchange(scopes_, closure.scopes);
  std::string before = std::exchange(out_, {});
  run_loop(*closure.loop, elements_of(meter_, arguments.plain[0]), level, &closure);
  std::string text = std::exchange(out_, std::move(before));
  scopes_ = std::move(outside);
  return make_text(meter_, std::move(text));
}

Value Interpreter::call_function(const std::string& name, const Arguments& arguments) {
  if (name == "namespace") return make_namespace(arguments);
  if (name == "range") return make_range(arguments);
  if (name == "strftime_now") return format_now(arguments);
  if (name == "raise_exception") {
    const Parameters parameters(meter_, name, arguments, {"message"});
    throw Raised(meter_.line, str_of(meter_, parameters.needed(0)));
  }
  Map map;
  if (!arguments.plain.empty()) {
    if (arguments.plain.size() > 1 || arguments.plain[0].map() == nullptr) {
      meter_.fail("dict is supported of one mapping only");
    }
    map = *arguments.plain[0].map();
  }
  for (const auto& [key, value] : arguments.named) map.set(key, value);
  return make_map(meter_, std::move(map));
}

Value Interpreter::make_namespace(const Arguments& arguments) {
  auto made = std::make_shared<Namespace>();
  if (arguments.plain.size() > 1) meter_.fail("namespace takes at most one mapping");
  if (!arguments.plain.empty()) {
    if (arguments.plain[0].map() == nullptr) meter_.fail("namespace is supported of mappings only");
    made->attributes = *arguments.plain[0].map();
  }
  for (const auto& [key, value] : arguments.named) made->attributes.set(key, value);
  meter_.make(sizeof(Namespace) + made->attributes.entries().size() * 4 * sizeof(Value));
  namespaces_.push_back(made);
  return Value(Value::Any(std::move(made)));
}

Value Interpreter::make_range(const Arguments& arguments) {
  const Parameters parameters(meter_, "range", arguments, {"/start", "/stop", "/step"});
  for (std::size_t i = 0; i < arguments.plain.size(); ++i) {
    if (!arguments.plain[i].is_whole()) meter_.fail("range wants whole numbers");
  }
  std::int64_t begin = parameters.needed(0).whole();
  std::int64_t end = parameters.whole(1, 0);
  if (parameters.at(1) == nullptr) end = std::exchange(begin, 0);
  const std::int64_t stride = parameters.whole(2, 1);
  if (stride == 0) meter_.fail("range's step is 0");
  List numbers;
  for (std::int64_t i = begin; stride > 0 ? i < end : i > end;) {
    if (numbers.size() == kRangeMax) {
      meter_.fail("a range of more than " + std::to_string(kRangeMax) + " numbers");
    }
    numbers.push_back(Value::of(i));
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  return make_sequence(meter_, std::move(numbers), Sequence::Kind::range);
}

Value Interpreter::format_now(const Arguments& arguments) {
  const Parameters parameters(meter_, "strftime_now", arguments, {"format"});
  const std::string& format = parameters.needed_text(0);
  const auto now = static_cast<std::time_t>(now_);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[4096];
  const std::size_t size = std::strftime(text, sizeof text, format.c_str(), &parts);
  if (size == 0 && !format.empty()) meter_.fail("strftime_now: the format is too long, or nothing");
  return make_text(meter_, std::string(text, size));
}

}  // namespace kvtier::jinja
