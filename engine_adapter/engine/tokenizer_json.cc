#include "engine_adapter/engine/tokenizer_json.h"

#include <array>

#include "engine_adapter/engine/byte_level.h"

namespace kvtier::engine {
namespace {

// Bounds the tables that are indexed by id.
constexpr Token kIdsMax = 1U << 24;

// GPT-2's, which ByteLevel uses with use_regex.
constexpr const char* kByteLevelExpression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Error invalid(const std::string& where, const std::string& message) {
  return make_error(Errc::invalid, where + ": " + message);
}

std::string type_of(const Json& part) {
  const Json* type = find(part, "type");
  return type != nullptr && type->is_string() ? type->get<std::string>() : "";
}

Result<Token> parse_id(const Json& id, const std::string& where) {
  if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= kIdsMax) {
    return make_error(Errc::malformed, where + ": " + id.dump() + " is not a token id");
  }
  return id.get<Token>();
}

Result<void> check_model(const Json& model, const std::string& where) {
  const std::string type = type_of(model);
  if (type != "BPE" && !(type.empty() && find(model, "merges") != nullptr)) {
    return invalid(where, "type '" + type + "' is not supported; supported is BPE");
  }
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* value = find(model, key);
    if (value != nullptr && *value != "" && *value != 0) {
      return invalid(where, std::string(key) + " = " + value->dump() + " is not supported");
    }
  }
  JsonFields fields(model, where);
  if (fields.flag("byte_fallback", false)) {
    return invalid(where, "byte_fallback is not supported; supported is byte-level BPE");
  }
  if (fields.error()) return *fields.error();
  return {};
}

Result<void> parse_vocabulary(const Json& vocabulary, const std::string& where,
                              TokenizerParts& parts) {
  parts.vocabulary.reserve(vocabulary.size());
  for (const auto& [text, value] : vocabulary.items()) {
    const auto id = parse_id(value, where + ": vocab: '" + text + "'");
    if (!id) return id.error();
    if (auto bytes = bytes_from_alphabet(text)) {
      parts.vocabulary.emplace(std::move(*bytes), *id);
    } else {
      parts.literals.push_back({*id, text, false});
    }
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto at = parts.vocabulary.find(std::string(1, static_cast<char>(byte)));
    if (at == parts.vocabulary.end()) {
      return invalid(where, "vocab has no token for byte " + std::to_string(byte) +
                                "; supported are byte-level vocabularies, which have all 256");
    }
    parts.byte_tokens[byte] = at->second;
  }
  return {};
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

Result<void> parse_merges(const Json& merges, const Json& vocabulary, const std::string& where,
                          TokenizerParts& parts) {
  parts.merges.reserve(merges.size());
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
    parts.merges.push_back({ids[0], ids[1], ids[2]});
  }
  return {};
}

Result<void> parse_model(const Json& model, const std::string& where, TokenizerParts& parts) {
  if (auto checked = check_model(model, where); !checked) return checked;
  const Json* vocabulary = find(model, "vocab");
  const Json* merges = find(model, "merges");
  if (vocabulary == nullptr || !vocabulary->is_object() || merges == nullptr ||
      !merges->is_array()) {
    return make_error(Errc::malformed, where + ": needs a vocab object and a merges array");
  }
  if (auto parsed = parse_vocabulary(*vocabulary, where, parts); !parsed) return parsed;
  if (auto parsed = parse_merges(*merges, *vocabulary, where, parts); !parsed) return parsed;
  JsonFields fields(model, where);
  parts.ignore_merges = fields.flag("ignore_merges", false);
  if (fields.error()) return *fields.error();
  return {};
}

Result<void> parse_added(const Json& added, const std::string& where, TokenizerParts& parts) {
  if (!added.is_array()) return make_error(Errc::malformed, where + ": not an array");
  for (const Json& entry : added) {
    JsonFields fields(entry, where);
    AddedToken token{fields.count("id"), fields.text("content"), fields.flag("special", false)};
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      if (fields.flag(key, false)) {
        fields.fail(Errc::invalid, "'" + token.content + "': " + key + " is not supported");
      }
    }
    if (!fields.error() && (token.content.empty() || token.id >= kIdsMax)) {
      fields.fail(Errc::malformed, "a token has no content or an id out of range");
    }
    if (fields.error()) return *fields.error();
    parts.added.push_back(std::move(token));
  }
  return {};
}

