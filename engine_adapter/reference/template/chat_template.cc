#include "engine_adapter/reference/template/chat_template.h"

#include "engine_adapter/reference/files/file_kind.h"
#include "engine_adapter/reference/files/json.h"

namespace kvtier::engine {
namespace {

using jinja::OrderedJson;
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

// With errors that name the file alone.
Result<std::string> read_named(const std::filesystem::path& file) {
  auto text = read_file(file);
  if (text) return text;
  return make_error(text.error().code, file.filename().string() + ": cannot be read");
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

Result<std::optional<ChatTemplate>> ChatTemplate::load(const std::filesystem::path& folder,
                                                       const std::filesystem::path& instead) {
  const auto config_file = folder / "tokenizer_config.json";
  const auto template_file = instead.empty() ? folder / "chat_template.jinja" : instead;
  std::error_code code;
  Json config = Json::object();
  if (std::filesystem::exists(config_file, code)) {
    const auto text = read_named(config_file);
    if (!text) return text.error();
    auto read = parse_json(*text, config_file.filename().string());
    if (!read) return read.error();
    config = std::move(*read);
  }
  std::optional<std::string> source;
  std::string where = config_file.filename().string() + ": chat_template";
  if (!instead.empty() || std::filesystem::exists(template_file, code)) {
    auto text = read_named(template_file);
    if (!text) return text.error();
    // It would be a template that says the same whatever was asked.
    if (const auto other = kind_of(std::as_bytes(std::span(*text)))) {
      return make_error(Errc::malformed, template_file.filename().string() + ": is " + *other);
    }
    source = std::move(*text);
    where = template_file.filename().string();
  } else {
    auto written = source_of(config, config_file.filename().string());
    if (!written) return written.error();
    source = std::move(*written);
  }
  if (!source) return std::optional<ChatTemplate>{};
  auto compiled = compile(*source, where, special_tokens_of(config));
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

Result<std::vector<std::string>> ChatTemplate::try_out() const {
  const OrderedJson system{{"role", "system"}, {"content", "Be brief."}};
  const OrderedJson question{{"role", "user"}, {"content", "What time is it?"}};
  const OrderedJson answer{{"role", "assistant"}, {"content", "Noon."}};
  const OrderedJson call{
      {"role", "assistant"},
      {"content", ""},
      {"tool_calls",
       {{{"id", "call00001"},
         {"type", "function"},
         {"function", {{"name", "clock"}, {"arguments", OrderedJson::object()}}}}}}};
  const OrderedJson told{
      {"role", "tool"}, {"name", "clock"}, {"tool_call_id", "call00001"}, {"content", "12:00"}};
  const std::pair<const char*, OrderedJson> trials[] = {
      {"a question", OrderedJson::array({question})},
      {"a system message", OrderedJson::array({system, question})},
      {"an answer", OrderedJson::array({question, answer, question})},
      {"a tool call", OrderedJson::array({question, call, told, answer, question})},
  };
  constexpr std::int64_t kSomeTime = 1'700'000'000;
  std::optional<Error> first;
  std::vector<std::string> failures;
  bool any = false;
  for (const auto& [what, messages] : trials) {
    Conversation conversation;
    conversation.messages = messages;
    const auto text = render(conversation, kSomeTime);
    any = any || text;
    if (text) continue;
    if (!first) first = text.error();
    if (text.error().code == Errc::refused) continue;
    failures.push_back(std::string("with ") + what + ": " + text.error().message);
  }
  if (!any) return make_error(Errc::invalid, first->message);
  return failures;
}

}  // namespace kvtier::engine
