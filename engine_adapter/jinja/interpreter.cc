#include "engine_adapter/jinja/interpreter.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <optional>

#include "engine_adapter/jinja/fault.h"

namespace kvtier::jinja {
namespace {

using EK = Expression::Kind;
using SK = Statement::Kind;

Value whole(std::size_t number) {
  return Value::of(static_cast<std::int64_t>(number));
}

Value loop_variables(const List& elements, std::size_t i) {
  Map loop;
  const std::size_t count = elements.size();
  loop.set("index", whole(i + 1));
  loop.set("index0", whole(i));
  loop.set("revindex", whole(count - i));
  loop.set("revindex0", whole(count - i - 1));
  loop.set("first", Value::of(i == 0));
  loop.set("last", Value::of(i + 1 == count));
  loop.set("length", whole(count));
  if (i > 0) loop.set("previtem", elements[i - 1]);
  if (i + 1 < count) loop.set("nextitem", elements[i + 1]);
  return Value::of(std::move(loop));
}

Value checked(bool overflow, const std::int64_t& value, int line) {
  if (overflow) throw Fault(line, "a number is beyond 64 bits");
  return Value::of(value);
}

std::int64_t floor_divided(std::int64_t a, std::int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

Value whole_arithmetic(const std::string& sign, std::int64_t a, std::int64_t b, int line) {
  std::int64_t out = 0;
  if (sign == "+") return checked(__builtin_add_overflow(a, b, &out), out, line);
  if (sign == "-") return checked(__builtin_sub_overflow(a, b, &out), out, line);
  if (sign == "*") return checked(__builtin_mul_overflow(a, b, &out), out, line);
  if (b == 0) throw Fault(line, "division by zero");
  if (sign == "/") return Value(Value::Any(static_cast<double>(a) / static_cast<double>(b)));
  checked(b == -1 && a == INT64_MIN, 0, line);
  const std::int64_t quotient = floor_divided(a, b);
  return Value::of(sign == "//" ? quotient : a - quotient * b);
}

Value real_arithmetic(const std::string& sign, double a, double b, int line) {
  if (sign == "+") return Value(Value::Any(a + b));
  if (sign == "-") return Value(Value::Any(a - b));
  if (sign == "*") return Value(Value::Any(a * b));
  if (sign != "/") throw Fault(line, "'" + sign + "' is supported for whole numbers only");
  if (b == 0) throw Fault(line, "division by zero");
  return Value(Value::Any(a / b));
}

bool is_order(const std::string& sign) noexcept {
  return sign == "<" || sign == ">" || sign == "<=" || sign == ">=";
}

Value ordered(const std::string& sign, const Value& a, const Value& b, int line) {
  int order = 0;
  if (a.is_number() && b.is_number()) {
    order = a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
  } else if (a.text() != nullptr && b.text() != nullptr) {
    order = a.text()->compare(*b.text());
  } else {
    throw Fault(line, "'" + sign + "' between " + a.type_name() + " and " + b.type_name());
  }
  return Value::of(sign == "<"    ? order < 0
                   : sign == ">"  ? order > 0
                   : sign == "<=" ? order <= 0
                                  : order >= 0);
}

}  // namespace

Interpreter::Interpreter(const Map& variables, std::int64_t now, const RenderLimits& limits)
    : variables_(variables), now_(now), limits_(limits), scopes_(1) {}

std::string Interpreter::run(const Block& block) {
  execute(block);
  return std::move(out_);
}

void Interpreter::step(int line) {
  if (++steps_ > limits_.steps) {
    throw Fault(line, "more than " + std::to_string(limits_.steps) + " steps");
  }
}

void Interpreter::put(std::string_view text, int line) {
  if (out_.size() + text.size() > limits_.output_bytes) throw Fault(line, "the text is too long");
  out_ += text;
}

Value Interpreter::bounded(std::string text, int line) const {
  if (text.size() > limits_.output_bytes) throw Fault(line, "a string is too long");
  return Value::of(std::move(text));
}

Interpreter::Flow Interpreter::execute(const Block& block) {
  for (const Statement& statement : block) {
    if (const Flow flow = execute(statement); flow != Flow::on) return flow;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  step(statement.line);
  switch (statement.kind) {
    case SK::text:
      put(statement.text, statement.line);
      return Flow::on;
    case SK::print:
      put(evaluate(*statement.value).str(), statement.line);
      return Flow::on;
    case SK::set:
      set(statement);
      return Flow::on;
    case SK::branch:
      return execute(evaluate(*statement.value).truthy() ? statement.body : statement.otherwise);
    case SK::loop:
      return execute_loop(statement);
    case SK::break_:
      return Flow::break_;
    case SK::continue_:
      return Flow::continue_;
  }
  return Flow::on;
}

void Interpreter::set(const Statement& statement) {
  Value value = evaluate(*statement.value);
  if (statement.attribute.empty()) return bind(statement, value);
  const Value object = look_up(statement.targets[0]);
  const auto* space = object.get_if<std::shared_ptr<Value::Namespace>>();
  if (space == nullptr) {
    throw Fault(statement.line, "'" + statement.targets[0] + "' is no namespace()");
  }
  (*space)->attributes.set(statement.attribute, std::move(value));
}

void Interpreter::bind(const Statement& statement, const Value& value) {
  const auto& targets = statement.targets;
  if (targets.size() == 1) return scopes_.back().set(targets[0], value);
  const List* list = value.list();
  if (list == nullptr || list->size() != targets.size()) {
    throw Fault(statement.line, "wants " + std::to_string(targets.size()) + " values");
  }
  for (std::size_t i = 0; i < targets.size(); ++i) scopes_.back().set(targets[i], (*list)[i]);
}

// What is set in a round is forgotten after it.
Interpreter::Flow Interpreter::execute_loop(const Statement& statement) {
  const Value over = evaluate(*statement.value);
  List elements = *apply_filter("list", over, {}, statement.line).list();
  scopes_.emplace_back();
  if (statement.condition) {
    List kept;
    for (const Value& element : elements) {
      bind(statement, element);
      if (evaluate(*statement.condition).truthy()) kept.push_back(element);
    }
    elements = std::move(kept);
  }
  Flow flow = Flow::on;
  for (std::size_t i = 0; i < elements.size() && flow != Flow::break_; ++i) {
    step(statement.line);
    scopes_.back() = Map{};
    bind(statement, elements[i]);
    scopes_.back().set("loop", loop_variables(elements, i));
    flow = execute(statement.body);
  }
  scopes_.pop_back();
  return elements.empty() ? execute(statement.otherwise) : Flow::on;
}

Value Interpreter::look_up(const std::string& name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const Value* found = scope->find(name)) return *found;
  }
  const Value* found = variables_.find(name);
  return found != nullptr ? *found : Value(Undefined{name});
}

Value Interpreter::attribute_of(const Value& object, const std::string& name, int line) const {
  if (const auto* undefined = object.get_if<Undefined>()) {
    throw Fault(line, "'" + undefined->name + "' is undefined");
  }
  const Value* found = nullptr;
  if (const Map* map = object.map()) found = map->find(name);
  if (const auto* space = object.get_if<std::shared_ptr<Value::Namespace>>()) {
    found = (*space)->attributes.find(name);
  }
  return found != nullptr ? *found : Value(Undefined{name});
}

Value Interpreter::item_of(const Value& object, const Value& key, int line) const {
  if (key.text() != nullptr) return attribute_of(object, *key.text(), line);
  if (const auto* undefined = object.get_if<Undefined>()) {
    throw Fault(line, "'" + undefined->name + "' is undefined");
  }
  const auto* index = key.get_if<std::int64_t>();
  if (index == nullptr || (object.list() == nullptr && object.text() == nullptr)) {
    return Value(Undefined{key.str()});
  }
  const auto at = [&](const auto& elements) {
    const auto size = static_cast<std::int64_t>(elements.size());
    const std::int64_t i = *index < 0 ? *index + size : *index;
    return i >= 0 && i < size ? &elements[static_cast<std::size_t>(i)] : nullptr;
  };
  if (const List* list = object.list()) {
    const Value* found = at(*list);
    return found != nullptr ? *found : Value(Undefined{key.str()});
  }
  const auto characters = characters_of(*object.text());
  const std::string* found = at(characters);
  return found != nullptr ? Value::of(*found) : Value(Undefined{key.str()});
}

Value Interpreter::evaluate_slice(const Expression& e) {
  const Value object = evaluate(*e.parts[0]);
  std::array<std::optional<std::int64_t>, 3> bounds;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    if (!e.parts[i + 1]) continue;
    const Value bound = evaluate(*e.parts[i + 1]);
    if (bound.is_none()) continue;
    const auto* number = bound.get_if<std::int64_t>();
    if (number == nullptr) throw Fault(e.line, "a slice wants whole numbers");
    bounds[i] = *number;
  }
  const std::int64_t stride = bounds[2].value_or(1);
  if (stride == 0) throw Fault(e.line, "a slice's step is 0");
  if (object.list() == nullptr && object.text() == nullptr) {
    throw Fault(e.line, std::string(object.type_name()) + " cannot be sliced");
  }
  const List elements = *apply_filter("list", object, {}, e.line).list();
  const auto size = static_cast<std::int64_t>(elements.size());
  const std::int64_t low = stride > 0 ? 0 : -1;
  const std::int64_t high = stride > 0 ? size : size - 1;
  const auto settled = [&](std::optional<std::int64_t> bound, std::int64_t otherwise) {
    if (!bound) return otherwise;
    return std::clamp(*bound < 0 ? *bound + size : *bound, low, high);
  };
  const std::int64_t begin = settled(bounds[0], stride > 0 ? low : high);
  const std::int64_t end = settled(bounds[1], stride > 0 ? high : low);
  List found;
  for (std::int64_t i = begin; stride > 0 ? i < end : i > end; i += stride) {
    found.push_back(elements[static_cast<std::size_t>(i)]);
    if (stride > size || stride < -size) break;
  }
  Value list = Value::of(std::move(found));
  return object.list() != nullptr ? list : apply_filter("join", list, {}, e.line);
}

