#include <array>
#include <charconv>

#include "engine_adapter/jinja/ast.h"
#include "engine_adapter/jinja/fault.h"
#include "engine_adapter/jinja/lexer.h"

namespace kvtier::jinja {
namespace {

using EK = Expression::Kind;
using LK = Lexeme::Kind;
using SK = Statement::Kind;

constexpr int kDepthMax = 100;

class Parser {
 public:
  explicit Parser(std::vector<Lexeme> lexemes) : lexemes_(std::move(lexemes)) {}

  Block run() {
    Block block = statements({});
    if (here().kind != LK::end) throw Fault(here().line, "unexpected '" + block_name() + "'");
    return block;
  }

 private:
  struct Deeper {
    explicit Deeper(Parser& parser) : depth(parser.depth_) {
      if (++depth > kDepthMax) throw Fault(parser.here().line, "nested too deeply");
    }
    ~Deeper() { --depth; }
    int& depth;
  };

  const Lexeme& here() const noexcept { return lexemes_[at_]; }
  const Lexeme& ahead() const noexcept {
    return lexemes_[at_ + 1 < lexemes_.size() ? at_ + 1 : at_];
  }
  Lexeme take() { return lexemes_[at_ + 1 < lexemes_.size() ? at_++ : at_]; }
  bool is(LK kind, std::string_view value) const noexcept {
    return here().kind == kind && here().value == value;
  }
  bool is_sign(std::string_view value) const noexcept { return is(LK::sign, value); }
  bool is_word(std::string_view value) const noexcept { return is(LK::name, value); }
  bool take_sign(std::string_view value) {
    if (!is_sign(value)) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view value) {
    if (!is_word(value)) return false;
    ++at_;
    return true;
  }
  void expect_sign(std::string_view value) {
    if (!take_sign(value)) {
      throw Fault(here().line, "expected '" + std::string(value) + "', found " + found());
    }
  }
  void expect(LK kind, const char* what) {
    if (here().kind != kind)
      throw Fault(here().line, std::string("expected ") + what + ", found " + found());
    ++at_;
  }
  std::string found() const {
    return here().value.empty() ? "the end of a tag" : "'" + here().value + "'";
  }
  std::string name() {
    if (here().kind != LK::name) throw Fault(here().line, "expected a name, found " + found());
    return take().value;
  }
  // Of the block tag at hand.
  std::string block_name() const { return here().kind == LK::block_begin ? ahead().value : ""; }

  static ExpressionPtr make(EK kind, int line, std::string text = {}) {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->line = line;
    made->text = std::move(text);
    return made;
  }
  static ExpressionPtr with(ExpressionPtr made, ExpressionPtr first, ExpressionPtr second = {}) {
    made->parts.push_back(std::move(first));
    if (second) made->parts.push_back(std::move(second));
    return made;
  }

  // Up to a block tag named in `ends`, which is not taken.
  Block statements(const std::vector<std::string_view>& ends) {
    const Deeper deeper(*this);
    Block block;
    for (;;) {
      const int line = here().line;
      if (here().kind == LK::end) return block;
      if (here().kind == LK::text) {
        Statement text{SK::text, line, take().value, {}, {}, {}, {}, {}, {}};
        block.push_back(std::move(text));
      } else if (here().kind == LK::print_begin) {
        ++at_;
        Statement print{SK::print, line, {}, {}, {}, expression(), {}, {}, {}};
        expect(LK::print_end, "'}}'");
        block.push_back(std::move(print));
      } else {
        for (const std::string_view end : ends) {
          if (block_name() == end) return block;
        }
        block.push_back(tag());
      }
    }
  }

  void end_of_tag() { expect(LK::block_end, "'%}'"); }

  Statement tag() {
    ++at_;
    const int line = here().line;
    const std::string word = name();
    if (word == "set") return set(line);
    if (word == "if") return branch(line);
    if (word == "for") return loop(line);
    if ((word == "break" || word == "continue") && loops_ > 0) {
      end_of_tag();
      return {word == "break" ? SK::break_ : SK::continue_, line, {}, {}, {}, {}, {}, {}, {}};
    }
    throw Fault(line, "the tag '" + word +
                          "' is not supported here; supported are if, elif, else, for, set, and "
                          "break and continue in a loop");
  }

  Statement set(int line) {
    Statement made{SK::set, line, {}, {name()}, {}, {}, {}, {}, {}};
    if (take_sign(".")) {
      made.attribute = name();
    } else {
      while (take_sign(",")) made.targets.push_back(name());
    }
    if (!is_sign("=")) {
      throw Fault(line, "set is supported as 'set name = value' and 'set name.attribute = value'");
    }
    ++at_;
    made.value = tuple();
    end_of_tag();
    return made;
  }

