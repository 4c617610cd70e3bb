#include "engine_adapter/reference/tokenizer/tokenizer_json.h"

#include <charconv>

#include "engine_adapter/reference/tokenizer/pattern.h"
#include "engine_adapter/reference/tokenizer/space_mark.h"

namespace kvtier::engine {
namespace {

Error invalid(const std::string& where, const std::string& message) {
  return make_error(Errc::invalid, where + ": " + message);
}

Result<Token> parse_id(const Json& id, const std::string& where) {
  if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= kTokenIdsMax) {
    return make_error(Errc::malformed, where + ": " + id.dump() + " is not a token id");
  }
  return id.get<Token>();
}

Result<void> parse_added(const Json& added, const std::string& where, TokenizerParts& parts) {
  if (!added.is_array()) return make_error(Errc::malformed, where + ": not an array");
  for (const Json& entry : added) {
    auto token = parse_added_token(entry, {}, where);
    if (!token) return token.error();
    parts.added.push_back(std::move(*token));
  }
  return {};
}

// The steps that undo what the vocabulary's spelling of spaces and bytes does.
Result<void> parse_decoder_step(const Json& json, const std::string& where, TokenizerParts& parts) {
  const std::string type = type_of(json);
  JsonFields fields(json, where + ": " + type);
  if (type == "ByteFallback" || type == "Fuse") return {};
  if (type == "Replace") {
    const Json* pattern = find(json, "pattern");
    const Json* text = pattern != nullptr ? find(*pattern, "String") : nullptr;
    if (text != nullptr && *text == std::string(kSpaceMark) && fields.text("content") == " ") {
      return {};
    }
    return invalid(where, "Replace is not supported but of U+2581 by a space");
  }
  if (type == "Strip") {
    if (fields.text("content") == " " && fields.count("start") <= 1 && fields.count("stop") == 0 &&
        !fields.error()) {
      parts.strips_leading_space = fields.count("start") == 1;
      return {};
    }
    return invalid(where, "Strip is not supported but of one space at the start");
  }
  if (type == "Metaspace") {
    parts.strips_leading_space =
        fields.text("prepend_scheme", fields.flag("add_prefix_space", true) ? "always" : "never") !=
        "never";
    if (fields.error()) return *fields.error();
    return {};
  }
  return invalid(where, "'" + type +
                            "' is not supported here; supported are ByteLevel for byte-level "
                            "tokenizers, else Replace, ByteFallback, Fuse, Strip and Metaspace");
}

Result<void> parse_decoder(const Json* json, const std::string& where, TokenizerParts& parts) {
  if (parts.pre_tokenizer.is_byte_level()) {
    if (json != nullptr && type_of(*json) == "ByteLevel") return {};
    return invalid(where, "'" + (json ? type_of(*json) : "null") +
                              "' is not supported; supported is ByteLevel, as the pre_tokenizer");
  }
  if (json == nullptr) return invalid(where, "there is none");
  if (type_of(*json) != "Sequence") return parse_decoder_step(*json, where, parts);
  const Json* list = find(*json, "decoders");
  if (list == nullptr || !list->is_array()) {
    return make_error(Errc::malformed, where + ": Sequence without decoders");
  }
  for (const Json& step : *list) {
    if (auto parsed = parse_decoder_step(step, where, parts); !parsed) return parsed;
  }
  return {};
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

// added_tokens_decoder: {"32000": {"content": ...}, ...}.
Result<void> parse_added_decoder(const Json& json, const std::string& where,
                                 TokenizerParts& parts) {
  if (!json.is_object()) return make_error(Errc::malformed, where + ": not an object");
  for (const auto& [key, entry] : json.items()) {
    Token id = 0;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), id);
    if (read.ec != std::errc{} || read.ptr != key.data() + key.size()) {
      return make_error(Errc::malformed, where + ": '" + key + "' is not a token id");
    }
    auto token = parse_added_token(entry, id, where + ": " + key);
    if (!token) return token.error();
    std::erase_if(parts.added, [id](const AddedToken& other) { return other.id == id; });
    parts.added.push_back(std::move(*token));
  }
  return {};
}

}  // namespace

Result<TokenizerParts> parse_tokenizer(const Json& json, const std::string& where) {
  const Json* model = find(json, "model");
  if (model == nullptr) return make_error(Errc::malformed, where + ": there is no model");
  PreTokenizer pre;
  if (const Json* part = find(json, "pre_tokenizer")) {
    auto parsed = PreTokenizer::parse(*part, where + ": pre_tokenizer");
    if (!parsed) return parsed.error();
    pre = std::move(*parsed);
  }
  auto subwords = Subwords::parse(*model, pre.is_byte_level(), where + ": model");
  if (!subwords) return subwords.error();
  TokenizerParts parts{.normalizer = {},
                       .pre_tokenizer = std::move(pre),
                       .model = std::move(*subwords),
                       .added = {},
                       .template_prefix = {}};
  if (const Json* added = find(json, "added_tokens")) {
    const auto parsed = parse_added(*added, where + ": added_tokens", parts);
    if (!parsed) return parsed.error();
  }
  if (const Json* part = find(json, "normalizer")) {
    auto normalizer = Normalizer::parse(*part, where + ": normalizer");
    if (!normalizer) return normalizer.error();
    parts.normalizer = std::move(*normalizer);
  }
  const auto decoder = parse_decoder(find(json, "decoder"), where + ": decoder", parts);
  if (!decoder) return decoder.error();
  if (const Json* post = find(json, "post_processor")) {
    const auto parsed = parse_post_processor(*post, where + ": post_processor", parts);
    if (!parsed) return parsed.error();
  }
  return parts;
}

Result<TokenizerParts> load_sentencepiece(const std::filesystem::path& folder) {
  auto model = SentencePieceModel::load(folder / "tokenizer.model");
  if (!model) return model.error();
  const auto bos = model->bos();
  TokenizerParts parts{.normalizer = {},
                       .pre_tokenizer = {},
                       .model = *model,
                       .added = model->control_tokens(),
                       .template_prefix = {},
                       .strips_leading_space = model->adds_leading_space()};
  bool add_bos = true;
  const auto config_file = folder / "tokenizer_config.json";
  std::error_code code;
  if (std::filesystem::exists(config_file, code)) {
    const auto config = read_json(config_file);
    if (!config) return config.error();
    JsonFields fields(*config, config_file.string());
    add_bos = fields.flag("add_bos_token", true);
    if (fields.error()) return *fields.error();
    if (const Json* added = find(*config, "added_tokens_decoder")) {
      const auto parsed =
          parse_added_decoder(*added, config_file.string() + ": added_tokens_decoder", parts);
      if (!parsed) return parsed.error();
    }
  }
  if (add_bos && bos) parts.template_prefix.push_back(*bos);
  return parts;
}

}  // namespace kvtier::engine
