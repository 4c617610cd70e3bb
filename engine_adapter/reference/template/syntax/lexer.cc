#include "engine_adapter/reference/template/syntax/lexer.h"

#include <algorithm>
#include <array>

#include "engine_adapter/reference/template/syntax/literals.h"
#include "engine_adapter/reference/template/value/meter.h"
#include "engine_adapter/reference/template/value/unicode.h"

namespace kvtier::jinja {
namespace {

using Kind = Lexeme::Kind;

bool is_digit(char c) noexcept {
  return c >= '0' && c <= '9';
}
bool is_name(char c) noexcept {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// The size of a tag's inside where it is `word` alone, as in {%- raw -%}, with what closes it; else
// 0. `inside` begins behind the {%.
std::size_t lone_word(std::string_view inside, std::string_view word) {
  std::size_t at = !inside.empty() && (inside[0] == '-' || inside[0] == '+') ? 1 : 0;
  at = inside.size() - strip_left(inside.substr(at), nullptr).size();
  if (!inside.substr(at).starts_with(word)) return 0;
  at += word.size();
  at = inside.size() - strip_left(inside.substr(at), nullptr).size();
  if (at < inside.size() && (inside[at] == '-' || inside[at] == '+')) ++at;
  return inside.substr(at).starts_with("%}") ? at + 2 : 0;
}

std::string normalised(std::string_view source) {
  std::string out;
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool carriage = source[i] == '\r';
    if (carriage && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += carriage ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Lexeme> run() {
    while (at_ < source_.size()) {
      const std::size_t tag = next_tag();
      text(tag);
      if (tag == source_.size()) break;
      const char kind = source_[tag + 1];
      advance(tag + 2);
      if (kind == '%' && raw()) continue;
      if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) advance(at_ + 1);
      if (kind == '#') {
        comment();
      } else {
        tokens(kind == '{');
      }
    }
    out_.push_back({Kind::end, "", line_});
    return std::move(out_);
  }

 private:
  std::size_t next_tag() const noexcept {
    for (std::size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] != '{') continue;
      if (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#') return i;
    }
    return source_.size();
  }

  // Moves on, counting lines.
  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  void text(std::size_t end) {
    std::string_view found = std::string_view(source_).substr(at_, end - at_);
    const bool is_tag = end < source_.size();
    const char control = end + 2 < source_.size() ? source_[end + 2] : '\0';
    if (is_tag && control == '-') {
      found = strip_right(found, nullptr);
    } else if (is_tag && control != '+' && source_[end + 1] != '{') {
      const std::size_t line_start = found.rfind('\n') + 1;  // 0 for none
      const std::string_view indent = found.substr(line_start);
      if ((line_start > 0 || at_line_start_) && strip_left(indent, nullptr).empty()) {
        found = found.substr(0, line_start);
      }
    }
    if (!found.empty()) out_.push_back({Kind::text, std::string(found), line_});
    advance(end);
  }

  // What follows a tag that ended here and belongs to it.
  void skip_after(char control, bool trims_newline) {
    const std::size_t begin = at_;
    std::size_t end = at_;
    if (control == '-') {
      end = source_.size() - strip_left(std::string_view(source_).substr(end), nullptr).size();
    } else if (control != '+' && trims_newline && end < source_.size() && source_[end] == '\n') {
      ++end;
    }
    at_line_start_ = end > begin && source_[end - 1] == '\n';
    advance(end);
  }

  // What is between {% raw %} and {% endraw %} is text; the line's end behind the first stays.
  bool raw() {
    const std::size_t begins = lone_word(std::string_view(source_).substr(at_), "raw");
    if (begins == 0) return false;
    const int line = line_;
    const bool strips = source_[at_ + begins - 3] == '-';
    advance(at_ + begins);
    skip_after(strips ? '-' : '+', false);
    for (std::size_t tag = at_;; tag += 2) {
      tag = source_.find("{%", tag);
      if (tag == std::string::npos) throw Fault(line, "'raw' has no 'endraw'");
      const std::size_t ends = lone_word(std::string_view(source_).substr(tag + 2), "endraw");
      if (ends == 0) continue;
      text(tag);
      const char control = source_[tag + 2 + ends - 3];
      advance(tag + 2 + ends);
      skip_after(control, true);
      return true;
    }
  }

  void comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) throw Fault(line_, "the comment has no end");
    const char control = end > at_ ? source_[end - 1] : '\0';
    advance(end + 2);
    skip_after(control, true);
  }

  void tokens(bool print) {
    out_.push_back({print ? Kind::print_begin : Kind::block_begin, "", line_});
    const std::string_view close = print ? "}}" : "%}";
    int open = 0;  // brackets: a }} within them closes maps
    for (;;) {
      const std::string_view left = strip_left(std::string_view(source_).substr(at_), nullptr);
      advance(source_.size() - left.size());
      if (at_ >= source_.size()) throw Fault(line_, "a tag has no end");
      const std::string_view rest = std::string_view(source_).substr(at_);
      const bool controlled =
          (rest[0] == '-' || rest[0] == '+') && rest.substr(1).starts_with(close);
      if (open == 0 && (controlled || rest.starts_with(close))) {
        out_.push_back({print ? Kind::print_end : Kind::block_end, "", line_});
        const char control = controlled ? rest[0] : '\0';
        advance(at_ + close.size() + (controlled ? 1 : 0));
        skip_after(control, !print);
        return;
      }
      if (rest[0] == '(' || rest[0] == '[' || rest[0] == '{') ++open;
      if ((rest[0] == ')' || rest[0] == ']' || rest[0] == '}') && open > 0) --open;
      token(rest);
    }
  }

  void token(std::string_view rest) {
    const char c = rest[0];
    if (c == '\'' || c == '"') return string(c);
    if (is_digit(c)) return number(rest);
    std::size_t size = 0;
    while (size < rest.size() && is_name(rest[size])) ++size;
    if (size > 0) return push(Kind::name, size);
    constexpr std::array<std::string_view, 6> kTwo{"==", "!=", "<=", ">=", "//", "**"};
    if (std::any_of(kTwo.begin(), kTwo.end(),
                    [rest](auto sign) { return rest.starts_with(sign); })) {
      return push(Kind::sign, 2);
    }
    if (std::string_view("+-*/%~<>=()[]{}.,:|").find(c) != std::string_view::npos) {
      return push(Kind::sign, 1);
    }
    throw Fault(line_, std::string("unexpected '") + c + "'");
  }

  void push(Kind kind, std::size_t size) {
    out_.push_back({kind, source_.substr(at_, size), line_});
    advance(at_ + size);
  }

  void number(std::string_view rest) {
    const NumberLiteral number = number_at(rest, line_);
    if (number.size < rest.size() && is_name(rest[number.size])) {
      throw Fault(line_, "a number is written in a way that is not supported");
    }
    out_.push_back({number.real ? Kind::real : Kind::integer, number.value, line_});
    advance(at_ + number.size);
  }

  void string(char quote) {
    const int line = line_;
    const std::size_t begin = at_ + 1;
    std::size_t end = begin;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) throw Fault(line, "a string has no end");
    const auto written = std::string_view(source_).substr(begin, end - begin);
    out_.push_back({Kind::string, string_value(written, line), line});
    advance(end + 1);
  }

  const std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<Lexeme> out_;
};

}  // namespace

std::vector<Lexeme> lex(std::string_view source) {
  return Lexer(normalised(source)).run();
}

}  // namespace kvtier::jinja
