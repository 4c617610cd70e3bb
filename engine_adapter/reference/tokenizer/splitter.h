// Splits text at the matches of a regular expression, as the tokenizers library does: the
// expressions are written for Oniguruma and run by PCRE2, with what \s means put in its terms.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvtier/result.h"

namespace kvtier::engine {

// What becomes of the matches.
enum class SplitBehavior : unsigned char {
  removed,
  isolated,
  merged_with_previous,
  merged_with_next,
  contiguous,  // neighbouring matches are one piece
};

class Splitter {
 public:
  // Errors: invalid, with PCRE2's reason and place.
  static Result<Splitter> compile(const std::string& expression, SplitBehavior behavior,
                                  bool invert);
  // The expression that matches `text` itself.
  static std::string escape(std::string_view text);

  // Appends the pieces of `text` (valid UTF-8) that are not empty. Errors: invalid (the expression
  // needs more backtracking than PCRE2 allows).
  Result<void> split(std::string_view text, std::vector<std::string_view>& pieces) const;

  // `text`, whole, in spans that match and spans that do not. Errors: those of split().
  struct Span {
    std::size_t begin;
    std::size_t end;
    bool match;
  };
  Result<std::vector<Span>> spans(std::string_view text) const;

 private:
  struct Free {
    void operator()(void* code) const noexcept;
  };
  std::unique_ptr<void, Free> code_;
  SplitBehavior behavior_ = SplitBehavior::isolated;
  bool invert_ = false;
};

// The expression with \s and \S as Oniguruma means them (Unicode's White_Space; PCRE2 adds U+180E).
// Errors: invalid (\S inside brackets cannot be written out).
Result<std::string> oniguruma_to_pcre2(std::string_view expression);

}  // namespace kvtier::engine
