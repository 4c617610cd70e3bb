#include "engine_adapter/reference/template/evaluator.h"

namespace kvtier::jinja {

using EK = Expression::Kind;

Value Evaluator::look_up(const std::string& name) const {
  const Value* const found = scopes_.find(name);
  return found != nullptr ? *found : functions_.find(name);
}

Arguments Evaluator::arguments_of(const Expression& e) {
  Arguments arguments;
  for (std::size_t i = 1; i < e.parts.size(); ++i) arguments.plain.push_back(evaluate(*e.parts[i]));
  for (const auto& [name, value] : e.named) arguments.named.emplace_back(name, evaluate(*value));
  meter_.line = e.line;
  return arguments;
}

Value Evaluator::evaluate(const Expression& e) {
  const Nesting::Deeper deeper(nesting_);
  meter_.line = e.line;
  meter_.step();
  switch (e.kind) {
    case EK::literal:
      return e.value;
    case EK::name:
      return look_up(e.text);
    case EK::list:
      return evaluate_list(e, Sequence::Kind::list);
    case EK::tuple:
      return evaluate_list(e, Sequence::Kind::tuple);
    case EK::map:
      return evaluate_map(e);
    case EK::attribute:
      return attribute_of(meter_, evaluate(*e.parts[0]), e.text);
    case EK::item: {
      const Value object = evaluate(*e.parts[0]);
      return item_of(meter_, object, evaluate(*e.parts[1]));
    }
    case EK::slice:
      return evaluate_slice(e);
    case EK::call: {
      const Value callee = evaluate(*e.parts[0]);
      return calls_.call(callee, arguments_of(e));
    }
    case EK::filter:
      return evaluate_filter(e);
    case EK::test:
      return evaluate_test(e);
    case EK::not_:
      return Value::of(!evaluate(*e.parts[0]).truthy());
    case EK::negative:
    case EK::positive:
      return evaluate_sign(e);
    case EK::binary:
      return evaluate_binary(e);
    case EK::chain:
      return evaluate_chain(e);
    case EK::choice:
      if (evaluate(*e.parts[0]).truthy()) return evaluate(*e.parts[1]);
      return e.parts[2] ? evaluate(*e.parts[2]) : Value();
    case EK::captured:
      return captured_;
  }
  return {};
}

Value Evaluator::evaluate_list(const Expression& e, Sequence::Kind kind) {
  List items;
  items.reserve(e.parts.size());
  for (const auto& part : e.parts) items.push_back(evaluate(*part));
  return make_sequence(meter_, std::move(items), kind);
}

Value Evaluator::evaluate_map(const Expression& e) {
  Map map;
  for (std::size_t i = 0; i + 1 < e.parts.size(); i += 2) {
    const Value key = evaluate(*e.parts[i]);
    if (key.text() == nullptr) meter_.fail("a mapping's keys must be strings");
    map.set(*key.text(), evaluate(*e.parts[i + 1]));
  }
  return make_map(meter_, std::move(map));
}

Value Evaluator::evaluate_slice(const Expression& e) {
  const Value object = evaluate(*e.parts[0]);
  Value bounds[3];
  for (std::size_t i = 0; i < 3; ++i) {
    bounds[i] = e.parts[i + 1] ? evaluate(*e.parts[i + 1]) : Value::none();
  }
  meter_.line = e.line;
  return slice(meter_, object, bounds);
}

Value Evaluator::evaluate_binary(const Expression& e) {
  Value a = evaluate(*e.parts[0]);
  if (e.op == Operator::and_) return a.truthy() ? evaluate(*e.parts[1]) : a;
  if (e.op == Operator::or_) return a.truthy() ? a : evaluate(*e.parts[1]);
  const Value b = evaluate(*e.parts[1]);
  meter_.line = e.line;
  return apply(meter_, e.op, a, b);
}

// a < b < c: every value is computed once, and no more than are needed.
Value Evaluator::evaluate_chain(const Expression& e) {
  Value left = evaluate(*e.parts[0]);
  Value result;
  for (std::size_t i = 0; i < e.ops.size(); ++i) {
    Value right = evaluate(*e.parts[i + 1]);
    meter_.line = e.line;
    result = apply(meter_, e.ops[i], left, right);
    if (!result.truthy()) break;
    left = std::move(right);
  }
  return result;
}

Value Evaluator::evaluate_filter(const Expression& e) {
  const Value value = evaluate(*e.parts[0]);
  const Arguments arguments = arguments_of(e);
  if (e.filter == nullptr) meter_.fail(unknown_filter(e.text));
  return e.filter(meter_, value, arguments);
}

Value Evaluator::evaluate_test(const Expression& e) {
  const Value value = evaluate(*e.parts[0]);
  const Arguments arguments = arguments_of(e);
  if (e.test == nullptr) meter_.fail(unknown_test(e.text));
  return Value::of(e.test(meter_, value, arguments));
}

Value Evaluator::evaluate_sign(const Expression& e) {
  const Value value = evaluate(*e.parts[0]);
  meter_.line = e.line;
  if (e.kind == EK::negative) return negate(meter_, value);
  if (value.is_undefined()) fail_undefined(meter_, value);
  if (!value.is_number()) meter_.fail(std::string("'+' before ") + value.type_name());
  return value.is_whole() ? Value::of(value.whole()) : value;
}

}  // namespace kvtier::jinja
