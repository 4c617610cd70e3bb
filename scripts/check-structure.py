#!/usr/bin/env python3
"""Checks the structure of the sources: which folder includes which, and how large things are.

  scripts/check-structure.py [--tree DIR]

Prints every breach as FILE:LINE: and ends with 1 if there is one. `--tree` checks another copy of the sources.
What it reads is text, not C++: a class is known by the definitions of its methods at the start of a line, which is
where clang-format puts them.
"""
import argparse
import pathlib
import re
import sys

from tree_files import names_in

# What a folder may include beside itself. The longest name that fits a file decides; a name that ends in / covers
# what is below it. What is not listed may include nothing of the project's.
ARROWS = {
    # The ground floor, from the ground up.
    "core/include/": [],
    "core/base/": ["core/include/"],
    "core/record/": ["core/include/", "core/base/"],
    "core/wire/": ["core/include/", "core/base/", "core/record/"],
    "core/terminal/": ["core/include/", "core/base/"],
    "kernels/": ["core/include/", "core/base/"],
    "kernels/cpu/": ["core/include/", "core/base/", "kernels/"],
    "kernels/cuda/": ["core/include/", "core/base/"],
    "client/include/": ["core/include/"],
    "client/session/": ["core/", "client/include/"],
    "client/transfer/": ["core/", "client/include/", "client/session/", "kernels/"],
    "client/c/": ["core/", "client/include/"],
    "client/cuda/": ["core/", "client/include/", "client/session/", "client/transfer/", "kernels/"],
    "client/python/": ["core/include/", "client/include/"],
    "storage/memory/": ["core/"],
    "storage/device/": ["core/"],
    "storage/index/": ["core/", "storage/memory/", "storage/device/"],
    "storage/store/": ["core/", "storage/"],
    "storage/remote/": ["core/", "storage/memory/", "storage/index/"],
    # The daemon: each may include those above it.
    "daemon/limits.h": ["core/"],
    "daemon/telemetry.h": ["core/"],
    "daemon/config/": ["core/", "daemon/limits.h"],
    "daemon/cache/policy/": ["core/"],
    "daemon/cache/catalogue/": ["core/", "storage/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/",
                                "daemon/cache/policy/"],
    "daemon/cache/tiers/": ["core/", "storage/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/",
                            "daemon/cache/policy/", "daemon/cache/catalogue/"],
    "daemon/cache/remote/": ["core/", "storage/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/",
                             "daemon/cache/catalogue/", "daemon/cache/tiers/"],
    "daemon/cache/room/": ["core/", "storage/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/",
                           "daemon/cache/catalogue/", "daemon/cache/tiers/", "daemon/cache/remote/"],
    "daemon/cache/loans/": ["core/", "storage/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/",
                            "daemon/cache/catalogue/", "daemon/cache/tiers/", "daemon/cache/remote/", "daemon/cache/room/"],
    "daemon/cache/hints/": ["core/", "storage/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/",
                            "daemon/cache/catalogue/", "daemon/cache/tiers/", "daemon/cache/remote/", "daemon/cache/room/",
                            "daemon/cache/leases/"],
    "daemon/cache/leases/": ["core/", "storage/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/",
                             "daemon/cache/catalogue/", "daemon/cache/tiers/", "daemon/cache/remote/", "daemon/cache/room/"],
    "daemon/cache/": ["core/", "storage/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/",
                      "daemon/cache/"],
    # Traces go through the catalogue alone.
    "daemon/trace/": ["core/", "daemon/config/", "daemon/cache/catalogue/", "daemon/cache/policy/"],
    "daemon/peers/": ["core/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/", "daemon/cache/"],
    "daemon/restart/": ["core/", "storage/memory/", "daemon/limits.h", "daemon/config/", "daemon/cache/",
                        "daemon/peers/"],
    "daemon/session/": ["core/", "storage/memory/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/",
                        "daemon/cache/", "daemon/peers/", "daemon/restart/"],
    "daemon/events/": ["core/", "daemon/limits.h", "daemon/config/", "daemon/cache/"],
    "daemon/server/": ["core/", "storage/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/",
                       "daemon/cache/", "daemon/events/", "daemon/peers/", "daemon/restart/", "daemon/session/"],
    "daemon/ops/": ["core/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/", "daemon/server/"],
    "daemon/service/": ["core/", "daemon/limits.h", "daemon/config/", "daemon/server/"],
    "daemon/run_kvtierd": ["core/", "storage/device/", "daemon/config/", "daemon/restart/", "daemon/server/",
                           "daemon/ops/", "daemon/service/"],
    "daemon/main.cc": ["daemon/run_kvtierd"],
    "ctl/": ["core/"],
    # The reference engine knows the client by its public header alone.
    "engine_adapter/reference/files/": ["core/include/", "core/base/"],
    "engine_adapter/reference/tokenizer/": ["core/include/", "core/base/", "engine_adapter/reference/files/"],
    "engine_adapter/reference/template/": ["core/include/", "core/base/", "engine_adapter/reference/files/"],
    "engine_adapter/reference/model/": ["core/", "client/include/", "kernels/", "engine_adapter/reference/files/",
                                        "engine_adapter/reference/tokenizer/"],
    "engine_adapter/reference/scheduler/": ["core/", "client/include/", "engine_adapter/reference/model/"],
    "engine_adapter/reference/server/": ["core/", "client/include/", "engine_adapter/reference/files/",
                                         "engine_adapter/reference/tokenizer/", "engine_adapter/reference/template/",
                                         "engine_adapter/reference/model/", "engine_adapter/reference/scheduler/"],
    "engine_adapter/reference/cli/": ["core/", "client/include/", "kernels/", "ctl/", "daemon/config/", "daemon/trace/",
                                      "engine_adapter/reference/"],
    "engine_adapter/llama_cpp/": ["client/include/"],
    "engine_adapter/warm/": ["core/", "engine_adapter/reference/files/", "engine_adapter/reference/tokenizer/",
                             "engine_adapter/reference/model/weights/"],
    "bench/": ["core/", "client/include/", "kernels/", "storage/", "daemon/", "engine_adapter/"],
    "tests/": ["core/", "client/", "ctl/", "kernels/", "storage/", "daemon/", "engine_adapter/", "bench/"],
}

