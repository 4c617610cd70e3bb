// From lexemes to a tree: expressions here, statements in StatementParser. One template's.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "engine_adapter/reference/template/syntax/ast.h"
#include "engine_adapter/reference/template/syntax/lexer.h"

namespace kvtier::jinja {

// All throw Fault.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Lexeme> lexemes) : lexemes_(std::move(lexemes)) {}

 protected:
  using EK = Expression::Kind;
  using LK = Lexeme::Kind;

  struct Deeper {
    explicit Deeper(ExpressionParser& parser) : depth(parser.depth_) {
      if (++depth > kNestingMax) parser.fail_deep(depth);
    }
    ~Deeper() { --depth; }
    Deeper(const Deeper&) = delete;
    int& depth;
  };

  const Lexeme& here() const noexcept { return lexemes_[at_]; }
  const Lexeme& ahead() const noexcept {
    return lexemes_[at_ + 1 < lexemes_.size() ? at_ + 1 : at_];
  }
  // The last one, the end, stays.
  void skip(std::size_t count = 1) { at_ = std::min(at_ + count, lexemes_.size() - 1); }
  Lexeme take();
  bool is_sign(std::string_view value) const noexcept;
  bool is_word(std::string_view value) const noexcept;
  bool take_sign(std::string_view value);
  bool take_word(std::string_view value);
  void expect_sign(std::string_view value);
  void expect(Lexeme::Kind kind, const char* what);
  std::string name();
  std::string found() const;
  [[noreturn]] void fail_deep(int& depth);

  ExpressionPtr make(EK kind, int line, std::string text = {});
  // Adds parts, and refuses a tree that is too deep.
  ExpressionPtr with(ExpressionPtr made, ExpressionPtr first, ExpressionPtr second = {});
  void add(Expression& to, ExpressionPtr part);

  // a, b: a tuple. `whole`: with `x if y else z`.
  ExpressionPtr tuple(bool whole = true);
  ExpressionPtr expression();
  ExpressionPtr disjunction();
  ExpressionPtr postfixed(ExpressionPtr value);
  ExpressionPtr primary();
  ExpressionPtr filtered(ExpressionPtr value);
  void arguments(Expression& made);
  void set_filter(Expression& made) const;

  int conditions_ = 0;        // around what is at hand
  bool reads_more_ = false;   // varargs, in the macro at hand
  bool reads_named_ = false;  // kwargs

 private:
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr signed_value(bool with_filters);
  ExpressionPtr filter(ExpressionPtr value);
  ExpressionPtr test(ExpressionPtr value);
  ExpressionPtr call(ExpressionPtr value, int line);
  ExpressionPtr attribute(ExpressionPtr value, int line);
  ExpressionPtr subscript(ExpressionPtr value, int line);
  ExpressionPtr literal(int line, Value value);
  ExpressionPtr named_value(const Lexeme& lexeme);
  ExpressionPtr parenthesised(int line);
  ExpressionPtr list(int line);
  ExpressionPtr map(int line);
  ExpressionPtr binary(Operator op, int line, ExpressionPtr left, ExpressionPtr right);
  bool at_comparison(Operator& op) const noexcept;

  std::vector<Lexeme> lexemes_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace kvtier::jinja
