#!/usr/bin/env python3
"""Compares how the engine and jinja2 render templates, on random conversations.

    compare.py --renderer build/release/bin/render_cases [--templates FOLDER]... [--conversations 40] [--seed 1]

FOLDER's *.jinja, searched through, are rendered with jinja2 as the transformers library sets it up, and with
the engine's own code; so are the small pieces of pieces.py. Where one refuses, the other must. Prints a line with
name and SHA-256 for each template, and every difference; status 1 where there is one, 77 without jinja2.
"""

import argparse
import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path

try:
    import golden
    import pieces
except ModuleNotFoundError as error:
    print("not compared:", error)
    sys.exit(77)


def answers(renderer, cases):
    text = "".join(json.dumps({"source": source, "variables": variables}) + "\n" for source, variables in cases)
    done = subprocess.run([renderer], input=text.encode(), stdout=subprocess.PIPE, check=True)
    lines = done.stdout.decode().split("\n")[:-1]
    assert len(lines) == len(cases), "the renderer ended early"
    return [json.loads(line) for line in lines]


def compare(renderer, cases):
    """How many differ and how many are errors; the first differences are printed."""
    differ = errors = 0
    for (source, variables), found in zip(cases, answers(renderer, cases)):
        expected = golden.rendered(source, variables)
        errors += "error" in expected
        if expected.get("text") == found.get("text"):
            continue
        differ += 1
        if differ <= 3:
            print("  differs:", source[:300] if len(source) < 2000 else json.dumps(variables)[:1500])
            print("    jinja2:", repr(expected)[:1500])
            print("    engine:", repr(found)[:1500])
    return differ, errors


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--renderer", required=True)
    parser.add_argument("--templates", type=Path, action="append", default=[])
    parser.add_argument("--conversations", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    total = errors = differ = 0
    one_by_one = [compare(args.renderer, [(piece, golden.GIVEN)]) for piece in pieces.PIECES]
    differ += sum(found[0] for found in one_by_one)
    total += len(one_by_one)
    for file in sorted(path for folder in args.templates for path in folder.rglob("*.jinja")):
        source = random.Random(args.seed)
        template = file.read_text(encoding="utf-8")
        cases = [(template, golden.variables_of(source)) for _ in range(args.conversations)]
        found, refused = compare(args.renderer, cases)
        total, errors, differ = total + len(cases), errors + refused, differ + found
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        print(digest[:16], file.name, "differs" if found else "same", found, "of", len(cases), "refused", refused)
    print(total, "renderings,", differ, "differ,", errors, "conversations refused by both or one")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