# Made by the build, in folders of the same names.
GENERATED = {"core/wire/kvtier.capnp.h", "daemon/version.h", "daemon/ops/status_page.h"}
# Where headers are that are included by another name: <kvtier/client.h>.
PUBLIC = ("core/include/", "client/include/")

SOURCES_MAX = 25   # in a folder
LINES_MAX = 500    # in a file
PLACES_MAX = 2     # sources that define a class's methods

SOURCE = re.compile(r"\.(cc|h|cu|cuh|inc|capnp)$")
COUNTED = re.compile(r"\.(c|cc|h|cu|cuh|inc|capnp|py|sh|cmake|html)$|(^|/)CMakeLists\.txt$")
# A source by another suffix would be seen by none of the checks, nor by those of the format.
OTHER_SUFFIX = re.compile(r"\.(c|cpp|cxx|c\+\+|hh|hpp|hxx|ipp|tcc)$")
# Programs of the C interface are in C.
C_PROGRAM = re.compile(r"^(client/examples|engine_adapter/llama_cpp|tests/e2e/c|tests/llama_cpp)/.*\.c$")
INCLUDE = re.compile(r'^\s*#\s*(?:include(?:_next)?|import)\s*(?:"([^"]+)"|<([^>]+)>|(\w+))')
NAMESPACE = re.compile(r"^(?:inline )?namespace\b([^{};=]*)\{(.*)$")
NAMESPACE_END = re.compile(r"^\}\s*// namespace")
ARGUMENTS = re.compile(r"<[^<>]*>")
# A method defined out of its class, at the start of a line and without its template arguments: `Type Class::method(`.
METHOD = re.compile(r"^(?:[\w\[][\w:*&\[\] ]*[ *&])?(?:[a-z]\w*::)*([A-Z]\w*(?:::[A-Z]\w*)*)::(?:~?\w+|operator[^\w(].*?|operator \w+)\(")


