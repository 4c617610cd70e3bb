#include "engine_adapter/engine/tokenizer.h"

#include <algorithm>
#include <deque>

#include "engine_adapter/engine/tokenizer_json.h"

namespace kvtier::engine {

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& file) {
  const auto json = read_json(file);
  if (!json) return json.error();
  return parse(*json, file.string());
}

Result<Tokenizer> Tokenizer::parse(const Json& json, const std::string& where) {
  auto parts = parse_tokenizer(json, where);
  if (!parts) return parts.error();
  return Tokenizer(std::move(*parts));
}

// A moved vector keeps its elements in place, so the pointers into parts_.added outlive a move of
// the tokenizer.
Tokenizer::Tokenizer(TokenizerParts parts)
    : parts_(std::move(parts)), bpe_(parts_.byte_tokens, parts_.merges) {
  const auto put = [this](Token id, std::string_view bytes, bool special) {
    if (id >= bytes_by_id_.size()) {
      bytes_by_id_.resize(std::size_t{id} + 1);
      special_by_id_.resize(std::size_t{id} + 1);
    }
    bytes_by_id_[id] = bytes;
    special_by_id_[id] = special;
  };
  for (const auto& [bytes, id] : parts_.vocabulary) put(id, bytes, false);
  for (const AddedToken& token : parts_.literals) put(token.id, token.content, false);
  for (const AddedToken& token : parts_.added) {
    put(token.id, token.content, token.special);
    added_by_first_byte_[static_cast<unsigned char>(token.content[0])].push_back(&token);
  }
  for (auto& tokens : added_by_first_byte_) {
    std::sort(tokens.begin(), tokens.end(), [](const AddedToken* a, const AddedToken* b) {
      return a->content.size() > b->content.size();
    });
  }
}

const AddedToken* Tokenizer::added_at(std::string_view text) const noexcept {
  for (const AddedToken* token : added_by_first_byte_[static_cast<unsigned char>(text[0])]) {
    if (text.starts_with(token->content)) return token;
  }
  return nullptr;
}

Result<std::vector<Token>> Tokenizer::encode(std::string_view text) const {
  if (const std::size_t valid = valid_utf8_prefix(text); valid != text.size()) {
    return make_error(Errc::malformed, "the text is not UTF-8 at byte " + std::to_string(valid));
  }
  std::vector<Token> tokens;
  std::size_t plain_from = 0;
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* token = added_at(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    const auto plain = encode_plain(text.substr(plain_from, at - plain_from), tokens);
    if (!plain) return plain.error();
    tokens.push_back(token->id);
    plain_from = at += token->content.size();
  }
  if (const auto plain = encode_plain(text.substr(plain_from), tokens); !plain) {
    return plain.error();
  }
  return tokens;
}

Result<void> Tokenizer::encode_plain(std::string_view text, std::vector<Token>& out) const {
  if (text.empty()) return {};
  std::vector<std::string_view> pieces{text};
  const auto split_by = [&pieces](const Splitter& splitter) -> Result<void> {
    std::vector<std::string_view> next;
    for (const std::string_view piece : pieces) {
      if (auto split = splitter.split(piece, next); !split) return split;
    }
    pieces = std::move(next);
    return {};
  };
  for (const Splitter& splitter : parts_.splitters) {
    if (auto split = split_by(splitter); !split) return split;
  }
  std::deque<std::string> spaced;  // what the pieces with an added space look into
  if (parts_.add_prefix_space) {
    for (std::string_view& piece : pieces) {
      if (!piece.starts_with(' ')) piece = spaced.emplace_back(" ").append(piece);
    }
  }
  if (parts_.byte_level_splitter) {
    if (auto split = split_by(*parts_.byte_level_splitter); !split) return split;
  }
  for (const std::string_view piece : pieces) encode_word(piece, out);
  return {};
}

void Tokenizer::encode_word(std::string_view word, std::vector<Token>& out) const {
  if (parts_.ignore_merges) {
    if (const auto whole = find(word)) {
      out.push_back(*whole);
      return;
    }
  }
  bpe_.encode(word, out);
}

std::optional<Token> Tokenizer::find(std::string_view bytes) const {
  const auto at = parts_.vocabulary.find(std::string(bytes));
  if (at == parts_.vocabulary.end()) return {};
  return at->second;
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
  return text + stream.finish();
}

}  // namespace kvtier::engine
