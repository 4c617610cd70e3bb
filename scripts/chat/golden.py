#!/usr/bin/env python3
"""Renders chat templates, and small pieces of Jinja, with jinja2 as the transformers library sets it up.

    golden.py --templates tests/data/chat --out tests/data/chat/cases.json [--conversations 40]

Conversations are random, from a seed. What jinja2 refuses, or a template's raise_exception, is written as
an error and must be one for the engine too.
"""

import argparse
import json
import random
from pathlib import Path

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = "26 Jul 2024"

PIECES = [
    "{{ 1 + 2 * 3 - 4 // 3 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 1.5 + 1 }} {{ 2 * 1.5 }}",
    "{{ 'a' ~ 1 ~ none ~ true }} {{ [1, 'x', none, true, 1.0] }} {{ {'k': ['v', \"it's\"]} }}",
    "{{ missing }}|{{ missing is defined }}|{{ x.missing is defined }}|{{ missing | default('d') }}|{{ '' | default('d', true) }}",
    "{% for i in range(3) %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% else %}none{% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %} {% for k, v in x.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in x %}{{ k }}{% endfor %} {% for c in 'h\u00e9\u4e2d' %}[{{ c }}]{% endfor %} {{ 'h\u00e9\u4e2d' | length }}",
    "{% set a = 1 %}{% for i in [1, 2] %}{% set a = a + i %}{{ a }}{% endfor %}{{ a }}",
    "{% set n = namespace(a=1) %}{% for i in [1, 2] %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}",
    "{% if x %}{% set inner = 'seen' %}{% endif %}{{ inner }}",
    "{% for i in [1, 2, 3, 4] if i is even %}{{ i }}{{ loop.index }}{% endfor %}",
    "{% for i in [1, 2, 3, 4] %}{% if i == 2 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{{ 'abcdef'[1:4] }}{{ 'abcdef'[::-1] }}{{ [1, 2, 3][-1] }}{{ [1, 2, 3][:2] }}{{ [1, 2, 3, 4][::2] }}{{ 'ab'[5:] }}",
    "{{ '  x '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'a,b,,c'.split(',') }}|{{ ' a  b '.split() }}|{{ 'a-b-c'.split('-', 1) }}",
    "{{ 'Abc'.upper() }}{{ 'Abc'.lower() }}{{ 'hello world'.title() }}{{ 'hELLO'.capitalize() }}{{ 'aXbX'.replace('X', '-') }}",
    "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith('ab') }}{{ 'abc'.find('c') }}{{ 'abcb'.count('b') }}",
    "{{ x | tojson }}\n{{ x | tojson(indent=2) }}\n{{ [] | tojson }}{{ {} | tojson(indent=2) }}{{ 'a\"\\n\u00e9</x>' | tojson }}",
    "{{ [3, 1] | first }}{{ [3, 1] | last }}{{ [3, 1] | join('-') }}{{ 'ab' | list }}{{ [1, 2] | reverse | list }}{{ '12' | int }}",
    "{{ 1 in [1, 2] }}{{ 'b' not in 'abc' }}{{ 'k' in x }}{{ not 1 == 2 }}{{ 1 == 1.0 }}{{ 'a' < 'b' and 2 >= 2 }}{{ '' or 'x' }}",
    "{{ x is mapping }}{{ [] is sequence }}{{ 'a' is string }}{{ none is none }}{{ 1 is number }}{{ true is boolean }}{{ x is iterable }}",
    "{{ 1 is not none }}{{ 6 is divisibleby(3) }}{{ 6 is divisibleby 4 }}{{ 'a' is eq('a') }}{{ false is false }}{{ 3 is odd }}",
    "{{ 'a' if false }}|{{ 'a' if true else 'b' }}|{{ ('a', 'b')[1] }}|{{ ('one') }}|{{ 'con' 'cat' }}|{{ (1,)[0] }}",
    "  {% if true %}\n  a\n  {% endif %}\n b {%- if true %}\n\n c {% endif -%} \n d\n{# note #}\n e {#- n -#} f\n",
    "{%+ if true %} x {% endif +%}\n y{{- ' z ' -}} w\n\n",
    "a\r\n  {% set q = 'multi\nline' %}\r\n{{ q }}\n{{ '{{' }} {{ '}}' }} {{ {'a': {'b': 1}}.a.b }}",
    "{{ missing.attribute }}", "{{ 1 + 'a' }}", "{{ raise_exception('no ' + 'way') }}", "{{ none.x.y }}", "{{ 1 // 0 }}",
    "{% for a, b in [[1, 2], [3, 4]] %}{{ a }}{{ b }}{% endfor %}{% set p, q = 'x', 'y' %}{{ p ~ q }}",
    "{{ x['k'] }}{{ x.get('z', 'none') }}{{ x.get('k') }}{{ x.keys() | list }}{{ x.values() | list }}{{ x['z'] is defined }}",
    "{{ -1 }}{{ - 2 + 3 }}{{ +4 }}{{ not true }}{{ 'n: ' + 5 | string }}{{ [1] + [2] }}{{ 'a' * 1 if false else 'ok' }}",
    "{% if not (x is defined and x.k is string) or false %}no{% else %}yes{% endif %}{% for i in missing %}{% endfor %}",
    "{% for i in [1, 2, 3] %}{{ loop.previtem }}{{ loop.nextitem is defined }}{{ loop.revindex }}{{ loop.revindex0 }}{% endfor %}",
]