Arguments Interpreter::arguments_of(const Expression& e) {
  Arguments arguments;
  for (std::size_t i = 1; i < e.parts.size(); ++i) arguments.plain.push_back(evaluate(*e.parts[i]));
  for (const auto& [name, value] : e.named) arguments.named.emplace_back(name, evaluate(*value));
  return arguments;
}

Value Interpreter::evaluate_call(const Expression& e) {
  const Expression& callee = *e.parts[0];
  if (callee.kind == EK::attribute) {
    const Value object = evaluate(*callee.parts[0]);
    return call_method(object, callee.text, arguments_of(e), e.line);
  }
  if (callee.kind != EK::name) throw Fault(e.line, "only functions and methods can be called");
  return call_function(callee.text, arguments_of(e), e.line);
}

Value Interpreter::call_function(const std::string& name, const Arguments& arguments, int line) {
  const auto& plain = arguments.plain;
  if (name == "namespace" && plain.empty()) {
    auto made = std::make_shared<Value::Namespace>();
    for (const auto& [key, value] : arguments.named) made->attributes.set(key, value);
    return Value(Value::Any(std::move(made)));
  }
  if (!arguments.named.empty()) {
    throw Fault(line, "'" + name + "' is not supported with arguments by name");
  }
  if (name == "raise_exception" && plain.size() == 1) throw Raised(line, plain[0].str());
  if (name == "range" && !plain.empty() && plain.size() <= 3) {
    std::array<std::int64_t, 3> bounds{0, 0, 1};
    for (std::size_t i = 0; i < plain.size(); ++i) {
      const auto* number = plain[i].get_if<std::int64_t>();
      if (number == nullptr) throw Fault(line, "range wants whole numbers");
      bounds[plain.size() == 1 ? 1 : i] = *number;
    }
    if (bounds[2] == 0) throw Fault(line, "range's step is 0");
    List numbers;
    for (std::int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1];) {
      step(line);
      numbers.push_back(Value::of(i));
      if (__builtin_add_overflow(i, bounds[2], &i)) break;
    }
    return Value::of(std::move(numbers));
  }
  if (name == "strftime_now" && plain.size() == 1 && plain[0].text() != nullptr) {
    const std::time_t now = static_cast<std::time_t>(now_);
    std::tm parts{};
    gmtime_r(&now, &parts);
    char text[256];
    return Value::of(
        std::string(text, std::strftime(text, sizeof text, plain[0].text()->c_str(), &parts)));
  }
  throw Fault(line, "the function '" + name +
                        "' is not supported with these arguments; supported "
                        "are raise_exception, namespace, range and strftime_now");
}

