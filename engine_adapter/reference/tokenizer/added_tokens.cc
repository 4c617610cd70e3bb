#include "engine_adapter/reference/tokenizer/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "engine_adapter/reference/tokenizer/utf8.h"

namespace kvtier::engine {
namespace {

// \w of Rust's regular expressions: Alphabetic, M, Nd, Pc, Join_Control. utf8proc knows no
// Alphabetic; beyond the letters and Nl that are circled and squared Latin letters.
bool is_word(std::uint32_t code) noexcept {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return code == 0x200C || code == 0x200D || (code >= 0x24B6 && code <= 0x24E9) ||
             (code >= 0x1F130 && code <= 0x1F149) || (code >= 0x1F150 && code <= 0x1F169) ||
             (code >= 0x1F170 && code <= 0x1F189);
  }
}

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) noexcept {
  return (begin == 0 || !is_word(last_character(text.substr(0, begin)).code)) &&
         (end == text.size() || !is_word(first_character(text.substr(end)).code));
}

}  // namespace

Result<AddedToken> parse_added_token(const Json& json, std::optional<Token> id,
                                     const std::string& where) {
  JsonFields fields(json, where);
  AddedToken token;
  token.id = id ? *id : fields.count("id");
  token.content = fields.text("content");
  token.special = fields.flag("special", false);
  token.single_word = fields.flag("single_word", false);
  token.lstrip = fields.flag("lstrip", false);
  token.rstrip = fields.flag("rstrip", false);
  token.normalized = fields.flag("normalized", !token.special);
  if (!fields.error() && (token.content.empty() || token.id >= kTokenIdsMax)) {
    fields.fail(Errc::malformed, "a token has no content or an id out of range");
  }
  if (fields.error()) return *fields.error();
  return token;
}

void AddedTokens::add(AddedToken token) {
  auto& tokens = by_first_byte_[static_cast<unsigned char>(token.content[0])];
  const auto place = std::find_if(tokens.begin(), tokens.end(), [&token](const AddedToken& other) {
    return other.content.size() < token.content.size();
  });
  tokens.insert(place, std::move(token));
}

const AddedToken* AddedTokens::at(std::string_view text) const noexcept {
  for (const AddedToken& token : by_first_byte_[static_cast<unsigned char>(text[0])]) {
    if (text.starts_with(token.content)) return &token;
  }
  return nullptr;
}

std::vector<AddedTokens::Piece> AddedTokens::split(std::string_view text) const {
  std::vector<Piece> pieces;
  std::size_t covered = 0;
  for (std::size_t place = 0; place < text.size();) {
    const AddedToken* token = at(text.substr(place));
    if (token == nullptr) {
      ++place;
      continue;
    }
    std::size_t begin = place;
    std::size_t end = place += token->content.size();
    if (token->single_word && !stands_alone(text, begin, end)) continue;
    while (token->lstrip && begin > covered) {
      const Character before = last_character(text.substr(0, begin));
      if (!is_white_space(before.code)) break;
      begin -= before.bytes;
    }
    while (token->rstrip && end < text.size()) {
      const Character after = first_character(text.substr(end));
      if (!is_white_space(after.code)) break;
      end += after.bytes;
    }
    if (covered < begin) pieces.push_back({text.substr(covered, begin - covered), {}});
    pieces.push_back({text.substr(begin, end - begin), token->id});
    covered = end;
    place = std::max(place, end);
  }
  if (covered < text.size()) pieces.push_back({text.substr(covered), {}});
  return pieces;
}

}  // namespace kvtier::engine
