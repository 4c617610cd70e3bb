#!/usr/bin/env python3
"""Renders chat templates, and small pieces of Jinja, with jinja2 as the transformers library sets it up.

    golden.py --templates tests/data/chat --out tests/data/chat/cases.json [--conversations 40]

Conversations are random, from a seed. What jinja2 refuses, or a template's raise_exception, is written as
an error and must be one for the engine too.
"""

import argparse
import copy
import datetime
import functools
import json
import random
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

import pieces

NOW = datetime.datetime(2024, 7, 26, 11, 54, 56)

GIVEN = {
    "x": {"k": "v", "n": 1, "l": [1, {"m": None}]},
    "m": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "f": {"name": "g"}},
          {"role": "user", "content": "b"}],
}

WORDS = ["hello", "What is this?", " leading", "trailing \n", "two\n\nlines", "\u4f60\u597d", "caf\u00e9 \U0001f600", "{{ not a tag }}", "it's \"quoted\"",
         "<think>\nhm\n</think>\n\nyes", "<tool_response>x</tool_response>", "", "[INST] tricky [/INST]"]


class Generation(jinja2.ext.Extension):
    """The transformers library's tag around what an assistant wrote: it changes nothing of the text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: NOW.strftime(form)
    return made


ENVIRONMENT = environment()


@functools.lru_cache(maxsize=None)
def compiled(source):
    try:
        return ENVIRONMENT.from_string(source)
    except jinja2.exceptions.TemplateError as error:
        return error


def rendered(source, variables):
    template = compiled(source)
    if isinstance(template, Exception):
        return {"error": type(template).__name__}
    try:
        return {"text": template.render(**copy.deepcopy(variables))}
    except Exception as error:  # whatever Python raises is what the template comes to
        return {"error": type(error).__name__}


PARTS = [{"type": "text", "text": "part"}, {"type": "text", "text": " of \u00e9"}]
TOOLS = [
    {"type": "function", "function": {"name": "look_up", "description": "Find \u00e9", "parameters": {
        "type": "object", "properties": {
            "z": {"type": "string", "description": "a\nb", "enum": ["x", "y"]},
            "a": {"type": "array", "items": {"type": "integer"}, "default": [1]},
            "o": {"type": "object", "properties": {"inner": {"type": "number"}}}}, "required": ["z"]}}},
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {
        "type": "object", "properties": {}}}},
]


def content_of(source, tidy=False):
    kind = 1 if tidy else source.random()
    if kind < 0.02:
        return None
    if kind < 0.05:
        return source.sample(PARTS, k=source.randint(1, 2))
    return " ".join(source.choices(WORDS, k=source.randint(1, 3)))


def call_of(source):
    arguments = {"z": source.choice(WORDS), "a": [1, 2.5, None, True], "o": {"inner": 1e-05}}
    if source.random() < 0.2:
        arguments = json.dumps(arguments)
    return {"id": "abcdefgh" + str(source.randint(0, 9)), "type": "function",
            "function": {"name": source.choice(["look_up", "now"]), "arguments": arguments}}


def conversation(source):
    """Every second one is tidy: questions and answers take turns and all contents are texts."""
    tidy = source.random() < 0.5
    messages = [{"role": "system", "content": content_of(source, tidy)}] if source.random() < 0.5 else []
    for turn in range(source.randint(1 if tidy else 0, 4)):
        if tidy and turn:
            messages.append({"role": "assistant", "content": content_of(source, tidy)})
        messages.append({"role": "user", "content": content_of(source, tidy)})
        if source.random() < 0.3:
            calls = [call_of(source) for _ in range(source.choice([1, 1, 2]))]
            messages.append({"role": "assistant", "content": source.choice(["", None, "calling"]), "tool_calls": calls})
            if source.random() < 0.2:
                del messages[-1]["content"]
            for call in calls:
                messages.append({"role": "tool", "content": content_of(source, tidy), "tool_call_id": call["id"],
                                 "name": call["function"]["name"]})
        if not tidy and source.random() < 0.85:
            messages.append({"role": "assistant", "content": content_of(source)})
        if messages[-1]["role"] == "assistant" and source.random() < 0.2:
            messages[-1]["reasoning_content"] = source.choice(WORDS)
        if not tidy and source.random() < 0.1:
            messages.append({"role": "system", "content": content_of(source)})
    if source.random() < 0.05:
        messages.append({"role": "narrator", "content": "x"})
    return messages


def variables_of(source):
    variables = {"messages": conversation(source), "tools": None, "documents": None,
                 "add_generation_prompt": source.random() < 0.7, "bos_token": "<s>", "eos_token": "</s>"}
    if source.random() < 0.35:
        variables["tools"] = TOOLS[: source.randint(1, 2)]
    for name in ("enable_thinking", "thinking"):
        if source.random() < 0.3:
            variables[name] = source.random() < 0.5
    return variables


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--templates", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--conversations", type=int, default=40)
    args = parser.parse_args()
    lines = [json.dumps({"source": piece, "variables": GIVEN, **rendered(piece, GIVEN)})
             for piece in pieces.PIECES]
    source = random.Random(6)
    for file in sorted(args.templates.glob("*.jinja")):
        for _ in range(args.conversations):
            variables = variables_of(source)
            lines.append(json.dumps({"file": file.name, "variables": variables,
                                     **rendered(file.read_text(encoding="utf-8"), variables)}))
    args.out.write_text('{"made_with": "jinja2 %s", "cases": [\n%s\n]}\n' % (jinja2.__version__, ",\n".join(lines)))
    errors = sum('"error": ' in line for line in lines)
    print(len(lines), "cases,", errors, "of them errors")


if __name__ == "__main__":
    main()
