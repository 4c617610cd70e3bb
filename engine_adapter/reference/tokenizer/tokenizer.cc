#include "engine_adapter/reference/tokenizer/tokenizer.h"

#include "engine_adapter/reference/tokenizer/tokenizer_json.h"

namespace kvtier::engine {

Result<Tokenizer> Tokenizer::load_model(const std::filesystem::path& folder) {
  std::error_code code;
  if (std::filesystem::exists(folder / "tokenizer.json", code)) {
    return load(folder / "tokenizer.json");
  }
  if (!std::filesystem::exists(folder / "tokenizer.model", code)) {
    return make_error(Errc::not_found,
                      folder.string() + ": has neither tokenizer.json nor tokenizer.model");
  }
  auto parts = load_sentencepiece(folder);
  if (!parts) return parts.error();
  return make(std::move(*parts));
}

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& file) {
  const auto json = read_json(file);
  if (!json) return json.error();
  return parse(*json, file.string());
}

Result<Tokenizer> Tokenizer::parse(const Json& json, const std::string& where) {
  auto parts = parse_tokenizer(json, where);
  if (!parts) return parts.error();
  return make(std::move(*parts));
}

Result<Tokenizer> Tokenizer::make(TokenizerParts parts) {
  Tokenizer tokenizer(std::move(parts));
  const auto& model = tokenizer.parts_.model;
  const auto tokens = std::holds_alternative<Subwords>(model)
                          ? std::get<Subwords>(model).tokens()
                          : std::get<SentencePieceModel>(model).tokens();
  for (const auto& [id, bytes] : tokens) tokenizer.put(id, bytes, false);
  for (const AddedToken& token : tokenizer.parts_.added) {
    tokenizer.put(token.id, token.content, token.special);
    if (!token.normalized) {
      tokenizer.raw_added_.add(token);
      continue;
    }
    auto content = tokenizer.parts_.normalizer.apply(token.content);
    if (!content) return content.error();
    AddedToken normalised = token;
    normalised.content = std::move(*content);
    if (!normalised.content.empty()) tokenizer.normalised_added_.add(std::move(normalised));
  }
  return tokenizer;
}

void Tokenizer::put(Token id, std::string_view bytes, bool special) {
  if (id >= bytes_by_id_.size()) {
    bytes_by_id_.resize(std::size_t{id} + 1);
    special_by_id_.resize(std::size_t{id} + 1);
  }
  bytes_by_id_[id] = bytes;
  special_by_id_[id] = special;
}

Result<std::vector<Token>> Tokenizer::encode(std::string_view text) const {
  if (const std::size_t valid = valid_utf8_prefix(text); valid != text.size()) {
    return make_error(Errc::malformed, "the text is not UTF-8 at byte " + std::to_string(valid));
  }
  std::vector<Token> tokens;
  for (const auto& piece : raw_added_.split(text)) {
    if (piece.token) {
      tokens.push_back(*piece.token);
      continue;
    }
    const auto done = encode_raw(piece.text, piece.text.data() == text.data(), tokens);
    if (!done) return done.error();
  }
  return tokens;
}

Result<void> Tokenizer::encode_raw(std::string_view text, bool at_start,
                                   std::vector<Token>& out) const {
  std::string normalised;
  if (!parts_.normalizer.changes_nothing()) {
    auto applied = parts_.normalizer.apply(text);
    if (!applied) return applied.error();
    normalised = std::move(*applied);
    text = normalised;
  }
  for (const auto& piece : normalised_added_.split(text)) {
    if (piece.token) {
      out.push_back(*piece.token);
      continue;
    }
    const bool first = at_start && piece.text.data() == text.data();
    if (auto done = encode_normalised(piece.text, first, out); !done) return done;
  }
  return {};
}

Result<void> Tokenizer::encode_normalised(std::string_view text, bool at_start,
                                          std::vector<Token>& out) const {
  if (const auto* pieces = std::get_if<SentencePieceModel>(&parts_.model)) {
    return pieces->encode(text, at_start, out);
  }
  const auto words = parts_.pre_tokenizer.split(text, at_start);
  if (!words) return words.error();
  for (const std::string_view word : words->words) {
    std::get<Subwords>(parts_.model).encode(word, out);
  }
  return {};
}

std::string_view Tokenizer::bytes_of(Token token) const noexcept {
  return token < bytes_by_id_.size() ? std::string_view(bytes_by_id_[token]) : std::string_view{};
}

bool Tokenizer::is_special(Token token) const noexcept {
  return token < special_by_id_.size() && special_by_id_[token];
}

std::string Tokenizer::decode(std::span<const Token> tokens) const {
  Utf8Stream stream;
  std::string text;
  for (const Token token : tokens) text += stream.push(bytes_of(token));
  text += stream.finish();
  if (parts_.strips_leading_space && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

}  // namespace kvtier::engine