Value Interpreter::evaluate_unary(const Expression& e) {
  const Value value = evaluate(*e.parts[0]);
  if (e.text == "not") return Value::of(!value.truthy());
  if (!value.is_number()) {
    throw Fault(e.line, "'" + e.text + "' before " + std::string(value.type_name()));
  }
  const Value zero = Value::of(std::int64_t{0});
  if (const double* real = value.get_if<double>()) {
    return Value(Value::Any(e.text == "-" ? -*real : *real));
  }
  return whole_arithmetic(e.text, 0, static_cast<std::int64_t>(value.number()), e.line);
}

Value Interpreter::evaluate_binary(const Expression& e) {
  const std::string& sign = e.text;
  Value a = evaluate(*e.parts[0]);
  if (sign == "and") return a.truthy() ? evaluate(*e.parts[1]) : a;
  if (sign == "or") return a.truthy() ? a : evaluate(*e.parts[1]);
  const Value b = evaluate(*e.parts[1]);
  if (sign == "==") return Value::of(a == b);
  if (sign == "!=") return Value::of(!(a == b));
  if (sign == "in") return Value::of(contains(b, a, e.line));
  if (sign == "not in") return Value::of(!contains(b, a, e.line));
  if (sign == "~") return bounded(a.str() + b.str(), e.line);
  if (is_order(sign)) return ordered(sign, a, b, e.line);
  if (sign == "+" && a.text() != nullptr && b.text() != nullptr) {
    return bounded(*a.text() + *b.text(), e.line);
  }
  if (sign == "+" && a.list() != nullptr && b.list() != nullptr) {
    List both = *a.list();
    steps_ += b.list()->size();
    both.insert(both.end(), b.list()->begin(), b.list()->end());
    return Value::of(std::move(both));
  }
  if (!a.is_number() || !b.is_number()) {
    const Undefined* undefined = a.is_undefined() ? a.get_if<Undefined>() : b.get_if<Undefined>();
    throw Fault(e.line, undefined != nullptr
                            ? "'" + undefined->name + "' is undefined"
                            : "'" + sign + "' between " + a.type_name() + " and " + b.type_name());
  }
  if (a.get_if<double>() != nullptr || b.get_if<double>() != nullptr) {
    return real_arithmetic(sign, a.number(), b.number(), e.line);
  }
  const auto integer = [](const Value& value) {
    const auto* number = value.get_if<std::int64_t>();
    return number != nullptr ? *number : static_cast<std::int64_t>(value.number());
  };
  return whole_arithmetic(sign, integer(a), integer(b), e.line);
}

