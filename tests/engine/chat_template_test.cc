#include "engine_adapter/reference/template/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "tests/engine/support.h"

namespace kvtier::engine::test {
namespace {

using jinja::OrderedJson;

constexpr std::int64_t kNow = 1'721'994'896;  // 26 Jul 2024

// Whatever a sanitizer or a busy machine makes of it.
constexpr jinja::RenderLimits kPatient{.thread_time = std::chrono::minutes(10)};

std::string rendered(const std::string& source, const OrderedJson& variables,
                     const jinja::RenderLimits& limits = kPatient) {
  const auto compiled = jinja::Template::compile(source, "template");
  if (!compiled) return "error: " + compiled.error().message;
  const jinja::Value value = jinja::Value::from_json(variables);
  const auto text = compiled->render(*value.map(), kNow, limits);
  return text ? *text : "error: " + text.error().message;
}

TEST(Jinja, RendersWhatJinja2Renders) {
  const auto folder = source_directory() / "tests/data/chat";
  const auto text = read_file(folder / "cases.json");
  ASSERT_TRUE(text) << text.error().message;
  const OrderedJson cases = OrderedJson::parse(*text).at("cases");
  ASSERT_GE(cases.size(), 400U);
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
      {"a\n{% block m %}{% endblock %}", "line 2: the tag 'block'"},
      {"{% set x, y %}a{% endset %}", "line 1: expected '='"},
      {"\n\n{{ 'a' | wordwrap }}", "line 3: the filter 'wordwrap'"},
      {"{% if true %}\n{{ 'a' | wordwrap }}{% endif %}", "line 2: the filter 'wordwrap'"},
      {"{{ 1 is lovely }}", "line 1: the test 'lovely'"},
      {"{{ 'a'.encode() }}", "line 1: the string method 'encode'"},
      {"{{ cycler(1) }}", "line 1: the function 'cycler'"},
      {"{{ f(*x) }}", "arguments by *"},
      {"{% for x in [1] %}", "'for' has no 'endfor'"},
      {"{% if x %}", "'if' has no 'endif'"},
      {"{% macro f() %}", "'macro' has no 'endmacro'"},
      {"{% raw %}", "'raw' has no 'endraw'"},
      {"{% endif %}", "'endif'"},
      {"{% break %}", "'break'"},
      {"{% for x in [1] %}{% set y %}{% break %}{% endset %}{% endfor %}", "'break'"},
      {"{{ 'a", "a string has no end"},
      {"{{ 1 ", "a tag has no end"},
      {"{# a", "the comment has no end"},
      {"{{ }}", "expected a value"},
      {"{{ 1 2 }}", "'2'"},
      {"{{ '\\x4' }}", "an escape in a string"},
      {"{{ '\\ud800' }}", "half a character"},
      {"{{ 9223372036854775807 + 1 }}", "beyond 64 bits"},
      {"{{ 'a'.strip }}", "has no text"},
  };
  for (const auto& [source, message] : cases) {
    const std::string found = rendered(source, OrderedJson::object());
    EXPECT_TRUE(found.starts_with("error: template, line")) << source << "\n" << found;
    EXPECT_NE(found.find(message), std::string::npos) << source << "\n" << found;
  }
}

TEST(Jinja, WhatIsMissingUnderAConditionIsMissedOnlyWhereItIsReached) {
  EXPECT_EQ(rendered("{% if false %}{{ 'a' | wordwrap }}{% endif %}b", OrderedJson::object()), "b");
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// A rendering that goes beyond a bound is refused; what it is made of is freed without a crash.
TEST(Jinja, RefusesTemplatesThatMakeTooMuchOfLittle) {
  constexpr jinja::RenderLimits kSmall{.steps = 500'000,
                                       .made_bytes = 32U << 20U,
                                       .output_bytes = 1U << 20U,
                                       .thread_time = std::chrono::minutes(10)};
  const std::string rounds = "{% for i in range(100000) %}{% for j in range(2) %}";
  const std::string ends = "{% endfor %}{% endfor %}";
  const std::pair<std::string, const char*> cases[] = {
      {"{% set ns = namespace(x=1) %}" + rounds + "{% set ns.x = [ns.x] %}" + ends +
           "{{ ns.x | tojson }}",
       "nested too deeply"},
      {"{% set ns = namespace(x=1) %}" + rounds + "{% set ns.x = {'a': ns.x} %}" + ends,
       "nested too deeply"},
      {"{% set ns = namespace(x='') %}" + rounds + "{% set ns.x = {'a': ns.x}.get %}" + ends,
       "nested too deeply"},
      {"{% set ns = namespace(x=[1]) %}" + rounds +
           "{% for k in [ns.x] %}{% set ns.x = loop %}{% endfor %}" + ends,
       "nested too deeply"},
      {"{% set ns = namespace(x=1) %}{% set ns.x = [ns] %}{{ ns.x }}", "nested too deeply"},
      {"{% set ns = namespace(x=1) %}{% set ns.x = [ns] %}{{ ns.x | tojson }}", "no JSON form"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(30) %}{% set ns.x = [ns.x, ns.x] %}"
       "{% endfor %}{{ ns.x | tojson }}",
       "steps"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(30) %}{% set ns.x = [ns.x, ns.x] %}"
       "{% endfor %}{{ ns.x | string | length }}",
       "steps"},
      {"{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(30) %}"
       "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
       "steps"},
      {"{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}"
       "{% endfor %}",
       "too large"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}"
       "{% endfor %}",
       "too large"},
      {"{{ 'a' * 1000000000 }}", "too large"},
      {"{{ [1] * 1000000000 * 1000000000 }}", "too large"},
      {"{{ range(1000000000) | length }}", "a range of more"},
      {"{{ ('a' * 100000).replace('', 'b' * 100000) | length }}", "too large"},
      {"{{ ('b' * 100000).join('a' * 100000) | length }}", "too large"},
      {"{{ ('a,' * 1000000).split(',') | length }}", "too large"},
      {"{{ 'a'.center(1000000000) }}", "too large"},
      {"{{ 'a'.ljust(100000000000) }}", "too wide"},
      {"{{ '%1000000000d' % 1 }}", "too wide"},
      {"{{ ('a\\n' * 100000) | indent('b' * 1000) | length }}", "too large"},
      {"{{ [1] | batch(1000000000, 2) | list }}", "batch"},
      {"{{ 9 ** 9 ** 9 }}", "beyond 64 bits"},
      {"{{ 'a' * 600000 }}{{ 'a' * 600000 }}", "the text is too long"},
      {"{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "nested too deeply"},
      {"{% macro f(x) %}{% call f(x) %}{% endcall %}{% endmacro %}{{ f(1) }}", "nested too deeply"},
      {"{% macro f(x) %}{{ x }}{{ f([x]) }}{% endmacro %}{{ f(1) }}", "nested too deeply"},
      {"{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", "nested too deeply"},
      {"{% for i in range(100000) %}{% if 1 %}{% if 1 %}{% if 1 %}{% endif %}{% endif %}{% endif %}"
       "{% endfor %}",
       "steps"},
  };
  for (const auto& [source, message] : cases) {
    const std::string found = rendered(source, OrderedJson::object(), kSmall);
    EXPECT_NE(found.find(message), std::string::npos) << source << "\n" << found.substr(0, 300);
    EXPECT_TRUE(found.starts_with("error: template, line 1")) << source;
  }
}

