#include "engine_adapter/engine/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/support.h"

namespace kvtier::engine::test {
namespace {

using jinja::OrderedJson;

constexpr std::int64_t kNow = 1'721'994'896;  // 26 Jul 2024

std::string rendered(const std::string& source, const OrderedJson& variables) {
  const auto compiled = jinja::Template::compile(source, "template");
  if (!compiled) return "error: " + compiled.error().message;
  const jinja::Value value = jinja::Value::from_json(variables);
  const auto text = compiled->render(*value.map(), kNow);
  return text ? *text : "error: " + text.error().message;
}

TEST(Jinja, RendersWhatJinja2Renders) {
  const auto folder = source_directory() / "tests/data/chat";
  const auto text = read_file(folder / "cases.json");
  ASSERT_TRUE(text) << text.error().message;
  const OrderedJson cases = OrderedJson::parse(*text).at("cases");
  ASSERT_GE(cases.size(), 200U);
  std::size_t errors = 0;
  for (const OrderedJson& one : cases) {
    const std::string source = one.contains("file")
                                   ? read_file(folder / one.at("file").get<std::string>()).value()
                                   : one.at("source").get<std::string>();
    const std::string found = rendered(source, one.at("variables"));
    if (one.contains("text")) {
      EXPECT_EQ(found, one.at("text").get<std::string>()) << one.dump(1);
    } else {
      EXPECT_TRUE(found.starts_with("error: ")) << one.dump(1) << "\n" << found;
      ++errors;
    }
  }
  EXPECT_GT(errors, 10U);
}

TEST(Jinja, RefusesWhatItDoesNotHaveNamingLineAndConstruct) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{% macro m() %}{% endmacro %}", "line 2: the tag 'macro'"},
      {"{% set x %}a{% endset %}", "line 1: set is supported as"},
      {"\n\n{{ 'a' | wordwrap }}", "line 3: the filter 'wordwrap'"},
      {"{{ 1 is sameas 1 }}", "line 1: the test 'sameas'"},
      {"{{ 'a'.encode() }}", "line 1: the string method 'encode'"},
      {"{{ cycler(1) }}", "line 1: the function 'cycler'"},
      {"{{ 1 < 2 < 3 }}", "a chain of comparisons"},
      {"{% for x in [1] %}", "'for' has no 'endfor'"},
      {"{% if x %}", "'if' has no 'endif'"},
      {"{% endif %}", "'endif'"},
      {"{% break %}", "'break'"},
      {"{{ 'a", "a string has no end"},
      {"{{ 1 ", "a tag has no end"},
      {"{# a", "the comment has no end"},
      {"{{ 2 ** 3 }}", "'**'"},
      {"{{ }}", "expected a value"},
      {"{{ 1 2 }}", "'2'"},
      {"{{ '\\x41' }}", "the escape \\x"},
      {"{{ 9223372036854775807 + 1 }}", "beyond 64 bits"},
  };
  for (const auto& [source, message] : cases) {
    const std::string found = rendered(source, OrderedJson::object());
    EXPECT_TRUE(found.starts_with("error: template, line")) << source << "\n" << found;
    EXPECT_NE(found.find(message), std::string::npos) << source << "\n" << found;
  }
}

TEST(Jinja, BoundsDepthStepsAndOutput) {
  EXPECT_NE(rendered("{{ " + std::string(100'000, '(') + "1" + std::string(100'000, ')') + " }}",
                     OrderedJson::object())
                .find("nested too deeply"),
            std::string::npos);
  EXPECT_NE(
      rendered("{% for i in range(99999999) %}x{% endfor %}", OrderedJson::object()).find("steps"),
      std::string::npos);
  const auto doubling = jinja::Template::compile(
      "{% set n = namespace(t='xxxxxxxx') %}{% for i in range(64) %}"
      "{% set n.t = n.t + n.t %}{% endfor %}",
      "template");
  ASSERT_TRUE(doubling);
  const auto text = doubling->render({}, kNow, {.steps = 10'000, .output_bytes = 1U << 16U});
  ASSERT_FALSE(text);
  EXPECT_NE(text.error().message.find("too long"), std::string::npos);
}

TEST(ChatTemplate, ComesFromTheTokenizersConfigurationWithItsSpecialTokens) {
  const TemporaryDirectory folder;
  ASSERT_TRUE(ChatTemplate::load(folder.path()));
  EXPECT_FALSE(*ChatTemplate::load(folder.path()));
  write_file(folder / "tokenizer_config.json",
             R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template":
                 "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}{{ style }}"})");
  ChatTemplate::Conversation conversation;
  conversation.messages = {{{"role", "user"}, {"content", "hi"}}};
  conversation.more = {{"style", "!"}};
  const auto from_config = ChatTemplate::load(folder.path());
  ASSERT_TRUE(from_config && *from_config);
  EXPECT_EQ((*from_config)->render(conversation, kNow).value(), "<s>user:hi</s>!");
  write_file(folder / "chat_template.jinja", "{{ raise_exception('not today') }}");
  const auto from_file = ChatTemplate::load(folder.path());
  ASSERT_TRUE(from_file && *from_file);
  const auto refused = (*from_file)->render(conversation, kNow);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::refused);
  EXPECT_EQ(refused.error().message, "not today");
  write_file(folder / "chat_template.jinja", "{% block x %}");
  const auto broken = ChatTemplate::load(folder.path());
  ASSERT_FALSE(broken);
  EXPECT_NE(broken.error().message.find("chat_template.jinja, line 1"), std::string::npos);
}

TEST(ChatTemplate, TakesTheDefaultOfSeveral) {
  const TemporaryDirectory folder;
  write_file(folder / "tokenizer_config.json",
             R"({"chat_template": [{"name": "tool_use", "template": "t"},
                                   {"name": "default", "template": "d"}]})");
  const auto loaded = ChatTemplate::load(folder.path());
  ASSERT_TRUE(loaded && *loaded);
  EXPECT_EQ((*loaded)->render({}, kNow).value(), "d");
  write_file(folder / "tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_FALSE(ChatTemplate::load(folder.path()));
}

}  // namespace
}  // namespace kvtier::engine::test
