// Byte-level BPE tokenizers as tokenizer.json describes them (GPT-2, Llama 3 and their kin).
// Immutable once loaded; every function may be called from any thread.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine_adapter/engine/bpe.h"
#include "engine_adapter/engine/json.h"
#include "engine_adapter/engine/splitter.h"
#include "engine_adapter/engine/utf8.h"
#include "kvtier/key.h"
#include "kvtier/result.h"

namespace kvtier::engine {

// A token found in the text as it is written, before anything else happens to the text.
struct AddedToken {
  Token id = 0;
  std::string content;
  bool special = false;
};

// What tokenizer.json says, read and checked (tokenizer_json.h).
struct TokenizerParts {
  std::unordered_map<std::string, Token> vocabulary;  // by the bytes a token stands for
  std::array<Token, 256> byte_tokens{};
  std::vector<Bpe::Merge> merges;
  bool ignore_merges = false;  // a word in the vocabulary is one token
  std::vector<AddedToken> added;
  std::vector<AddedToken> literals;  // in the vocabulary, but out of BPE's reach
  std::vector<Splitter> splitters;   // applied in turn; then ByteLevel's steps:
  bool add_prefix_space = false;     // to each piece that begins without one
  std::optional<Splitter> byte_level_splitter;
  std::vector<Token> template_prefix;  // TemplateProcessing: ids before a text
};

class Tokenizer {
 public:
  // Errors: not_found, io, malformed, invalid (naming what is not supported).
  static Result<Tokenizer> load(const std::filesystem::path& file);
  static Result<Tokenizer> parse(const Json& json, const std::string& where);

  explicit Tokenizer(TokenizerParts parts);

  // Errors: malformed (the text is not UTF-8, with the place), invalid (an expression that cannot
  // be matched within bounds).
  Result<std::vector<Token>> encode(std::string_view text) const;

  // The bytes `token` stands for; none for an id that is not in the vocabulary.
  std::string_view bytes_of(Token token) const noexcept;
  bool is_special(Token token) const noexcept;
  // All tokens' bytes with U+FFFD for what is not UTF-8.
  std::string decode(std::span<const Token> tokens) const;

  std::optional<Token> find(std::string_view bytes) const;
  // One more than the largest id.
  std::size_t ids_end() const noexcept { return bytes_by_id_.size(); }
  std::span<const Token> template_prefix() const noexcept { return parts_.template_prefix; }

 private:
  const AddedToken* added_at(std::string_view text) const noexcept;
  Result<void> encode_plain(std::string_view text, std::vector<Token>& out) const;
  void encode_word(std::string_view word, std::vector<Token>& out) const;

  TokenizerParts parts_;
  Bpe bpe_;
  std::array<std::vector<const AddedToken*>, 256> added_by_first_byte_;  // longest first
  std::vector<std::string> bytes_by_id_;
  std::vector<bool> special_by_id_;
};

// Decodes one token after another into text that is valid UTF-8 at every step. Special tokens are
// left out.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  std::string push(Token token) {
    return tokenizer_.is_special(token) ? std::string{} : utf8_.push(tokenizer_.bytes_of(token));
  }
  std::string finish() { return utf8_.finish(); }

 private:
  const Tokenizer& tokenizer_;
  Utf8Stream utf8_;
};

}  // namespace kvtier::engine
