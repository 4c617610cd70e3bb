#!/usr/bin/env python3
"""Checks the documentation against the tree.

  scripts/check-docs.py [--tree DIR]

What the pages name must be there: files and folders in `backticks`, the targets and headings of relative links, and, on
the pages about the code, classes, points and metrics. Every page must be in an index, the map must stay short, and every
decision must have the sections of docs/adr/template.md. Prints each breach as FILE:LINE: and ends with 1 if there is one.
`--tree` checks another copy of the tree.
"""
import argparse
import fnmatch
import pathlib
import re
import sys

from tree_files import names_in

MAP, MAP_LINES_MAX = "docs/ARCHITECTURE.md", 150
READERS_TEST, READERS_HEADING = "CONTRIBUTING.md", "## The reader's test"
WRITTEN = ("docs/internals/checks.md",)  # by `scripts/check.sh --record`; the index may be ahead of it
INDEXES = ("docs/README.md", "docs/adr/README.md")
ABOUT_CODE = re.compile(r"^(docs/(ARCHITECTURE|internals/|adr/|guide|monitoring\.md)|CONTRIBUTING|SECURITY)")
DECISION = re.compile(r"^docs/adr/(\d{4}-.*|template)\.md$")
SECTIONS = ("## Context", "## Decision", "## Why", "## Consequences")
STATUS = re.compile(r"^Status: (accepted|superseded by \d{4}|accepted; .* superseded by \d{4}.*)$")
SOURCE = re.compile(r"\.(cc|h|cu|cuh|inc|capnp|py|sh|in|html|toml|txt|map)$")

CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE_NAME = re.compile(r"^[\w.-]+\.(cc|h|cu|cuh|inc|capnp|py|sh|md|yml)$")
CLASS = re.compile(r"^([A-Z][a-z0-9]+[A-Za-z0-9]*)(?:::(~?\w+))?(?:\(\))?$")
POINT = re.compile(r"^(daemon|storage|client)(\.[a-z_]+)+$")
FUNCTION = re.compile(r"^([a-z][a-z0-9]*(?:_[a-z0-9]+)+)(\(\))?$")
METRIC = re.compile(r"^kvtier_[a-z_]+$")


class Tree:
    def __init__(self, top):
        self.top = top
        names = names_in(top)
        self.files = names
        self.folders = {str(parent) for name in names for parent in pathlib.PurePath(name).parents}
        self.tops = {name.split("/")[0] for name in names if "/" in name}
        self.base_names = {name.rpartition("/")[2] for name in names}
        sources = [self.read(name) for name in names if SOURCE.search(name)]
        self.words = set(re.findall(r"\w+", "\n".join(sources)))
        self.words_beside = {}  # of a class: the words of the files that define one of that name
        for source in sources:
            for name in re.findall(r"\b(?:class|struct) (\w+)\b[^;]*?\{", source):
                self.words_beside.setdefault(name, set()).update(re.findall(r"\w+", source))
        self.texts = set(re.findall(r'"([\w.]+)"', "\n".join(sources)))

    def read(self, name):
        return (self.top / name).read_text(encoding="utf-8", errors="replace")

    def has(self, path):
        path = path.rstrip("/")
        if "*" in path:
            return any(fnmatch.fnmatch(name, path) for name in self.files)
        return path in self.folders or path in self.files


def anchors(text):
    """What a heading is called in a link."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def prose(text):
    """The lines with their numbers; those of fenced blocks marked so."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        yield number, line, fenced


def named_wrong(tree, span, about_code, decision):
    """What is wrong with one `span`, or None. A decision may name functions of the kernel's."""
    span = span.strip()
    if "/" in span and span.split("/")[0] in tree.tops and re.fullmatch(r"[\w.*/+-]+", span):
        return None if tree.has(span) else f"`{span}` is not in the tree"
    if FILE_NAME.match(span) and about_code:
        return None if span in tree.base_names else f"no file is called `{span}`"
    if not about_code:
        return None
    if match := CLASS.match(span):
        name, member = match[1], (match[2] or "").lstrip("~")
        if name not in tree.words:
            return f"`{span}`: the sources have no {name}"
        return None if not member or member in tree.words_beside.get(name, ()) else f"`{span}`: {name} has no {member}"
    if POINT.match(span) and not FILE_NAME.match(span):
        return None if span in tree.texts else f"no point is called `{span}`"
    if METRIC.match(span):
        known = tree.read("docs/metrics.md")
        return None if span in known or span in tree.words else f"docs/metrics.md has no `{span}`"
    if (match := FUNCTION.match(span)) and not decision:
        return None if match[1] in tree.words else f"the sources have no `{match[1]}`"
    return None


