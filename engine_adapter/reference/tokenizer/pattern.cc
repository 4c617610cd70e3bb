#include "engine_adapter/reference/tokenizer/pattern.h"

namespace kvtier::engine {

std::string type_of(const Json& part) {
  const Json* type = find(part, "type");
  return type != nullptr && type->is_string() ? type->get<std::string>() : "";
}

Result<Splitter> compile_pattern(const Json& part, const std::string& where, SplitBehavior behavior,
                                 bool invert) {
  const Json* pattern = find(part, "pattern");
  const Json* expression = pattern != nullptr ? find(*pattern, "Regex") : nullptr;
  const Json* literal = pattern != nullptr ? find(*pattern, "String") : nullptr;
  const Json* text = expression != nullptr ? expression : literal;
  if (text == nullptr || !text->is_string() || text->get_ref<const std::string&>().empty()) {
    return make_error(Errc::malformed, where + ": pattern is neither Regex nor String");
  }
  const auto& written = text->get_ref<const std::string&>();
  auto splitter =
      Splitter::compile(text == expression ? written : Splitter::escape(written), behavior, invert);
  if (!splitter) return make_error(Errc::invalid, where + ": " + splitter.error().message);
  return splitter;
}

}  // namespace kvtier::engine
