// Cuts a template into text, and the tokens of its tags, with white space treated as chat templates
// are made for: trim_blocks and lstrip_blocks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvtier::jinja {

struct Lexeme {
  enum class Kind : unsigned char {
    text,
    print_begin,  // {{
    print_end,
    block_begin,  // {%
    block_end,
    name,
    string,  // its value
    integer,
    real,
    sign,  // an operator or a bracket
    end,
  } kind;
  std::string value;
  int line;
};

// Throws Fault.
std::vector<Lexeme> lex(std::string_view source);

}  // namespace kvtier::jinja