  Statement branch(int line) {
    const Deeper deeper(*this);
    Statement made{SK::branch, line, {}, {}, {}, expression(), {}, {}, {}};
    end_of_tag();
    made.body = statements({"elif", "else", "endif"});
    const std::string next = block_name();
    const int next_line = here().line;
    if (next.empty()) throw Fault(line, "'if' has no 'endif'");
    at_ += 2;
    if (next == "elif") {
      made.otherwise.push_back(branch(next_line));
      return made;
    }
    end_of_tag();
    if (next == "else") {
      made.otherwise = statements({"endif"});
      close(line, "if", "endif");
    }
    return made;
  }

  Statement loop(int line) {
    Statement made{SK::loop, line, {}, {name()}, {}, {}, {}, {}, {}};
    while (take_sign(",")) made.targets.push_back(name());
    if (!take_word("in")) throw Fault(line, "expected 'in', found " + found());
    made.value = disjunction();  // a ternary's `if` would be the loop's filter
    if (take_word("if")) made.condition = expression();
    if (is_word("recursive")) throw Fault(line, "recursive loops are not supported");
    end_of_tag();
    ++loops_;
    made.body = statements({"else", "endfor"});
    --loops_;
    if (block_name() == "else") {
      at_ += 2;
      end_of_tag();
      made.otherwise = statements({"endfor"});
    }
    close(line, "for", "endfor");
    return made;
  }

  void close(int line, const std::string& opened, const std::string& closing) {
    if (block_name() != closing) throw Fault(line, "'" + opened + "' has no '" + closing + "'");
    at_ += 2;
    end_of_tag();
  }

  // a, b: a list.
  ExpressionPtr tuple() {
    auto first = expression();
    if (!is_sign(",")) return first;
    auto made = with(make(EK::list, here().line), std::move(first));
    while (take_sign(",") && !is_sign(")")) made->parts.push_back(expression());
    return made;
  }

  ExpressionPtr expression() {
    const Deeper deeper(*this);
    auto value = disjunction();
    while (is_word("if")) {
      const int line = take().line;
      auto made = make(EK::choice, line);
      made->parts.push_back(disjunction());
      made->parts.push_back(std::move(value));
      made->parts.push_back(take_word("else") ? expression() : nullptr);
      value = std::move(made);
    }
    return value;
  }

  ExpressionPtr disjunction() {
    auto left = conjunction();
    while (is_word("or")) {
      auto made = make(EK::binary, here().line, take().value);
      left = with(std::move(made), std::move(left), conjunction());
    }
    return left;
  }

  ExpressionPtr conjunction() {
    auto left = negation();
    while (is_word("and")) {
      auto made = make(EK::binary, here().line, take().value);
      left = with(std::move(made), std::move(left), negation());
    }
    return left;
  }

  ExpressionPtr negation() {
    if (!is_word("not")) return comparison();
    const Deeper deeper(*this);
    auto made = make(EK::unary, here().line, take().value);
    return with(std::move(made), negation());
  }

  // a < b < c is (a < b) and (b < c) in Python; here one comparison is enough, two are refused.
  ExpressionPtr comparison() {
    auto left = sum();
    for (bool compared = false;; compared = true) {
      std::string sign;
      for (const std::string_view known : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (is_sign(known)) sign = known;
      }
      if (is_word("in")) sign = "in";
      if (is_word("not") && ahead().kind == LK::name && ahead().value == "in") sign = "not in";
      if (sign.empty()) return left;
      const int line = here().line;
      if (compared) throw Fault(line, "a chain of comparisons is not supported; use 'and'");
      at_ += sign == "not in" ? 2 : 1;
      left = with(make(EK::binary, line, sign), std::move(left), sum());
    }
  }

  ExpressionPtr sum() {
    auto left = concatenation();
    while (is_sign("+") || is_sign("-")) {
      auto made = make(EK::binary, here().line, take().value);
      left = with(std::move(made), std::move(left), concatenation());
    }
    return left;
  }

  ExpressionPtr concatenation() {
    auto left = product();
    while (is_sign("~")) {
      auto made = make(EK::binary, here().line, take().value);
      left = with(std::move(made), std::move(left), product());
    }
    return left;
  }

  ExpressionPtr product() {
    auto left = signed_value();
    while (is_sign("*") || is_sign("/") || is_sign("//") || is_sign("%")) {
      auto made = make(EK::binary, here().line, take().value);
      left = with(std::move(made), std::move(left), signed_value());
    }
    return left;
  }

  ExpressionPtr signed_value() {
    if (!is_sign("-") && !is_sign("+")) return filtered(postfixed(primary()), true);
    const Deeper deeper(*this);
    const Lexeme sign = take();
    // Filters bind to the whole: -1 | abs.
    const bool again = is_sign("-") || is_sign("+");
    auto value = again ? signed_value() : postfixed(primary());
    return filtered(with(make(EK::unary, sign.line, sign.value), std::move(value)), true);
  }

