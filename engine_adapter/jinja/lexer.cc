#include "engine_adapter/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "engine_adapter/jinja/fault.h"

namespace kvtier::jinja {
namespace {

using Kind = Lexeme::Kind;

bool is_space(char c) noexcept {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
bool is_digit(char c) noexcept {
  return c >= '0' && c <= '9';
}
bool is_name(char c) noexcept {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
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
      while (!found.empty() && is_space(found.back())) found.remove_suffix(1);
    } else if (is_tag && control != '+' && source_[end + 1] != '{') {
      const std::size_t line_start = found.rfind('\n') + 1;  // 0 for none
      const std::string_view indent = found.substr(line_start);
      if ((line_start > 0 || at_line_start_) &&
          std::all_of(indent.begin(), indent.end(), is_space)) {
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
      while (end < source_.size() && is_space(source_[end])) ++end;
    } else if (control != '+' && trims_newline && end < source_.size() && source_[end] == '\n') {
      ++end;
    }
    at_line_start_ = end > begin && source_[end - 1] == '\n';
    advance(end);
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
      while (at_ < source_.size() && is_space(source_[at_])) advance(at_ + 1);
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
    std::size_t size = 0;
    while (size < rest.size() && is_digit(rest[size])) ++size;
    const bool real = size + 1 < rest.size() && rest[size] == '.' && is_digit(rest[size + 1]);
    if (real) {
      ++size;
      while (size < rest.size() && is_digit(rest[size])) ++size;
    }
    if (size < rest.size() && is_name(rest[size])) {
      throw Fault(line_, "numbers are supported as 12 and 1.5 only");
    }
    push(real ? Kind::real : Kind::integer, size);
  }

  void string(char quote) {
    const int line = line_;
    std::string value;
    std::size_t i = at_ + 1;
    for (;; ++i) {
      if (i >= source_.size()) throw Fault(line, "a string has no end");
      if (source_[i] == quote) break;
      if (source_[i] != '\\') {
        value += source_[i];
        continue;
      }
      if (++i >= source_.size()) throw Fault(line, "a string has no end");
      constexpr std::string_view kNames = "ntr\\'\"";
      constexpr std::string_view kMeanings = "\n\t\r\\'\"";
      const std::size_t known = kNames.find(source_[i]);
      if (known == std::string_view::npos) {
        throw Fault(line, std::string("the escape \\") + source_[i] +
                              " is not supported; supported are \\n \\t \\r \\\\ \\' \\\"");
      }
      value += kMeanings[known];
    }
    out_.push_back({Kind::string, std::move(value), line});
    advance(i + 1);
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