Value Interpreter::evaluate(const Expression& e) {
  step(e.line);
  switch (e.kind) {
    case EK::literal:
      return e.value;
    case EK::name:
      return look_up(e.text);
    case EK::list: {
      List list;
      for (const auto& part : e.parts) list.push_back(evaluate(*part));
      return Value::of(std::move(list));
    }
    case EK::map: {
      Map map;
      for (std::size_t i = 0; i + 1 < e.parts.size(); i += 2) {
        const Value key = evaluate(*e.parts[i]);
        if (key.text() == nullptr) throw Fault(e.line, "a mapping's keys must be strings");
        map.set(*key.text(), evaluate(*e.parts[i + 1]));
      }
      return Value::of(std::move(map));
    }
    case EK::attribute:
      return attribute_of(evaluate(*e.parts[0]), e.text, e.line);
    case EK::item: {
      const Value object = evaluate(*e.parts[0]);
      return item_of(object, evaluate(*e.parts[1]), e.line);
    }
    case EK::slice:
      return evaluate_slice(e);
    case EK::call:
      return evaluate_call(e);
    case EK::filter: {
      const Value value = evaluate(*e.parts[0]);
      return apply_filter(e.text, value, arguments_of(e), e.line);
    }
    case EK::test: {
      const Value value = evaluate(*e.parts[0]);
      return Value::of(apply_test(e.text, value, arguments_of(e).plain, e.line));
    }
    case EK::unary:
      return evaluate_unary(e);
    case EK::binary:
      return evaluate_binary(e);
    case EK::choice:
      if (evaluate(*e.parts[0]).truthy()) return evaluate(*e.parts[1]);
      return e.parts[2] ? evaluate(*e.parts[2]) : Value();
  }
  return {};
}

}  // namespace kvtier::jinja
