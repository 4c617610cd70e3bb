// Tokenizers: byte-level BPE (GPT-2, Llama 3, Qwen) and BPE over characters (Llama 2, Mistral) as
// tokenizer.json describes them, and SentencePiece's tokenizer.model. Immutable once loaded; every
// function may be called from any thread.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine_adapter/reference/files/json.h"
#include "engine_adapter/reference/tokenizer/added_tokens.h"
#include "engine_adapter/reference/tokenizer/normalizer.h"
#include "engine_adapter/reference/tokenizer/pre_tokenizer.h"
#include "engine_adapter/reference/tokenizer/sentencepiece_model.h"
#include "engine_adapter/reference/tokenizer/subwords.h"
#include "engine_adapter/reference/tokenizer/utf8.h"
#include "kvtier/key.h"
#include "kvtier/result.h"

namespace kvtier::engine {

// What the files say, read and checked (tokenizer_json.h).
struct TokenizerParts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::variant<Subwords, SentencePieceModel> model;
  std::vector<AddedToken> added;
  std::vector<Token> template_prefix;  // ids before a text: TemplateProcessing's, or <s>
  bool strips_leading_space = false;   // a decoded text loses the space that encoding put there
};

class Tokenizer {
 public:
  // tokenizer.json in `folder`, or, where there is none, tokenizer.model. Errors: not_found, io,
  // malformed, invalid (naming what is not supported).
  static Result<Tokenizer> load_model(const std::filesystem::path& folder);
  // A tokenizer.json.
  static Result<Tokenizer> load(const std::filesystem::path& file);
  static Result<Tokenizer> parse(const Json& json, const std::string& where);

  // Errors: invalid (an added token that cannot be normalised).
  static Result<Tokenizer> make(TokenizerParts parts);

  // Errors: malformed (the text is not UTF-8, with the place), invalid (an expression that cannot
  // be matched within bounds).
  Result<std::vector<Token>> encode(std::string_view text) const;

  // The bytes `token` stands for; none for an id that is not in the vocabulary.
  std::string_view bytes_of(Token token) const noexcept;
  bool is_special(Token token) const noexcept;
  // All tokens' bytes with U+FFFD for what is not UTF-8.
  std::string decode(std::span<const Token> tokens) const;

  // One more than the largest id.
  std::size_t ids_end() const noexcept { return bytes_by_id_.size(); }
  std::span<const Token> template_prefix() const noexcept { return parts_.template_prefix; }

 private:
  explicit Tokenizer(TokenizerParts parts) : parts_(std::move(parts)) {}

  void put(Token id, std::string_view bytes, bool special);
  Result<void> encode_raw(std::string_view text, bool at_start, std::vector<Token>& out) const;
  Result<void> encode_normalised(std::string_view text, bool at_start,
                                 std::vector<Token>& out) const;

  TokenizerParts parts_;
  AddedTokens raw_added_;
  AddedTokens normalised_added_;
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