Result<SplitBehavior> parse_behavior(const std::string& text, const std::string& where) {
  if (text == "Removed") return SplitBehavior::removed;
  if (text == "Isolated") return SplitBehavior::isolated;
  if (text == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (text == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (text == "Contiguous") return SplitBehavior::contiguous;
  return make_error(Errc::malformed, where + ": unknown behavior '" + text + "'");
}

Result<void> parse_split(const Json& part, const std::string& where, TokenizerParts& parts) {
  JsonFields fields(part, where);
  const auto behavior = parse_behavior(fields.text("behavior"), where);
  const bool invert = fields.flag("invert", false);
  if (fields.error()) return *fields.error();
  if (!behavior) return behavior.error();
  const Json* pattern = find(part, "pattern");
  const Json* expression = pattern != nullptr ? find(*pattern, "Regex") : nullptr;
  const Json* literal = pattern != nullptr ? find(*pattern, "String") : nullptr;
  if ((expression == nullptr || !expression->is_string()) &&
      (literal == nullptr || !literal->is_string())) {
    return make_error(Errc::malformed, where + ": pattern is neither Regex nor String");
  }
  auto splitter =
      Splitter::compile(expression != nullptr ? expression->get<std::string>()
                                              : Splitter::escape(literal->get<std::string>()),
                        *behavior, invert);
  if (!splitter) return invalid(where, splitter.error().message);
  parts.splitters.push_back(std::move(*splitter));
  return {};
}

Result<void> parse_byte_level(const Json& part, const std::string& where, TokenizerParts& parts) {
  JsonFields fields(part, where);
  parts.add_prefix_space = fields.flag("add_prefix_space", true);
  const bool use_regex = fields.flag("use_regex", true);
  if (fields.error()) return *fields.error();
  if (!use_regex) return {};
  auto splitter = Splitter::compile(kByteLevelExpression, SplitBehavior::isolated, false);
  if (!splitter) return splitter.error();
  parts.byte_level_splitter.emplace(std::move(*splitter));
  return {};
}

// ByteLevel alone, or a Sequence of Splits that ends in ByteLevel.
Result<void> parse_pre_tokenizer(const Json* json, const std::string& where,
                                 TokenizerParts& parts) {
  std::vector<const Json*> steps;
  if (json != nullptr && type_of(*json) == "Sequence") {
    const Json* list = find(*json, "pretokenizers");
    if (list == nullptr || !list->is_array()) {
      return make_error(Errc::malformed, where + ": Sequence without pretokenizers");
    }
    for (const Json& step : *list) steps.push_back(&step);
  } else if (json != nullptr) {
    steps.push_back(json);
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::string type = type_of(*steps[i]);
    const bool last = i + 1 == steps.size();
    if (type == "Split" && !last) {
      if (auto split = parse_split(*steps[i], where + ": Split", parts); !split) return split;
    } else if (type == "ByteLevel" && last) {
      return parse_byte_level(*steps[i], where + ": ByteLevel", parts);
    } else {
      return invalid(where, "type '" + type + "' is not supported" + (last ? " at the end" : "") +
                                "; supported are Splits followed by ByteLevel");
    }
  }
  return invalid(where, "there is no ByteLevel; supported are byte-level tokenizers");
}

// The ids that TemplateProcessing puts before a single text.
Result<void> parse_template(const Json& part, const std::string& where, TokenizerParts& parts) {
  const Json* single = find(part, "single");
  const Json* tokens = find(part, "special_tokens");
  if (single == nullptr || !single->is_array()) {
    return make_error(Errc::malformed, where + ": single is not an array");
  }
  for (const Json& piece : *single) {
    const Json* special = find(piece, "SpecialToken");
    if (special == nullptr) break;
    const auto token_name = JsonFields(*special, where).text("id");
    const Json* token = tokens != nullptr ? find(*tokens, token_name.c_str()) : nullptr;
    const Json* ids = token != nullptr ? find(*token, "ids") : nullptr;
    if (ids == nullptr || !ids->is_array()) {
      return make_error(Errc::malformed, where + ": no ids for '" + token_name + "'");
    }
    for (const Json& value : *ids) {
      const auto id = parse_id(value, where);
      if (!id) return id.error();
      parts.template_prefix.push_back(*id);
    }
  }
  return {};
}

// Only TemplateProcessing matters to what an engine reads; the others move offsets.
Result<void> parse_post_processor(const Json& json, const std::string& where,
                                  TokenizerParts& parts) {
  if (type_of(json) == "TemplateProcessing") return parse_template(json, where, parts);
  const Json* list = find(json, "processors");
  if (type_of(json) != "Sequence" || list == nullptr || !list->is_array()) return {};
  for (const Json& step : *list) {
    if (type_of(step) != "TemplateProcessing") continue;
    if (auto parsed = parse_template(step, where, parts); !parsed) return parsed;
  }
  return {};
}

}  // namespace

Result<TokenizerParts> parse_tokenizer(const Json& json, const std::string& where) {
  TokenizerParts parts;
  const Json* model = find(json, "model");
  if (model == nullptr) return make_error(Errc::malformed, where + ": there is no model");
  if (auto parsed = parse_model(*model, where + ": model", parts); !parsed) return parsed.error();
  if (const Json* added = find(json, "added_tokens")) {
    const auto parsed = parse_added(*added, where + ": added_tokens", parts);
    if (!parsed) return parsed.error();
  }
  if (const Json* normalizer = find(json, "normalizer")) {
    return invalid(where,
                   "normalizer '" + type_of(*normalizer) + "' is not supported; supported is none");
  }
  const auto pre =
      parse_pre_tokenizer(find(json, "pre_tokenizer"), where + ": pre_tokenizer", parts);
  if (!pre) return pre.error();
  const Json* decoder = find(json, "decoder");
  if (decoder == nullptr || type_of(*decoder) != "ByteLevel") {
    return invalid(where, "decoder '" + (decoder ? type_of(*decoder) : "null") +
                              "' is not supported; supported is ByteLevel");
  }
  if (const Json* post = find(json, "post_processor")) {
    const auto parsed = parse_post_processor(*post, where + ": post_processor", parts);
    if (!parsed) return parsed.error();
  }
  return parts;
}

}  // namespace kvtier::engine
