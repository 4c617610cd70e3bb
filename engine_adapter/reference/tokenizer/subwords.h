// The BPE model of a tokenizer.json: from words to tokens. Immutable; any thread.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine_adapter/reference/files/json.h"
#include "engine_adapter/reference/tokenizer/bpe.h"

namespace kvtier::engine {

class Subwords {
 public:
  // With `byte_level` the vocabulary is in the alphabet of byte_level.h and words are bytes;
  // else words are characters, and what the vocabulary lacks becomes tokens <0x00> to <0xFF>
  // (byte_fallback) or the unknown token. Errors: malformed, invalid, naming `where`.
  static Result<Subwords> parse(const Json& json, bool byte_level, const std::string& where);

  // Appends the tokens of `word`, which is valid UTF-8.
  void encode(std::string_view word, std::vector<Token>& out) const;

  // Every token with the bytes it stands for.
  const std::vector<std::pair<Token, std::string>>& tokens() const noexcept { return tokens_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>{}(text);
    }
  };
  // As words are written: bytes with byte_level, characters without.
  using Vocabulary = std::unordered_map<std::string, Token, Hash, std::equal_to<>>;

  Subwords(Vocabulary vocabulary, std::vector<std::pair<Token, std::string>> tokens, Bpe bpe)
      : vocabulary_(std::move(vocabulary)), tokens_(std::move(tokens)), bpe_(std::move(bpe)) {}

  static Result<void> check(const Json& json, const std::string& where);
  Result<void> parse_options(const Json& json, bool byte_level, const std::string& where);
  std::vector<Token> characters_of(std::string_view word) const;

  Vocabulary vocabulary_;
  std::vector<std::pair<Token, std::string>> tokens_;
  Bpe bpe_;
  bool byte_level_ = false;
  bool ignore_merges_ = false;  // a word in the vocabulary is one token
  std::optional<std::array<Token, 256>> byte_tokens_;
  std::optional<Token> unknown_;
  bool fuse_unknown_ = false;  // neighbouring unknown characters are one token
};

}  // namespace kvtier::engine
