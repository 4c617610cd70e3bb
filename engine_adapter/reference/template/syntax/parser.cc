#include "engine_adapter/reference/template/syntax/parser.h"

#include <utility>

namespace kvtier::jinja {
namespace {

using SK = Statement::Kind;

Statement make_statement(SK kind, int line) {
  return Statement{.kind = kind, .line = line};
}

class StatementParser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Block run() {
    Block block = statements({});
    if (here().kind != LK::end) throw Fault(here().line, "unexpected '" + block_name() + "'");
    return block;
  }

 private:
  // Of the block tag at hand.
  std::string block_name() const { return here().kind == LK::block_begin ? ahead().value : ""; }
  void end_of_tag() { expect(LK::block_end, "'%}'"); }

  // Up to a block tag named in `ends`, which is not taken.
  Block statements(const std::vector<std::string_view>& ends) {
    const Deeper deeper(*this);
    Block block;
    for (;;) {
      const int line = here().line;
      if (here().kind == LK::end) return block;
      if (here().kind == LK::text) {
        Statement text = make_statement(SK::text, line);
        text.text = take().value;
        block.push_back(std::move(text));
      } else if (here().kind == LK::print_begin) {
        skip();
        Statement print = make_statement(SK::print, line);
        print.value = tuple();
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

  // What is inside no loop that break could leave.
  Block body_until(const std::string& opened, const std::string& closing, int line) {
    const int loops = std::exchange(loops_, 0);
    Block block = statements({closing});
    loops_ = loops;
    close(line, opened, closing);
    return block;
  }

  void close(int line, const std::string& opened, const std::string& closing) {
    if (block_name() != closing) throw Fault(line, "'" + opened + "' has no '" + closing + "'");
    skip(2);
    end_of_tag();
  }

  Statement tag() {
    skip();
    const int line = here().line;
    const std::string word = name();
    if (word == "set") return set(line);
    if (word == "if") return branch(line);
    if (word == "for") return loop(line);
    if (word == "macro") return macro(line);
    if (word == "call") return call(line);
    if (word == "filter") return filter_block(line);
    if (word == "with") return with_block(line);
    if (word == "generation") {
      Statement made = make_statement(SK::scope, line);
      end_of_tag();
      made.body = body_until("generation", "endgeneration", line);
      return made;
    }
    if ((word == "break" || word == "continue") && loops_ > 0) {
      end_of_tag();
      return make_statement(word == "break" ? SK::break_ : SK::continue_, line);
    }
    throw Fault(line, "the tag '" + word +
                          "' is not supported here; supported are if, elif, else, for, set, macro, "
                          "call, filter, with, generation, raw, and break and continue in a loop");
  }

  Target target_part() {
    if (!take_sign("(")) return {.name = name()};
    const Deeper deeper(*this);
    Target made = targets();
    expect_sign(")");
    return made;
  }

  Target targets() {
    Target first = target_part();
    if (!is_sign(",")) return first;
    Target made;
    made.several.push_back(std::move(first));
    while (take_sign(",") && !is_word("in") && !is_sign("=") && !is_sign(")")) {
      made.several.push_back(target_part());
    }
    return made;
  }

  Statement set(int line) {
    Statement made = make_statement(SK::set, line);
    made.target = targets();
    if (made.target.several.empty() && take_sign(".")) made.target.attribute = name();
    if (take_sign("=")) {
      made.value = tuple();
      end_of_tag();
      return made;
    }
    if (!made.target.several.empty()) throw Fault(line, "expected '=', found " + found());
    made.kind = SK::capture;
    made.value = filtered(make(EK::captured, line));
    end_of_tag();
    made.body = body_until("set", "endset", line);
    return made;
  }

  Statement filter_block(int line) {
    Statement made = make_statement(SK::capture, line);
    auto value = make(EK::filter, line, name());
    value = first_filter(std::move(value));
    made.value = filtered(std::move(value));
    end_of_tag();
    made.body = body_until("filter", "endfilter", line);
    return made;
  }

  // The one that stands behind no '|'.
  ExpressionPtr first_filter(ExpressionPtr made) {
    set_filter(*made);
    const int line = made->line;
    made = with(std::move(made), make(EK::captured, line));
    if (take_sign("(")) arguments(*made);
    return made;
  }

  Statement branch(int line) {
    Statement made = make_statement(SK::branch, line);
    std::string next = "if";
    while (next == "if" || next == "elif") {
      auto condition = tuple();
      end_of_tag();
      ++conditions_;
      Block body = statements({"elif", "else", "endif"});
      --conditions_;
      made.branches.push_back({std::move(condition), std::move(body)});
      next = block_name();
      if (next.empty()) throw Fault(line, "'if' has no 'endif'");
      skip(2);
    }
    end_of_tag();
    if (next == "else") {
      ++conditions_;
      made.branches.push_back({nullptr, statements({"endif"})});
      --conditions_;
      close(line, "if", "endif");
    }
    return made;
  }

  Statement loop(int line) {
    Statement made = make_statement(SK::loop, line);
    made.target = targets();
    if (!take_word("in")) throw Fault(line, "expected 'in', found " + found());
    made.value = tuple(false);  // a ternary's `if` would be the loop's filter
    if (take_word("if")) made.condition = expression();
    made.recursive = take_word("recursive");
    end_of_tag();
    ++loops_;
    made.body = statements({"else", "endfor"});
    --loops_;
    if (block_name() == "else") {
      skip(2);
      end_of_tag();
      made.otherwise = statements({"endfor"});
    }
    close(line, "for", "endfor");
    return made;
  }

  void parameters(Statement& made) {
    expect_sign("(");
    while (!take_sign(")")) {
      Parameter one{name(), nullptr};
      if (take_sign("=")) {
        one.otherwise = expression();
      } else if (!made.parameters.empty() && made.parameters.back().otherwise) {
        throw Fault(here().line, "a parameter without a default after one that has one");
      }
      made.parameters.push_back(std::move(one));
      if (!is_sign(")")) expect_sign(",");
    }
  }

  void macro_body(Statement& made, const std::string& opened, const std::string& closing) {
    const bool more = std::exchange(reads_more_, false);
    const bool named = std::exchange(reads_named_, false);
    made.body = body_until(opened, closing, made.line);
    made.takes_more = std::exchange(reads_more_, more);
    made.takes_named = std::exchange(reads_named_, named);
  }

  Statement macro(int line) {
    Statement made = make_statement(SK::macro, line);
    made.text = name();
    parameters(made);
    end_of_tag();
    macro_body(made, "macro", "endmacro");
    return made;
  }

  Statement call(int line) {
    Statement made = make_statement(SK::call, line);
    made.text = "caller";
    if (is_sign("(")) parameters(made);
    made.value = postfixed(primary());
    if (made.value->kind != EK::call) throw Fault(line, "'call' wants a call");
    end_of_tag();
    macro_body(made, "call", "endcall");
    return made;
  }

  Statement with_block(int line) {
    Statement made = make_statement(SK::scope, line);
    while (here().kind != LK::block_end) {
      if (!made.parameters.empty()) expect_sign(",");
      Parameter one{name(), nullptr};
      expect_sign("=");
      one.otherwise = expression();
      made.parameters.push_back(std::move(one));
    }
    end_of_tag();
    made.body = body_until("with", "endwith", line);
    return made;
  }

  int loops_ = 0;
};

}  // namespace

Block parse(std::string_view source) {
  if (source.size() > kSourceBytesMax) {
    throw Fault(1, "the template is longer than " + std::to_string(kSourceBytesMax) + " bytes");
  }
  return StatementParser(lex(source)).run();
}

}  // namespace kvtier::jinja
