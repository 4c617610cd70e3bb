#include <algorithm>
#include <cstdlib>

#include "engine_adapter/reference/template/syntax/parser.h"

namespace kvtier::jinja {

Lexeme ExpressionParser::take() {
  Lexeme taken = here();
  skip();
  return taken;
}

bool ExpressionParser::is_sign(std::string_view value) const noexcept {
  return here().kind == LK::sign && here().value == value;
}
bool ExpressionParser::is_word(std::string_view value) const noexcept {
  return here().kind == LK::name && here().value == value;
}
bool ExpressionParser::take_sign(std::string_view value) {
  if (!is_sign(value)) return false;
  skip();
  return true;
}
bool ExpressionParser::take_word(std::string_view value) {
  if (!is_word(value)) return false;
  skip();
  return true;
}

std::string ExpressionParser::found() const {
  if (here().kind == LK::end) return "the end";
  return here().value.empty() ? "the end of a tag" : "'" + here().value + "'";
}

void ExpressionParser::expect_sign(std::string_view value) {
  if (take_sign(value)) return;
  throw Fault(here().line, "expected '" + std::string(value) + "', found " + found());
}
void ExpressionParser::expect(LK kind, const char* what) {
  if (here().kind != kind) {
    throw Fault(here().line, std::string("expected ") + what + ", found " + found());
  }
  skip();
}
std::string ExpressionParser::name() {
  if (here().kind != LK::name) throw Fault(here().line, "expected a name, found " + found());
  return take().value;
}

void ExpressionParser::fail_deep(int& depth) {
  --depth;
  throw Fault(here().line, "nested too deeply");
}

ExpressionPtr ExpressionParser::make(EK kind, int line, std::string text) {
  auto made = std::make_unique<Expression>(Expression{.kind = kind, .line = line});
  made->text = std::move(text);
  return made;
}

void ExpressionParser::add(Expression& to, ExpressionPtr part) {
  if (part) to.depth = std::max(to.depth, part->depth + 1);
  if (to.depth > kExpressionDepthMax) {
    throw Fault(to.line, "an expression has too many parts: more than " +
                             std::to_string(kExpressionDepthMax) + " in each other");
  }
  to.parts.push_back(std::move(part));
}

ExpressionPtr ExpressionParser::with(ExpressionPtr made, ExpressionPtr first,
                                     ExpressionPtr second) {
  add(*made, std::move(first));
  if (second) add(*made, std::move(second));
  return made;
}

ExpressionPtr ExpressionParser::binary(Operator op, int line, ExpressionPtr left,
                                       ExpressionPtr right) {
  auto made = make(EK::binary, line);
  made->op = op;
  return with(std::move(made), std::move(left), std::move(right));
}

ExpressionPtr ExpressionParser::tuple(bool whole) {
  auto first = whole ? expression() : disjunction();
  if (!is_sign(",")) return first;
  auto made = with(make(EK::tuple, here().line), std::move(first));
  while (take_sign(",")) {
    const bool end = is_sign(")") || is_sign("=") || is_word("in") || is_word("recursive") ||
                     here().kind == LK::block_end || here().kind == LK::print_end;
    if (end) break;
    add(*made, whole ? expression() : disjunction());
  }
  return made;
}

ExpressionPtr ExpressionParser::expression() {
  const Deeper deeper(*this);
  auto value = disjunction();
  while (is_word("if")) {
    const int line = take().line;
    auto made = make(EK::choice, line);
    add(*made, disjunction());
    add(*made, std::move(value));
    add(*made, take_word("else") ? expression() : nullptr);
    value = std::move(made);
  }
  return value;
}

ExpressionPtr ExpressionParser::disjunction() {
  auto left = conjunction();
  while (is_word("or")) {
    const int line = take().line;
    left = binary(Operator::or_, line, std::move(left), conjunction());
  }
  return left;
}

ExpressionPtr ExpressionParser::conjunction() {
  auto left = negation();
  while (is_word("and")) {
    const int line = take().line;
    left = binary(Operator::and_, line, std::move(left), negation());
  }
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  if (!is_word("not")) return comparison();
  const Deeper deeper(*this);
  auto made = make(EK::not_, take().line);
  return with(std::move(made), negation());
}

bool ExpressionParser::at_comparison(Operator& op) const noexcept {
  for (const Operator one : {Operator::equal, Operator::unequal, Operator::less, Operator::greater,
                             Operator::at_most, Operator::at_least}) {
    if (!is_sign(sign_of(one))) continue;
    op = one;
    return true;
  }
  op = is_word("in") ? Operator::in : Operator::not_in;
  return is_word("in") || (is_word("not") && ahead().kind == LK::name && ahead().value == "in");
}

ExpressionPtr ExpressionParser::comparison() {
  auto first = sum();
  Operator op{};
  if (!at_comparison(op)) return first;
  auto made = with(make(EK::chain, here().line), std::move(first));
  while (at_comparison(op)) {
    skip(op == Operator::not_in ? 2 : 1);
    made->ops.push_back(op);
    add(*made, sum());
  }
  return made;
}

ExpressionPtr ExpressionParser::sum() {
  auto left = concatenation();
  while (is_sign("+") || is_sign("-")) {
    const Operator op = is_sign("+") ? Operator::add : Operator::subtract;
    const int line = take().line;
    left = binary(op, line, std::move(left), concatenation());
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  auto left = product();
  while (is_sign("~")) {
    const int line = take().line;
    left = binary(Operator::concatenate, line, std::move(left), product());
  }
  return left;
}

ExpressionPtr ExpressionParser::product() {
  auto left = power();
  for (;;) {
    Operator op = Operator::multiply;
    if (is_sign("/")) op = Operator::divide;
    if (is_sign("//")) op = Operator::floor_divide;
    if (is_sign("%")) op = Operator::modulo;
    if (op == Operator::multiply && !is_sign("*")) return left;
    const int line = take().line;
    left = binary(op, line, std::move(left), power());
  }
}

// From the left, unlike Python's.
ExpressionPtr ExpressionParser::power() {
  auto left = signed_value(true);
  while (is_sign("**")) {
    const int line = take().line;
    left = binary(Operator::power, line, std::move(left), signed_value(true));
  }
  return left;
}

// Filters bind to the whole: -1 | abs.
ExpressionPtr ExpressionParser::signed_value(bool with_filters) {
  ExpressionPtr value;
  if (is_sign("-") || is_sign("+")) {
    const Deeper deeper(*this);
    auto made = make(is_sign("-") ? EK::negative : EK::positive, here().line);
    skip();
    value = with(std::move(made), signed_value(false));
  } else {
    value = primary();
  }
  value = postfixed(std::move(value));
  return with_filters ? filtered(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::filtered(ExpressionPtr value) {
  for (;;) {
    if (is_sign("|")) {
      value = filter(std::move(value));
    } else if (is_word("is")) {
      value = test(std::move(value));
    } else if (is_sign("(")) {
      const int line = take().line;
      value = call(std::move(value), line);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr value) {
  const int line = take().line;
  auto made = with(make(EK::filter, line, name()), std::move(value));
  set_filter(*made);
  if (take_sign("(")) arguments(*made);
  return made;
}

// As in jinja2, what is there under a condition alone is missed when it is reached.
void ExpressionParser::set_filter(Expression& made) const {
  made.filter = find_filter(made.text);
  if (made.filter == nullptr && conditions_ == 0) throw Fault(made.line, unknown_filter(made.text));
}

// "is divisibleby(3)" or "is divisibleby 3".
ExpressionPtr ExpressionParser::test(ExpressionPtr value) {
  const int line = take().line;
  const bool negated = take_word("not");
  auto made = with(make(EK::test, line, name()), std::move(value));
  made->test = find_test(made->text);
  if (made->test == nullptr && conditions_ == 0) throw Fault(line, unknown_test(made->text));
  if (take_sign("(")) {
    arguments(*made);
  } else {
    const bool ends = is_word("and") || is_word("or") || is_word("else") || is_word("if") ||
                      is_word("is") || is_word("in") || is_word("not");
    const bool begins = here().kind == LK::string || here().kind == LK::integer ||
                        here().kind == LK::real || is_sign("[") || is_sign("{") ||
                        (here().kind == LK::name && !ends);
    if (begins) add(*made, postfixed(primary()));
  }
  return negated ? with(make(EK::not_, line), std::move(made)) : std::move(made);
}

ExpressionPtr ExpressionParser::call(ExpressionPtr value, int line) {
  auto made = with(make(EK::call, line), std::move(value));
  arguments(*made);
  return made;
}

ExpressionPtr ExpressionParser::postfixed(ExpressionPtr value) {
  for (;;) {
    const int line = here().line;
    if (take_sign(".")) {
      value = attribute(std::move(value), line);
    } else if (take_sign("[")) {
      value = subscript(std::move(value), line);
    } else if (take_sign("(")) {
      value = call(std::move(value), line);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::attribute(ExpressionPtr value, int line) {
  if (here().kind != LK::integer) return with(make(EK::attribute, line, name()), std::move(value));
  return with(make(EK::item, line), std::move(value), primary());
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr value, int line) {
  std::array<ExpressionPtr, 3> parts;
  bool slice = false;
  for (ExpressionPtr& part : parts) {
    if (!is_sign(":") && !is_sign("]")) part = expression();
    if (!take_sign(":")) break;
    slice = true;
  }
  expect_sign("]");
  if (!slice) {
    if (!parts[0]) throw Fault(line, "[] is empty");
    return with(make(EK::item, line), std::move(value), std::move(parts[0]));
  }
  auto made = with(make(EK::slice, line), std::move(value));
  for (ExpressionPtr& part : parts) add(*made, std::move(part));
  return made;
}

void ExpressionParser::arguments(Expression& made) {
  while (!take_sign(")")) {
    if (is_sign("*") || is_sign("**")) {
      throw Fault(here().line, "arguments by * and ** are not supported");
    }
    if (here().kind == LK::name && ahead().kind == LK::sign && ahead().value == "=") {
      std::string key = name();
      skip();
      auto value = expression();
      made.depth = std::max(made.depth, value->depth + 1);
      made.named.emplace_back(std::move(key), std::move(value));
    } else {
      if (!made.named.empty()) throw Fault(here().line, "a plain argument after a named one");
      add(made, expression());
    }
    if (!is_sign(")")) expect_sign(",");
  }
}

ExpressionPtr ExpressionParser::literal(int line, Value value) {
  auto made = make(EK::literal, line);
  made->value = std::move(value);
  return made;
}

ExpressionPtr ExpressionParser::primary() {
  const Deeper deeper(*this);
  const Lexeme lexeme = take();
  switch (lexeme.kind) {
    case LK::string: {
      std::string text = lexeme.value;
      while (here().kind == LK::string) text += take().value;
      return literal(lexeme.line, Value::of(std::move(text)));
    }
    case LK::integer:
      return literal(lexeme.line, Value::of(std::int64_t{std::atoll(lexeme.value.c_str())}));
    case LK::real:
      return literal(lexeme.line, Value::of(std::strtod(lexeme.value.c_str(), nullptr)));
    case LK::name:
      return named_value(lexeme);
    case LK::sign:
      if (lexeme.value == "(") return parenthesised(lexeme.line);
      if (lexeme.value == "[") return list(lexeme.line);
      if (lexeme.value == "{") return map(lexeme.line);
      break;
    default:
      break;
  }
  throw Fault(lexeme.line,
              "expected a value, found " +
                  (lexeme.value.empty() ? "the end of a tag" : "'" + lexeme.value + "'"));
}

ExpressionPtr ExpressionParser::named_value(const Lexeme& lexeme) {
  const std::string& word = lexeme.value;
  if (word == "true" || word == "True") return literal(lexeme.line, Value::of(true));
  if (word == "false" || word == "False") return literal(lexeme.line, Value::of(false));
  if (word == "none" || word == "None") return literal(lexeme.line, Value::none());
  reads_more_ = reads_more_ || word == "varargs";
  reads_named_ = reads_named_ || word == "kwargs";
  return make(EK::name, lexeme.line, word);
}

ExpressionPtr ExpressionParser::parenthesised(int line) {
  if (take_sign(")")) return make(EK::tuple, line);
  auto value = tuple();
  expect_sign(")");
  return value;
}

ExpressionPtr ExpressionParser::list(int line) {
  auto made = make(EK::list, line);
  while (!take_sign("]")) {
    add(*made, expression());
    if (!is_sign("]")) expect_sign(",");
  }
  return made;
}

ExpressionPtr ExpressionParser::map(int line) {
  auto made = make(EK::map, line);
  while (!take_sign("}")) {
    add(*made, expression());
    expect_sign(":");
    add(*made, expression());
    if (!is_sign("}")) expect_sign(",");
  }
  return made;
}

}  // namespace kvtier::jinja
