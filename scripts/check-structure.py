#!/usr/bin/env python3
"""Checks the structure of the sources: which folder includes which, and how large things are.

  scripts/check-structure.py [--tree DIR]

Prints every breach as FILE:LINE: and ends with 1 if there is one. `--tree` checks another copy of the sources.
"""
import argparse
import pathlib
import re
import subprocess
import sys

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
    "client/cuda/": ["core/", "client/include/", "client/session/", "client/transfer/", "kernels/"],
    "storage/memory/": ["core/"],
    "storage/device/": ["core/"],
    "storage/index/": ["core/", "storage/memory/", "storage/device/"],
    "storage/store/": ["core/", "storage/"],
    # The daemon: each may include those above it.
    "daemon/limits.h": ["core/"],
    "daemon/telemetry.h": ["core/"],
    "daemon/kill_at": ["core/", "daemon/kill_at"],
    "daemon/config/": ["core/", "daemon/limits.h"],
    "daemon/cache/catalogue/": ["core/", "storage/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/"],
    "daemon/cache/tiers/": ["core/", "storage/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/",
                            "daemon/cache/catalogue/"],
    "daemon/cache/": ["core/", "storage/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/",
                      "daemon/cache/catalogue/", "daemon/cache/tiers/"],
    "daemon/peers/": ["core/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/", "daemon/cache/"],
    "daemon/restart/": ["core/", "storage/memory/", "daemon/limits.h", "daemon/config/", "daemon/cache/",
                        "daemon/peers/"],
    "daemon/session/": ["core/", "storage/memory/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/",
                        "daemon/cache/", "daemon/peers/", "daemon/restart/"],
    "daemon/server/": ["core/", "storage/", "daemon/"],
    "daemon/ops/": ["core/", "daemon/limits.h", "daemon/telemetry.h", "daemon/config/", "daemon/server/"],
    "daemon/service/": ["core/", "daemon/limits.h", "daemon/config/", "daemon/server/"],
    "daemon/main.cc": ["core/", "daemon/"],
    "ctl/": ["core/"],
    # The reference engine knows the client by its public header alone.
    "engine_adapter/reference/files/": ["core/include/", "core/base/"],
    "engine_adapter/reference/tokenizer/": ["core/include/", "core/base/", "engine_adapter/reference/files/"],
    "engine_adapter/reference/template/": ["core/include/", "core/base/", "engine_adapter/reference/files/"],
    "engine_adapter/reference/model/": ["core/", "client/include/", "kernels/", "engine_adapter/reference/files/",
                                        "engine_adapter/reference/tokenizer/"],
    "engine_adapter/reference/scheduler/": ["core/", "client/include/", "engine_adapter/reference/model/"],
    "engine_adapter/reference/server/": ["core/", "client/include/", "engine_adapter/reference/"],
    "engine_adapter/reference/cli/": ["core/", "client/include/", "kernels/", "ctl/", "daemon/config/",
                                      "engine_adapter/reference/"],
    "engine_adapter/warm/": ["core/", "engine_adapter/reference/files/", "engine_adapter/reference/tokenizer/",
                             "engine_adapter/reference/model/weights/"],
    "bench/": ["core/", "client/include/", "kernels/", "storage/", "daemon/", "engine_adapter/"],
    "tests/": ["core/", "client/", "ctl/", "kernels/", "storage/", "daemon/", "engine_adapter/", "bench/"],
}

# Made by the build, in folders of the same names.
GENERATED = {"core/wire/kvtier.capnp.h", "daemon/version.h", "daemon/ops/status_page.h"}

SOURCES_MAX = 25   # in a folder
LINES_MAX = 500    # in a file
PLACES_MAX = 2     # .cc files that define a class's methods

SOURCE = re.compile(r"\.(cc|h|cu|cuh|inc|capnp)$")
COUNTED = re.compile(r"\.(cc|h|cu|cuh|inc|capnp|py|sh)$")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
# A method defined out of its class, at the start of a line: `Type Class::method(`.
METHOD = re.compile(r"^(?:[\w\[][\w:<>,*&\[\] ]*[ *&])?([A-Z]\w+)::~?\w+\(")


def rule_for(path):
    fits = [rule for rule in ARROWS if path.startswith(rule)]
    return max(fits, key=len, default=None)


def resolve(include, files):
    for place in ("", "core/include/", "client/include/"):
        if place + include in files:
            return place + include
    return include if include in GENERATED else None


def breaches(tree, names):
    files = set(names)
    sources_in = {}
    places = {}
    for name in names:
        if not COUNTED.search(name):
            continue
        try:
            lines = (tree / name).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            continue
        if len(lines) > LINES_MAX:
            yield f"{name}:{len(lines)}: more than {LINES_MAX} lines: cut it where it does two things"
        if not SOURCE.search(name):
            continue
        folder = name.rpartition("/")[0]
        sources_in[folder] = sources_in.get(folder, 0) + 1
        rule = rule_for(name)
        if rule is None:
            yield f"{name}:1: a folder that the table of {pathlib.Path(__file__).name} does not know"
            continue
        for number, line in enumerate(lines, 1):
            if match := METHOD.match(line):
                if name.endswith(".cc"):
                    places.setdefault((name.split("/")[0], match[1]), set()).add(name)
            if not (match := INCLUDE.match(line)):
                continue
            target = resolve(match[1], files)
            if target is None:
                yield f"{name}:{number}: \"{match[1]}\" is not a path from the top of the tree"
            elif rule_for(target) != rule and not any(target.startswith(to) for to in ARROWS[rule]):
                yield f"{name}:{number}: {rule} may not include {rule_for(target)} (\"{match[1]}\")"
    for folder, count in sorted(sources_in.items()):
        if count > SOURCES_MAX:
            yield f"{folder}:1: {count} sources, more than {SOURCES_MAX}: which of them belong together?"
    for (_, klass), where in sorted(places.items()):
        if len(where) > PLACES_MAX:
            yield f"{sorted(where)[0]}:1: {klass} is in {len(where)} files, more than {PLACES_MAX}: {' '.join(sorted(where))}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--tree", type=pathlib.Path, default=here, help="what to check (default: the tree it is in)")
    tree = parser.parse_args().tree
    try:
        listed = subprocess.run(["git", "-C", tree, "ls-files", "--cached", "--others", "--exclude-standard"],
                                capture_output=True, text=True, check=True).stdout.split("\n")
        names = [name for name in listed if name]
    except (OSError, subprocess.CalledProcessError):
        names = [str(path.relative_to(tree)) for path in tree.rglob("*")
                 if path.is_file() and path.relative_to(tree).parts[0] != "build"]
    found = list(breaches(tree, sorted(names)))
    for breach in found:
        print(breach)
    print(f"structure: {len(found)} breaches", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
