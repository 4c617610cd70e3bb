// How a normalised text is cut into the words that BPE sees: the pre_tokenizer of a tokenizer.json.
// Immutable; any thread.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine_adapter/reference/files/json.h"
#include "engine_adapter/reference/tokenizer/splitter.h"

namespace kvtier::engine {

class PreTokenizer {
 public:
  // Views into the text given, or into `owned` where something was put in.
  struct Words {
    std::vector<std::string_view> words;
    std::deque<std::string> owned;
  };

  PreTokenizer() = default;  // a text is one word
  // Splits, Digits, Metaspace, in turn; ByteLevel last. Errors: malformed, invalid, naming `where`
  // and what is supported.
  static Result<PreTokenizer> parse(const Json& json, const std::string& where);

  // Whether words are bytes to the vocabulary, in the alphabet of byte_level.h.
  bool is_byte_level() const noexcept { return byte_level_; }

  // `at_start`: nothing comes before `text` in what is encoded. Errors: those of Splitter::split().
  Result<Words> split(std::string_view text, bool at_start) const;

 private:
  struct PrefixSpace {};  // before each piece that begins without one
  struct Metaspace {
    enum class Prepend : unsigned char { never, first, always } prepend;
    std::optional<Splitter> splitter;  // at each mark
  };
  using Step = std::variant<Splitter, PrefixSpace, Metaspace>;

  Result<void> parse_step(const Json& json, const std::string& where, bool last);
  Result<void> parse_split(const Json& json, const std::string& where);
  Result<void> parse_digits(const Json& json, const std::string& where);
  Result<void> parse_metaspace(const Json& json, const std::string& where);
  Result<void> parse_byte_level(const Json& json, const std::string& where);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace kvtier::engine
