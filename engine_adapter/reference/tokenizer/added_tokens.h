// Tokens found in a text as they are written: special tokens and what a model's maker added to the
// vocabulary. Immutable; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine_adapter/reference/files/json.h"
#include "kvtier/key.h"

namespace kvtier::engine {

struct AddedToken {
  Token id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;  // not within a word
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // looked for in the normalised text
};

// One of tokenizer.json's added_tokens, or of tokenizer_config.json's added_tokens_decoder, whose
// key is the id. Errors: malformed, naming `where`.
Result<AddedToken> parse_added_token(const Json& json, std::optional<Token> id,
                                     const std::string& where);

// Bounds the tables that are indexed by id.
inline constexpr Token kTokenIdsMax = 1U << 24;

class AddedTokens {
 public:
  struct Piece {
    std::string_view text;
    std::optional<Token> token;  // none: plain text
  };

  void add(AddedToken token);
  // `text` in pieces, none of them empty: at each place the longest token counts.
  std::vector<Piece> split(std::string_view text) const;

 private:
  const AddedToken* at(std::string_view text) const noexcept;

  std::array<std::vector<AddedToken>, 256> by_first_byte_;  // longest first
};

}  // namespace kvtier::engine