  ExpressionPtr filtered(ExpressionPtr value, bool tests) {
    for (;;) {
      if (is_sign("|")) {
        const int line = take().line;
        auto made = with(make(EK::filter, line, name()), std::move(value));
        if (take_sign("(")) arguments(*made);
        value = std::move(made);
      } else if (tests && is_word("is")) {
        const int line = take().line;
        const bool negated = take_word("not");
        auto made = with(make(EK::test, line, name()), std::move(value));
        test_arguments(*made);
        value = negated ? with(make(EK::unary, line, "not"), std::move(made)) : std::move(made);
      } else {
        return value;
      }
    }
  }

  // "is divisibleby(3)" or "is divisibleby 3".
  void test_arguments(Expression& made) {
    if (take_sign("(")) return arguments(made);
    const bool value =
        here().kind == LK::string || here().kind == LK::integer ||
        (here().kind == LK::name && !is_word("and") && !is_word("or") && !is_word("else") &&
         !is_word("if") && !is_word("is") && !is_word("in") && !is_word("not"));
    if (value) made.parts.push_back(postfixed(primary()));
  }

  ExpressionPtr postfixed(ExpressionPtr value) {
    for (;;) {
      const int line = here().line;
      if (take_sign(".")) {
        value = with(make(EK::attribute, line, name()), std::move(value));
      } else if (take_sign("[")) {
        value = subscript(std::move(value), line);
      } else if (take_sign("(")) {
        auto made = with(make(EK::call, line), std::move(value));
        arguments(*made);
        value = std::move(made);
      } else {
        return value;
      }
    }
  }

  ExpressionPtr subscript(ExpressionPtr value, int line) {
    std::array<ExpressionPtr, 3> parts;
    bool slice = false;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (!is_sign(":") && !is_sign("]")) parts[i] = expression();
      if (!take_sign(":")) break;
      slice = true;
    }
    expect_sign("]");
    if (!slice) {
      if (!parts[0]) throw Fault(line, "[] is empty");
      return with(make(EK::item, line), std::move(value), std::move(parts[0]));
    }
    auto made = with(make(EK::slice, line), std::move(value));
    for (ExpressionPtr& part : parts) made->parts.push_back(std::move(part));
    return made;
  }

  void arguments(Expression& made) {
    while (!take_sign(")")) {
      if (here().kind == LK::name && ahead().kind == LK::sign && ahead().value == "=") {
        std::string key = name();
        ++at_;
        made.named.emplace_back(std::move(key), expression());
      } else {
        if (!made.named.empty()) throw Fault(here().line, "a plain argument after a named one");
        made.parts.push_back(expression());
      }
      if (!is_sign(")")) expect_sign(",");
    }
  }

  ExpressionPtr literal(int line, Value value) {
    auto made = make(EK::literal, line);
    made->value = std::move(value);
    return made;
  }

  ExpressionPtr primary() {
    const Deeper deeper(*this);
    const Lexeme lexeme = take();
    switch (lexeme.kind) {
      case LK::string: {
        std::string text = lexeme.value;
        while (here().kind == LK::string) text += take().value;
        return literal(lexeme.line, Value::of(std::move(text)));
      }
      case LK::integer:
        return integer(lexeme);
      case LK::real:
        return literal(lexeme.line, Value(Value::Any(std::strtod(lexeme.value.c_str(), nullptr))));
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

  ExpressionPtr integer(const Lexeme& lexeme) {
    std::int64_t number = 0;
    const char* const end = lexeme.value.data() + lexeme.value.size();
    if (std::from_chars(lexeme.value.data(), end, number).ec != std::errc{}) {
      throw Fault(lexeme.line, lexeme.value + " is beyond 64 bits");
    }
    return literal(lexeme.line, Value::of(number));
  }

  ExpressionPtr named_value(const Lexeme& lexeme) {
    const std::string& word = lexeme.value;
    if (word == "true" || word == "True") return literal(lexeme.line, Value::of(true));
    if (word == "false" || word == "False") return literal(lexeme.line, Value::of(false));
    if (word == "none" || word == "None") return literal(lexeme.line, Value::none());
    return make(EK::name, lexeme.line, word);
  }

  ExpressionPtr parenthesised(int line) {
    if (take_sign(")")) return make(EK::list, line);
    auto value = tuple();
    expect_sign(")");
    return value;
  }

  ExpressionPtr list(int line) {
    auto made = make(EK::list, line);
    while (!take_sign("]")) {
      made->parts.push_back(expression());
      if (!is_sign("]")) expect_sign(",");
    }
    return made;
  }

  ExpressionPtr map(int line) {
    auto made = make(EK::map, line);
    while (!take_sign("}")) {
      made->parts.push_back(expression());
      expect_sign(":");
      made->parts.push_back(expression());
      if (!is_sign("}")) expect_sign(",");
    }
    return made;
  }

  std::vector<Lexeme> lexemes_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

Block parse(std::string_view source) {
  return Parser(lex(source)).run();
}

}  // namespace kvtier::jinja
