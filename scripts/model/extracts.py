#!/usr/bin/env python3
"""Cuts the bundled held-out text and the demo document out of corpus.py's heldout.jsonl.

    extracts.py --corpus DIR --heldout heldout.txt --demo demo-document.txt
"""

import argparse
import json
from pathlib import Path

HELDOUT = ("/html/tutorial/classes.html", "/html/howto/isolating-extensions.html",
           "/html/book/ch12-05-working-with-environment-variables.html")
DEMO = "/postgresql-doc-15/html/transaction-iso.html"
DEMO_TITLE = ("Title: Transaction Isolation (PostgreSQL 15 documentation, section 13.2). "
              "Source: Debian package postgresql-doc-15. Licence: PostgreSQL License.\n\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--heldout", type=Path, required=True)
    parser.add_argument("--demo", type=Path, required=True)
    args = parser.parse_args()
    with open(args.corpus / "heldout.jsonl", encoding="utf-8") as file:
        found = {d["path"]: d["text"] for d in map(json.loads, file)}

    def text(end):
        (match,) = [t for path, t in found.items() if path.endswith(end)]
        return match

    args.heldout.write_text("\n\n".join(map(text, HELDOUT)), encoding="utf-8")
    args.demo.write_text(DEMO_TITLE + text(DEMO), encoding="utf-8")


if __name__ == "__main__":
    main()