def links_wrong(tree, name, line):
    for target in LINK.findall(line):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        full = name if not path else str((tree.top / name).parent.joinpath(path).resolve().relative_to(tree.top))
        if full in WRITTEN:
            continue
        if not tree.has(full):
            yield f"the link to {target} leads nowhere"
        elif heading and full.endswith(".md") and heading not in anchors(tree.read(full)):
            yield f"{full} has no heading #{heading}"


def answers_wrong(tree):
    """Of the reader's test: | question | a folder of the map | a file below it | what is there | ... |"""
    text = tree.read(READERS_TEST)
    for number, line, _ in prose(text):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if number < text[:text.find(READERS_HEADING)].count("\n") or len(cells) < 4 or not cells[2].startswith("`"):
            continue
        folder, file, name = (cell.strip("`") for cell in cells[1:4])
        word = re.split(r"::", name)[-1].rstrip("()")
        if f"`{folder}`" not in tree.read(MAP):
            yield f"{READERS_TEST}:{number}: the map has no `{folder}`"
        elif not file.startswith(folder):
            yield f"{READERS_TEST}:{number}: {file} is not below {folder}"
        elif file in tree.files and not re.search(rf"\b{re.escape(word)}\b", tree.read(file)):
            yield f"{READERS_TEST}:{number}: {file} has no `{word}`"


def breaches(tree):
    pages = [name for name in tree.files if name.endswith(".md")]
    decisions = {match[1][:4] for name in pages if (match := DECISION.match(name))}
    for name in pages:
        text = tree.read(name)
        superseded = DECISION.match(name) and "\nStatus: superseded" in text
        for number, line, fenced in prose(text):
            for wrong in links_wrong(tree, name, line):
                yield f"{name}:{number}: {wrong}"
            for wanted in re.findall(r"\badr/(\d{4})\b", line):
                if wanted not in decisions:
                    yield f"{name}:{number}: there is no adr/{wanted}"
            if fenced:
                for path in re.findall(r"(?<![\w/.])scripts/[\w/-]+\.(?:sh|py)", line):
                    if not tree.has(path):
                        yield f"{name}:{number}: {path} is not in the tree"
                continue
            if not superseded:
                for span in CODE.findall(line):
                    if wrong := named_wrong(tree, span, bool(ABOUT_CODE.match(name)), bool(DECISION.match(name))):
                        yield f"{name}:{number}: {wrong}"
        if DECISION.match(name):
            lines = text.splitlines()
            if not any(STATUS.match(line) for line in lines[:4]):
                yield f"{name}:1: no `Status:` line as in docs/adr/template.md"
            if [line for line in lines if line in SECTIONS] != list(SECTIONS):
                yield f"{name}:1: not the sections of docs/adr/template.md, in their order"
            if DECISION.match(name)[1] != "template":
                title, status = lines[0].partition(". ")[2], next((line[8:] for line in lines[:4] if STATUS.match(line)), "")
                if f"[{title}]({name.rpartition('/')[2]}) | {status} |" not in tree.read(INDEXES[1]):
                    yield f"{INDEXES[1]}:1: not the title and status of {name}"
    yield from answers_wrong(tree)
    linked = set()
    for index in INDEXES:
        if index not in tree.files:
            yield f"{index}:1: the index is missing"
            continue
        for target in LINK.findall(tree.read(index)):
            if not re.match(r"[a-z]+:", target):
                path = (tree.top / index).parent.joinpath(target.partition("#")[0]).resolve()
                linked.add(str(path.relative_to(tree.top)))
    for name in pages:
        if name.startswith("docs/") and name not in linked and name != INDEXES[0]:
            yield f"{name}:1: no index ({', '.join(INDEXES)}) links to it"
    guide = tree.read("docs/guide.md")
    for alert in re.findall(r"- alert: (\w+)", tree.read("docs/monitoring/kvtier-alerts.yml")):
        if f"| {alert} |" not in guide:
            yield f"docs/guide.md:1: says nothing of the alert {alert}"
    if (lines := len(tree.read(MAP).splitlines())) > MAP_LINES_MAX:
        yield f"{MAP}:{lines}: more than {MAP_LINES_MAX} lines: a map, and docs/internals for the rest"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--tree", type=pathlib.Path, default=here, help="what to check (default: the tree it is in)")
    tree = Tree(parser.parse_args().tree.resolve())
    found = list(breaches(tree))
    for breach in found:
        print(breach)
    print(f"{len(found)} breaches" if found else "the documentation names what is there")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