def rule_for(path):
    fits = [rule for rule in ARROWS if path.startswith(rule)]
    return max(fits, key=len, default=None)


def resolve(include, files):
    """The file of ours that is meant, or None."""
    for place in ("", *PUBLIC):
        if place + include in files:
            return place + include
    return include if include in GENERATED else None


def included(lines, files):
    """(line number, as it is written, the file of ours or None) of each include that is, or looks like, one of ours."""
    for number, line in enumerate(lines, 1):
        if not (match := INCLUDE.match(line)):
            continue
        quoted, angled, macro = match.groups()
        target = resolve(quoted or angled or "", files)
        if target or not angled:
            yield number, quoted or angled or macro, target


def classes_defined(name, lines):
    """What tells apart each class that has methods defined here: its top folder, its namespace and its name."""
    namespaces = []
    for line in lines:
        if match := NAMESPACE.match(line):
            if not match[2].rstrip().endswith("}"):
                namespaces.append(match[1].strip())
        elif NAMESPACE_END.match(line) and namespaces:
            namespaces.pop()
        else:
            while (shorter := ARGUMENTS.sub("", line)) != line:
                line = shorter
            if match := METHOD.match(line):
                # What is in a namespace without a name is another class in every file.
                yield (name.split("/")[0], "::".join(namespaces), match[1], name if "" in namespaces else "")


def wrong_includes(name, lines, files):
    if (rule := rule_for(name)) is None:
        yield f"{name}:1: a folder that the table of {pathlib.Path(__file__).name} does not know"
        return
    for number, written, target in included(lines, files):
        if target is None:
            yield f"{name}:{number}: \"{written}\" is not a path from the top of the tree"
            continue
        to = rule_for(target)
        if to not in (rule, None) and not any(target.startswith(allowed) for allowed in ARROWS[rule]):
            yield f"{name}:{number}: {rule} may not include {to} (\"{written}\")"


def breaches(tree, names):
    files = set(names)
    sources_in, places = {}, {}
    for name in names:
        if OTHER_SUFFIX.search(name) and not C_PROGRAM.match(name):
            yield f"{name}:1: sources here are called .cc, .h, .cu, .cuh or .inc"
        if not COUNTED.search(name):
            continue
        lines = (tree / name).read_text(encoding="utf-8", errors="replace").splitlines()
        if len(lines) > LINES_MAX:
            yield f"{name}:{len(lines)}: more than {LINES_MAX} lines: cut it where it does two things"
        if not SOURCE.search(name):
            continue
        folder = name.rpartition("/")[0]
        sources_in[folder] = sources_in.get(folder, 0) + 1
        yield from wrong_includes(name, lines, files)
        if name.endswith((".cc", ".cu")):
            for klass in classes_defined(name, lines):
                places.setdefault(klass, set()).add(name)
    for folder, count in sorted(sources_in.items()):
        if count > SOURCES_MAX:
            yield f"{folder}:1: {count} sources, more than {SOURCES_MAX}: which of them belong together?"
    for (_, _, klass, _), where in sorted(places.items()):
        if len(where) > PLACES_MAX:
            where = sorted(where)
            yield f"{where[0]}:1: {klass} is in {len(where)} files, more than {PLACES_MAX}: {' '.join(where)}"
    if not sources_in:
        yield f"{tree}:1: there are no sources here"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--tree", type=pathlib.Path, default=here, help="what to check (default: the tree it is in)")
    tree = parser.parse_args().tree.resolve()
    found = list(breaches(tree, names_in(tree)))
    for breach in found:
        print(breach)
    print(f"structure: {len(found)} breaches", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
