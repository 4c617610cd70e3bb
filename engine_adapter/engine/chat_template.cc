#include "engine_adapter/engine/chat_template.h"

#include "engine_adapter/engine/file_kind.h"
#include "engine_adapter/engine/json.h"

namespace kvtier::engine {
namespace {

using jinja::Value;

// "bos_token": "<s>" or {"content": "<s>", ...}.
jinja::Map special_tokens_of(const Json& config) {
  jinja::Map tokens;
  for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    const Json* token = find(config, key);
    if (token != nullptr && token->is_object()) token = find(*token, "content");
    if (token != nullptr && token->is_string())
      tokens.set(key, Value::of(token->get<std::string>()));
  }
  return tokens;
}

// A text, or a list of named ones. Null: there is none. Errors: malformed.
Result<std::optional<std::string>> source_of(const Json& config, const std::string& where) {
  const Json* written = find(config, "chat_template");
  if (written == nullptr) return std::optional<std::string>{};
  if (written->is_string()) return std::optional(written->get<std::string>());
  if (written->is_array()) {
    for (const Json& one : *written) {
      const Json* title = find(one, "name");
      const Json* text = find(one, "template");
      if (title != nullptr && *title == "default" && text != nullptr && text->is_string()) {
        return std::optional(text->get<std::string>());
      }
    }
  }
  return make_error(
      Errc::malformed,
      where + ": chat_template is neither a text nor a list with one named 'default'");
}

}  // namespace

Result<std::optional<ChatTemplate>> ChatTemplate::load(const std::filesystem::path& folder) {
  const auto config_file = folder / "tokenizer_config.json";
  const auto template_file = folder / "chat_template.jinja";
  std::error_code code;
  Json config = Json::object();
  if (std::filesystem::exists(config_file, code)) {
    auto read = read_json(config_file);
    if (!read) return read.error();
    config = std::move(*read);
  }
  auto source = source_of(config, config_file.string());
  if (!source) return source.error();
  std::string where = config_file.string() + ": chat_template";
  if (std::filesystem::exists(template_file, code)) {
    auto text = read_file(template_file);
    if (!text) return text.error();
    // It would be a template that says the same whatever was asked.
    if (const auto other = kind_of(std::as_bytes(std::span(*text)))) {
      return make_error(Errc::malformed, template_file.string() + ": is " + *other);
    }
    *source = std::move(*text);
    where = template_file.string();
  }
  if (!*source) return std::optional<ChatTemplate>{};
  auto compiled = compile(**source, where, special_tokens_of(config));
  if (!compiled) return compiled.error();
  return std::optional<ChatTemplate>(std::move(*compiled));
}

Result<ChatTemplate> ChatTemplate::compile(const std::string& source, const std::string& where,
                                           jinja::Map special_tokens) {
  auto compiled = jinja::Template::compile(source, where);
  if (!compiled) return compiled.error();
  return ChatTemplate(std::move(*compiled), std::move(special_tokens));
}

Result<std::string> ChatTemplate::render(const Conversation& conversation, std::int64_t now) const {
  jinja::Map variables = special_tokens_;
  if (conversation.more.is_object()) {
    for (const auto& [key, value] : conversation.more.items()) {
      variables.set(key, Value::from_json(value));
    }
  }
  variables.set("messages", Value::from_json(conversation.messages));
  variables.set("tools", Value::from_json(conversation.tools));
  variables.set("documents", Value::none());
  variables.set("add_generation_prompt", Value::of(conversation.add_generation_prompt));
  variables.set("continue_final_message", Value::of(conversation.continue_final_message));
  return template_.render(variables, now);
}

}  // namespace kvtier::engine
