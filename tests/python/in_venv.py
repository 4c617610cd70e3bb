#!/usr/bin/env python3
"""Runs a test in the environment that prepare.py made.   in_venv.py DIR TEST [ARGUMENT...]

Exits with 77, skipped, where there is none.
"""
import os
import pathlib
import sys

work = pathlib.Path(sys.argv[1]).resolve()
if not (work / "ready").exists():
    print("skipped: there is no environment (python.prepare was skipped, or failed)")
    sys.exit(77)
python = work / "venv" / "bin" / "python"
# Nothing of the source tree's or the account's packages.
os.environ["PYTHONNOUSERSITE"] = "1"
os.environ.pop("PYTHONPATH", None)
os.execv(python, [str(python), *sys.argv[2:]])
