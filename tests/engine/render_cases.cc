// Renders templates for scripts/chat/compare.py: reads {"source", "variables"} as lines of JSON and
// answers each with {"text"} or {"error"}.
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine_adapter/reference/template/template.h"

namespace {

using kvtier::jinja::OrderedJson;
using kvtier::jinja::Template;
using kvtier::jinja::Value;

constexpr std::int64_t kNow = 1'721'994'896;  // 26 Jul 2024

OrderedJson answer_of(const OrderedJson& one) {
  static std::map<std::string, kvtier::Result<Template>> compiled;
  const auto& source = one.at("source").get_ref<const std::string&>();
  auto at = compiled.find(source);
  if (at == compiled.end()) at = compiled.emplace(source, Template::compile(source, "t")).first;
  if (!at->second) return {{"error", at->second.error().message}};
  const Value variables = Value::from_json(one.at("variables"));
  const auto text = at->second->render(*variables.map(), kNow);
  if (!text) return {{"error", text.error().message}};
  return {{"text", *text}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer_of(OrderedJson::parse(line))
                     .dump(-1, ' ', false, OrderedJson::error_handler_t::replace)
              << '\n';
  }
  return 0;
}
