// What may follow `is`.
#include <cmath>

#include "engine_adapter/reference/template/builtins/builtins.h"
#include "engine_adapter/reference/template/value/operators.h"
#include "engine_adapter/reference/template/value/unicode.h"
#include "engine_adapter/reference/template/value/write.h"

namespace kvtier::jinja {
namespace {

const Value& argument_of(Meter& meter, const Arguments& arguments) {
  if (arguments.plain.size() != 1 || !arguments.named.empty())
    meter.fail("a test wants one argument");
  return arguments.plain[0];
}

// Of tests without an argument.
template <bool (*kHolds)(const Value&)>
bool alone(Meter& meter, const Value& value, const Arguments& arguments) {
  if (!arguments.plain.empty() || !arguments.named.empty()) meter.fail("a test wants no argument");
  return kHolds(value);
}

template <Operator kOperator>
bool compared(Meter& meter, const Value& value, const Arguments& arguments) {
  return apply(meter, kOperator, value, argument_of(meter, arguments)).truthy();
}

bool is_defined(const Value& value) {
  return !value.is_undefined();
}
bool is_undefined(const Value& value) {
  return value.is_undefined();
}
bool is_none(const Value& value) {
  return value.is_none();
}
bool is_string(const Value& value) {
  return value.text() != nullptr;
}
bool is_mapping(const Value& value) {
  return value.map() != nullptr;
}
bool is_boolean(const Value& value) {
  return value.get_if<bool>() != nullptr;
}
bool is_true(const Value& value) {
  return is_boolean(value) && value.truthy();
}
bool is_false(const Value& value) {
  return is_boolean(value) && !value.truthy();
}
bool is_integer(const Value& value) {
  return value.get_if<std::int64_t>() != nullptr;
}
bool is_float(const Value& value) {
  return value.get_if<double>() != nullptr;
}
bool is_number(const Value& value) {
  return value.is_number();
}
// An undefined value is a sequence, of nothing.
bool is_sequence(const Value& value) {
  const Sequence* sequence = value.sequence();
  return value.text() != nullptr || value.map() != nullptr || value.is_undefined() ||
         (sequence != nullptr && sequence->kind <= Sequence::Kind::range);
}
bool is_iterable(const Value& value) {
  return is_sequence(value) || value.sequence() != nullptr || value.shared<Iterator>() != nullptr ||
         value.shared<Loop>() != nullptr;
}
bool is_callable(const Value& value) {
  return value.shared<const Callable>() != nullptr || value.shared<Loop>() != nullptr;
}
bool is_escaped(const Value& value) {
  return value.is_markup();
}

template <bool kUpper>
bool has_case(Meter& meter, const Value& value, const Arguments&) {
  const Value text = make_text(meter, str_of(meter, value));
  return call_text_method(meter, text, kUpper ? "isupper" : "islower", {}).truthy();
}

template <std::int64_t kRest>
bool has_rest(Meter& meter, const Value& value, const Arguments&) {
  return apply(meter, Operator::modulo, value, Value::of(std::int64_t{2})).number() == kRest;
}

bool divides(Meter& meter, const Value& value, const Arguments& arguments) {
  return apply(meter, Operator::modulo, value, argument_of(meter, arguments)).number() == 0;
}

// Small values have no identity of their own here: those of one type that are equal are the same.
bool is_same(Meter& meter, const Value& value, const Arguments& arguments) {
  const Value& other = argument_of(meter, arguments);
  if (value.any().index() != other.any().index()) return false;
  if (value.is_number() || value.is_none() || value.text() != nullptr) {
    return equal(meter, value, other);
  }
  return !value.is_undefined() && value.sequence() == other.sequence() &&
         value.map() == other.map() && value.shared<Namespace>() == other.shared<Namespace>();
}

bool names_filter(Meter& meter, const Value& value, const Arguments&) {
  return value.text() != nullptr && find_filter(str_of(meter, value)) != nullptr;
}
bool names_test(Meter& meter, const Value& value, const Arguments&) {
  return value.text() != nullptr && find_test(str_of(meter, value)) != nullptr;
}

constexpr std::pair<std::string_view, Test> kTests[] = {
    {"defined", alone<is_defined>},
    {"undefined", alone<is_undefined>},
    {"none", alone<is_none>},
    {"string", alone<is_string>},
    {"mapping", alone<is_mapping>},
    {"boolean", alone<is_boolean>},
    {"true", alone<is_true>},
    {"false", alone<is_false>},
    {"integer", alone<is_integer>},
    {"float", alone<is_float>},
    {"number", alone<is_number>},
    {"sequence", alone<is_sequence>},
    {"iterable", alone<is_iterable>},
    {"callable", alone<is_callable>},
    {"escaped", alone<is_escaped>},
    {"upper", has_case<true>},
    {"lower", has_case<false>},
    {"odd", has_rest<1>},
    {"even", has_rest<0>},
    {"divisibleby", divides},
    {"sameas", is_same},
    {"filter", names_filter},
    {"test", names_test},
    {"in", compared<Operator::in>},
    {"==", compared<Operator::equal>},
    {"eq", compared<Operator::equal>},
    {"equalto", compared<Operator::equal>},
    {"!=", compared<Operator::unequal>},
    {"ne", compared<Operator::unequal>},
    {">", compared<Operator::greater>},
    {"gt", compared<Operator::greater>},
    {"greaterthan", compared<Operator::greater>},
    {"<", compared<Operator::less>},
    {"lt", compared<Operator::less>},
    {"lessthan", compared<Operator::less>},
    {">=", compared<Operator::at_least>},
    {"ge", compared<Operator::at_least>},
    {"<=", compared<Operator::at_most>},
    {"le", compared<Operator::at_most>},
};

}  // namespace

Test find_test(std::string_view name) {
  for (const auto& [known, test] : kTests) {
    if (known == name) return test;
  }
  return nullptr;
}

std::string unknown_test(std::string_view name) {
  std::string supported;
  for (const auto& one : kTests)
    supported += (supported.empty() ? "" : ", ") + std::string(one.first);
  return "the test '" + std::string(name) + "' is not supported; supported are " + supported;
}

}  // namespace kvtier::jinja
