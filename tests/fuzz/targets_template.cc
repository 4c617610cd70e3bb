// Chat templates.
#include <nlohmann/json.hpp>

#include "core/base/check.h"
#include "engine_adapter/reference/template/template.h"
#include "tests/fuzz/targets.h"

namespace kvtier::fuzz {
namespace {

// Small, so that most of what goes wrong goes wrong at a bound.
constexpr jinja::RenderLimits kLimits{.steps = 20'000,
                                      .made_bytes = 4U << 20U,
                                      .output_bytes = 1U << 20U,
                                      .thread_time = std::chrono::milliseconds(500)};

const jinja::Value& conversation() {
  static const jinja::Value variables = jinja::Value::from_json(jinja::OrderedJson::parse(R"({
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a b\nc"},
                 {"role": "assistant", "content": null, "tool_calls": [
                   {"id": "1", "function": {"name": "f", "arguments": {"a": [1, 2.5, null, true]}}}]},
                 {"role": "tool", "content": [{"type": "text", "text": "é"}]}],
    "tools": null, "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})"));
  return variables;
}

void run_chat_template(std::span<const std::byte> bytes) {
  const auto compiled = jinja::Template::compile(text_of(bytes), "fuzz");
  if (!compiled) return KVTIER_CHECK(!compiled.error().message.empty());
  const auto text = compiled->render(*conversation().map(), 1'700'000'000, kLimits);
  if (!text) return;  // a template may raise an empty message
  KVTIER_CHECK(text->size() <= kLimits.output_bytes);
}

std::vector<Bytes> chat_template_seeds() {
  const char* const kRight[] = {
      R"({%- set ns = namespace(n=0, x=[]) %}{% for m in messages if m.content %}
  {%- if m.role == 'user' %}{{- '[INST] ' + m['content'] | trim ~ ' [/INST]' }}
  {%- else %}{% set ns.n = ns.n + 1 %}{% set ns.x = ns.x + [m.content] %}{{ loop.index }}
  {%- endif %}{% else %}none{% endfor %}{{ ns.x | tojson(indent=2) }}{{ ns.n ** 2 // 3 % 4 }})",
      R"({% macro f(a, b=[1, 'x'], c={'k': none}) %}{{ a }}{{ varargs }}{{ kwargs | dictsort }}{{ caller is defined }}
{%- endmacro %}{% call(x) f(1, 2, 3, 4, z='\x41\u00e9') %}{{ x }}{% endcall %}{{ f('a' * 3)[::-1] }})",
      R"({{ messages | selectattr('role', 'ne', 'tool') | map(attribute='content', default='-') | join(', ') }}
{% set a, b = 'a-b'.split('-', 1) %}{{ a ~ b.upper() }}{{ '%s %5.2f' % ('q', 1.5) }}{{ '{} {0}'.format(1) }}
{{ [3, 1] | sort | batch(2) | list }}{{ messages | groupby('role') | first | last | length }})",
      R"({% for i in [[1, [2]], 3] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}{% generation %}
 {%- filter upper %}{% raw %}{{ x }}{% endraw %}{% endfilter -%} {% endgeneration %}{# c #}
{% set t %} {{ range(10)[1:8:3] | list }}{% endset %}{% with q = t | replace(' ', '') %}{{ q }}{% endwith %})",
      R"({% set ns = namespace(x=1) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}
{% set ns.x = [ns] %}{{ ns.x == ns.x }}{{ messages == messages[:] }}{{ 1 < 2 <= 2 != 3 is not none }})"};
  std::vector<Bytes> seeds;
  for (const char* source : kRight) {
    KVTIER_CHECK(jinja::Template::compile(source, "seed").has_value());
    seeds.push_back(bytes_of(source));
  }
  return seeds;
}

}  // namespace

Target chat_template() {
  return {"chat_template", run_chat_template, chat_template_seeds};
}

}  // namespace kvtier::fuzz
