// What is done to a text before it is split: the normalizer of a tokenizer.json. Immutable; any
// thread.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine_adapter/reference/files/json.h"
#include "engine_adapter/reference/tokenizer/splitter.h"

namespace kvtier::engine {

class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  // Errors: malformed, invalid, naming `where` and what is supported.
  static Result<Normalizer> parse(const Json& json, const std::string& where);

  bool changes_nothing() const noexcept { return steps_.empty(); }
  // `text` is valid UTF-8, and so is what comes of it. Errors: invalid (an expression that cannot
  // be matched within bounds).
  Result<std::string> apply(std::string_view text) const;

 private:
  enum class Form : unsigned char { nfc, nfd, nfkc, nfkd };  // UAX 15
  struct Prepend {
    std::string text;  // before a text that is not empty
  };
  struct Replace {
    Splitter matches;
    std::string by;
  };
  using Step = std::variant<Form, Prepend, Replace>;

  static Result<void> parse_step(const Json& json, const std::string& where,
                                 std::vector<Step>& steps);
  static Result<Step> parse_replace(const Json& json, const std::string& where);
  static std::string apply(Form form, const std::string& text);
  static Result<std::string> apply(const Replace& replace, std::string_view text);

  std::vector<Step> steps_;
};

}  // namespace kvtier::engine