WORDS = ["hello", "What is this?", " leading", "trailing \n", "two\n\nlines", "\u4f60\u597d", "caf\u00e9 \U0001f600", "{{ not a tag }}", "it's \"quoted\"",
         "<think>\nhm\n</think>\n\nyes", "<tool_response>x</tool_response>", "", "[INST] tricky [/INST]"]


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: NOW
    return made


def rendered(source, variables):
    try:
        return {"text": environment().from_string(source).render(**variables)}
    except (jinja2.exceptions.TemplateError, TypeError, ZeroDivisionError) as error:
        return {"error": type(error).__name__}


def conversation(source):
    messages = [{"role": "system", "content": source.choice(WORDS)}] if source.random() < 0.5 else []
    for _ in range(source.randint(1, 4)):
        messages.append({"role": "user", "content": " ".join(source.choices(WORDS, k=source.randint(1, 3)))})
        if source.random() < 0.2:
            call = {"id": "abcdefgh" + str(source.randint(0, 9)), "type": "function",
                    "function": {"name": "look_up", "arguments": {"z": source.choice(WORDS), "a": [1, 2.5, None, True]}}}
            messages.append({"role": "assistant", "content": source.choice(["", None, "calling"]), "tool_calls": [call]})
            messages.append({"role": "tool", "content": source.choice(WORDS)})
        if source.random() < 0.85:
            messages.append({"role": "assistant", "content": source.choice(WORDS)})
    if source.random() < 0.1:
        messages.append({"role": "narrator", "content": "x"})
    return messages


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--templates", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--conversations", type=int, default=40)
    args = parser.parse_args()
    tool = {"type": "function", "function": {"name": "look_up", "description": "Find \u00e9", "parameters": {
        "type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "array"}}, "required": []}}}
    x = {"k": "v", "n": 1, "l": [1, {"m": None}]}
    lines = [json.dumps({"source": piece, "variables": {"x": x}, **rendered(piece, {"x": x})}) for piece in PIECES]
    source = random.Random(6)
    for file in sorted(args.templates.glob("*.jinja")):
        for _ in range(args.conversations):
            variables = {"messages": conversation(source), "tools": [tool] if source.random() < 0.3 else None,
                         "add_generation_prompt": source.random() < 0.7, "bos_token": "<s>", "eos_token": "</s>"}
            if source.random() < 0.3:
                variables["enable_thinking"] = source.random() < 0.5
            lines.append(json.dumps({"file": file.name, "variables": variables,
                                     **rendered(file.read_text(encoding="utf-8"), variables)}))
    args.out.write_text('{"made_with": "jinja2 %s", "cases": [\n%s\n]}\n' % (jinja2.__version__, ",\n".join(lines)))
    errors = sum('"error": ' in line for line in lines)
    print(len(lines), "cases,", errors, "of them errors")


if __name__ == "__main__":
    main()
