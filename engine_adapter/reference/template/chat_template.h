// A model's chat template: from a conversation to the text that the model was trained on.
// Immutable; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine_adapter/reference/template/template.h"
#include "kvtier/result.h"

namespace kvtier::engine {

class ChatTemplate {
 public:
  // The file `instead`, where it is given; or chat_template.jinja in `folder`, or chat_template of
  // its tokenizer_config.json (of several the one named "default"). With the special tokens of
  // tokenizer_config.json. None where there is no template.
  // Errors: malformed, invalid, naming the file without its folder, for clients see it.
  static Result<std::optional<ChatTemplate>> load(const std::filesystem::path& folder,
                                                  const std::filesystem::path& instead = {});
  // `special_tokens`: bos_token and its kind, by name.
  static Result<ChatTemplate> compile(const std::string& source, const std::string& where,
                                      jinja::Map special_tokens);

  struct Conversation {
    jinja::OrderedJson messages = jinja::OrderedJson::array();
    jinja::OrderedJson tools;  // null for none
    bool add_generation_prompt = true;
    bool continue_final_message = false;  // told to the template, which may heed it
    jinja::OrderedJson more;              // an object: further variables (enable_thinking)
  };
  // `now`: seconds since 1970. It takes a second of this thread at most (jinja::RenderLimits).
  // Errors: refused (the template does not take the conversation), invalid (it needs what is not
  // supported).
  Result<std::string> render(const Conversation& conversation, std::int64_t now) const;

  // Renders a few conversations of the usual kinds. Returns what it cannot render of them, beside
  // what it refuses by itself. Errors: invalid, where it renders none.
  Result<std::vector<std::string>> try_out() const;

 private:
  ChatTemplate(jinja::Template compiled, jinja::Map special_tokens)
      : template_(std::move(compiled)), special_tokens_(std::move(special_tokens)) {}

  jinja::Template template_;
  jinja::Map special_tokens_;
};

}  // namespace kvtier::engine
