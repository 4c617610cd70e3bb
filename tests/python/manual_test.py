"""Runs the examples of docs/python.md from the first to the last, beside a kvtierd, and holds what they print against the page.

What stands in a ```text block behind a ```python block is what that prints. Examples that import torch are left out where
there is none.
"""

import contextlib
import importlib.util
import io
import pathlib
import re
import unittest

import pages

MANUAL = pathlib.Path(__file__).resolve().parents[2] / "docs/python.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SOCKET = "/run/kvtier/kvtierd.sock"


def examples():
    """(line, source, what it prints or None)"""
    text = MANUAL.read_text()
    found = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match[1] == "python":
            found.append([line, match[2], None])
        elif found and found[-1][2] is None:
            found[-1][2] = match[2]
    return found


class ManualTest(pages.CacheTest):
    def test_the_examples_of_the_manual_do_what_it_says(self):
        names = {"__name__": "__main__"}
        run = 0
        for line, source, expected in examples():
            if "import torch" in source and importlib.util.find_spec("torch") is None:
                continue
            said = io.StringIO()
            # As if it stood where it stands, for tracebacks.
            code = compile("\n" * line + source.replace(SOCKET, str(self.daemon.socket)), str(MANUAL), "exec")
            with contextlib.redirect_stdout(said):
                exec(code, names)
            self.assertEqual(said.getvalue(), expected or "", f"docs/python.md:{line}")
            run += 1
        self.assertGreater(run, 8)
        names["client"].close()


if __name__ == "__main__":
    pages.main()
