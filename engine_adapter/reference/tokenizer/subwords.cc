#include "engine_adapter/reference/tokenizer/subwords.h"

#include <array>
#include <cstdio>

#include "engine_adapter/reference/tokenizer/added_tokens.h"
#include "engine_adapter/reference/tokenizer/byte_level.h"
#include "engine_adapter/reference/tokenizer/pattern.h"
#include "engine_adapter/reference/tokenizer/space_mark.h"
#include "engine_adapter/reference/tokenizer/utf8.h"

namespace kvtier::engine {
namespace {

std::string byte_token(unsigned byte) {
  char text[8];
  std::snprintf(text, sizeof text, "<0x%02X>", byte);
  return text;
}

// "a b" or ["a", "b"].
Result<std::pair<std::string, std::string>> parse_pair(const Json& merge,
                                                       const std::string& where) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (merge.is_string()) {
    const auto text = merge.get<std::string>();
    const std::size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
  }
  return make_error(Errc::malformed, where + ": " + merge.dump() + " is not two tokens");
}

Result<std::vector<Bpe::Merge>> parse_merges(const Json& merges, const Json& vocabulary,
                                             const std::string& where) {
  std::vector<Bpe::Merge> parsed;
  parsed.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string here = where + ": merge " + std::to_string(rank);
    const auto pair = parse_pair(merges[rank], here);
    if (!pair) return pair.error();
    std::array<Token, 3> ids{};
    const std::array<std::string, 3> texts{pair->first, pair->second, pair->first + pair->second};
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto at = vocabulary.find(texts[i]);
      if (at == vocabulary.end()) {
        return make_error(Errc::malformed, here + ": '" + texts[i] + "' is not in the vocab");
      }
      ids[i] = at->get<Token>();
    }
    parsed.push_back({ids[0], ids[1], ids[2]});
  }
  return parsed;
}

}  // namespace

Result<void> Subwords::check(const Json& json, const std::string& where) {
  const std::string type = type_of(json);
  if (type != "BPE" && !(type.empty() && find(json, "merges") != nullptr)) {
    return make_error(Errc::invalid,
                      where + ": type '" + type + "' is not supported; supported is BPE");
  }
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* value = find(json, key);
    if (value != nullptr && *value != "" && *value != 0) {
      return make_error(Errc::invalid, where + ": " + std::string(key) + " = " + value->dump() +
                                           " is not supported; leave it out");
    }
  }
  const Json* vocabulary = find(json, "vocab");
  const Json* merges = find(json, "merges");
  if (vocabulary == nullptr || !vocabulary->is_object() || merges == nullptr ||
      !merges->is_array()) {
    return make_error(Errc::malformed, where + ": needs a vocab object and a merges array");
  }
  for (const auto& [text, id] : vocabulary->items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= kTokenIdsMax) {
      return make_error(Errc::malformed,
                        where + ": vocab: '" + text + "': " + id.dump() + " is not a token id");
    }
  }
  return {};
}

Result<Subwords> Subwords::parse(const Json& json, bool byte_level, const std::string& where) {
  if (auto checked = check(json, where); !checked) return checked.error();
  const Json& written = json.at("vocab");
  auto merges = parse_merges(json.at("merges"), written, where);
  if (!merges) return merges.error();
  Vocabulary vocabulary;
  vocabulary.reserve(written.size());
  std::vector<std::pair<Token, std::string>> tokens;
  tokens.reserve(written.size());
  for (const auto& [text, value] : written.items()) {
    const auto id = value.get<Token>();
    // What is outside the alphabet is out of BPE's reach: no word has it.
    auto bytes = byte_level ? bytes_from_alphabet(text) : text;
    tokens.emplace_back(id, !bytes ? text : byte_level ? *bytes : without_space_marks(text));
    if (bytes) vocabulary.emplace(std::move(*bytes), id);
  }
  Subwords subwords(std::move(vocabulary), std::move(tokens), Bpe(*merges));
  if (auto options = subwords.parse_options(json, byte_level, where); !options) {
    return options.error();
  }
  return subwords;
}

Result<void> Subwords::parse_options(const Json& json, bool byte_level, const std::string& where) {
  JsonFields fields(json, where);
  byte_level_ = byte_level;
  ignore_merges_ = fields.flag("ignore_merges", false);
  fuse_unknown_ = fields.flag("fuse_unk", false);
  const bool byte_fallback = fields.flag("byte_fallback", false);
  const std::string unknown = fields.text("unk_token", "");
  if (fields.error()) return *fields.error();
  if (const auto at = vocabulary_.find(unknown); !byte_level && !unknown.empty()) {
    if (at == vocabulary_.end()) {
      return make_error(Errc::malformed,
                        where + ": unk_token '" + unknown + "' is not in the vocab");
    }
    unknown_ = at->second;
  }
  if (!byte_level && !byte_fallback) return {};
  std::array<Token, 256> bytes{};
  std::unordered_map<Token, unsigned> byte_of;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto at =
        vocabulary_.find(byte_level ? std::string(1, static_cast<char>(byte)) : byte_token(byte));
    if (at == vocabulary_.end()) {
      return make_error(Errc::invalid, where + ": vocab has no token for byte " +
                                           std::to_string(byte) +
                                           "; supported are vocabularies with all 256, or none "
                                           "and an unk_token");
    }
    bytes[byte] = at->second;
    byte_of[at->second] = byte;
  }
  byte_tokens_ = bytes;
  for (auto& [id, text] : tokens_) {
    const auto at = byte_of.find(id);
    if (at != byte_of.end()) text = std::string(1, static_cast<char>(at->second));
  }
  return {};
}

std::vector<Token> Subwords::characters_of(std::string_view word) const {
  std::vector<Token> symbols;
  symbols.reserve(word.size());
  if (byte_level_) {
    for (const char c : word) symbols.push_back((*byte_tokens_)[static_cast<unsigned char>(c)]);
    return symbols;
  }
  bool after_unknown = false;
  while (!word.empty()) {
    const std::string_view character = word.substr(0, first_character(word).bytes);
    word.remove_prefix(character.size());
    const auto at = vocabulary_.find(character);
    const bool known = at != vocabulary_.end();
    if (known) {
      symbols.push_back(at->second);
    } else if (byte_tokens_) {
      for (const char c : character) {
        symbols.push_back((*byte_tokens_)[static_cast<unsigned char>(c)]);
      }
    } else if (unknown_ && !(after_unknown && fuse_unknown_)) {
      symbols.push_back(*unknown_);
    }
    after_unknown = !known;
  }
  return symbols;
}

void Subwords::encode(std::string_view word, std::vector<Token>& out) const {
  if (ignore_merges_) {
    if (const auto whole = vocabulary_.find(word); whole != vocabulary_.end()) {
      out.push_back(whole->second);
      return;
    }
  }
  bpe_.encode(characters_of(word), out);
}

}  // namespace kvtier::engine