// With the bounds that servers have.
TEST(Jinja, AListInAListAHundredThousandTimesIsRefused) {
  const std::string found = rendered(
      "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% for j in 'ab' %}"
      "{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}{{ ns.x | tojson }}",
      OrderedJson::object(), {});
  EXPECT_NE(found.find("values are nested too deeply"), std::string::npos) << found.substr(0, 300);
}

// They hold each other in a chain, and then are let go.
TEST(Jinja, ManyNamespacesThatHoldEachOtherAreFreed) {
  const std::string source =
      "{% set top = namespace(x=1) %}{% for i in range(99999) %}"
      "{% set new = namespace(x=top.x) %}{% set top.x = new %}{% endfor %}{{ top.x.x.x is defined "
      "}}";
  EXPECT_EQ(rendered(source, OrderedJson::object()), "True");
}

TEST(Jinja, RefusesSourcesThatAreNestedTooDeeply) {
  const std::pair<std::string, const char*> cases[] = {
      {"{{ " + repeated("(", 100'000) + "1" + repeated(")", 100'000) + " }}", "nested too deeply"},
      {"{{ " + repeated("[", 100'000) + repeated("]", 100'000) + " }}", "nested too deeply"},
      {"{{ " + repeated("not ", 100'000) + "1 }}", "nested too deeply"},
      {"{{ " + repeated("-", 100'000) + "1 }}", "nested too deeply"},
      {"{{ 1" + repeated(" + 1", 100'000) + " }}", "too many parts"},
      {"{{ 1" + repeated(" | abs", 100'000) + " }}", "too many parts"},
      {"{{ a" + repeated(".a", 100'000) + " }}", "too many parts"},
      {"{{ a" + repeated("()", 100'000) + " }}", "too many parts"},
      {"{{ 1" + repeated(" if 1 else 1", 50'000) + " }}", "nested too deeply"},
      {repeated("{% if 1 %}", 50'000), "nested too deeply"},
      {repeated("{% for a in b %}", 50'000), "nested too deeply"},
      {"{% for " + repeated("(", 100'000) + repeated(")", 100'000) + " in x %}",
       "nested too deeply"},
      {std::string(2U << 20U, 'a'), "longer than"},
  };
  for (const auto& [source, message] : cases) {
    const std::string found = rendered(source, OrderedJson::object());
    EXPECT_NE(found.find(message), std::string::npos) << source.substr(0, 40) << "\n"
                                                      << found.substr(0, 300);
  }
  EXPECT_EQ(rendered("{% if 0 %}" + repeated("{% elif 0 %}", 10'000) + "{% endif %}x",
                     OrderedJson::object()),
            "x");
}

TEST(Jinja, RefusesWhatTakesTooLong) {
  // Few steps, much to look through.
  const auto compiled = jinja::Template::compile(
      "{% set text = 'ab' * 4000000 %}{% for i in range(100000) %}"
      "{% if 'ba' * 20 ~ 'x' in text %}{% endif %}{% endfor %}",
      "template");
  ASSERT_TRUE(compiled) << compiled.error().message;
  const auto text = compiled->render({}, kNow, {.thread_time = std::chrono::milliseconds(50)});
  ASSERT_FALSE(text);
  EXPECT_NE(text.error().message.find("takes longer than 50 ms"), std::string::npos)
      << text.error().message;
}

TEST(Jinja, BoundsStepsOutputAndWhatIsMade) {
  const auto compiled = jinja::Template::compile(
      "{% set n = namespace(t='xxxxxxxx') %}{% for i in range(64) %}"
      "{% set n.t = n.t + n.t %}{% endfor %}",
      "template");
  ASSERT_TRUE(compiled);
  const auto text = compiled->render({}, kNow, {.steps = 10'000, .made_bytes = 1U << 16U});
  ASSERT_FALSE(text);
  EXPECT_NE(text.error().message.find("too large"), std::string::npos);
  const auto steps = compiled->render({}, kNow, {.steps = 10});
  ASSERT_FALSE(steps);
  EXPECT_NE(steps.error().message.find("more than 10 steps"), std::string::npos);
}

TEST(Jinja, ManyKeysTakeNoMoreTimeEach) {
  OrderedJson many = OrderedJson::object();
  OrderedJson::object_t& entries = many.get_ref<OrderedJson::object_t&>();
  entries.reserve(200'000);
  for (int i = 0; i < 200'000; ++i) {  // not through operator[], which looks at all before
    static_cast<std::vector<std::pair<const std::string, OrderedJson>>&>(entries).emplace_back(
        "key" + std::to_string(i), i);
  }
  OrderedJson variables = OrderedJson::object();
  variables["x"] = std::move(many);
  EXPECT_EQ(rendered("{{ x | length }} {{ x.key199999 }}", variables), "200000 199999");
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
  EXPECT_TRUE(broken.error().message.starts_with("chat_template.jinja, line 1"))
      << "clients see it: " << broken.error().message;
  write_file(folder / "mine.jinja", "{{ eos_token }}!");
  const auto instead = ChatTemplate::load(folder.path(), folder / "mine.jinja");
  ASSERT_TRUE(instead && *instead);
  EXPECT_EQ((*instead)->render(conversation, kNow).value(), "</s>!");
  EXPECT_FALSE(ChatTemplate::load(folder.path(), folder / "none.jinja"));
}

// Tries what `source` makes of the usual conversations.
Result<std::vector<std::string>> tried_out(const std::string& source) {
  return ChatTemplate::compile(source, "t", {}).value().try_out();
}

TEST(ChatTemplate, IsTriedOutBeforeAnybodyAsks) {
  const auto good = tried_out("{% for m in messages %}{{ m.role + m.content }}{% endfor %}");
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_TRUE(good->empty());
  const auto never = tried_out("\n{{ messages[0].content + 1 }}");
  ASSERT_FALSE(never);
  EXPECT_EQ(never.error().code, Errc::invalid);
  EXPECT_TRUE(never.error().message.starts_with("t, line 2: ")) << never.error().message;
  // Without systems, by its own will; and some chats that it cannot.
  const auto some = tried_out(
      "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
      "{% for m in messages %}{% if m.tool_calls %}{{ m.content + 1 }}{% endif %}{% endfor %}");
  ASSERT_TRUE(some) << some.error().message;
  ASSERT_EQ(some->size(), 1U);
  EXPECT_TRUE((*some)[0].starts_with("with a tool call: t, line 1: ")) << (*some)[0];
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
