#!/usr/bin/env python3
"""Bits per byte over 100,000 tokens within sinks and a window, and within a plain window of as many tokens.

    endless_perplexity_test.py --engine bin/kvtier-engine --model engine_adapter/models/docs-4m

The text is the bundled model's held-out one, five times over: whatever changes from one time to the next comes from how far the
text has gone, since no window reaches back to the time before.
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

TIMES = 5
TOKENS = 20685  # of the text, but for the first


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    arguments = parser.parse_args()
    text = (arguments.model / "heldout.txt").read_text()

    def parts(sinks, window):
        scored = json.loads(subprocess.run(
            [arguments.engine, "score", "--model", arguments.model, "--text-file", file.name, "--storage-format", "fp8_e4m3",
             "--part-tokens", str(TOKENS), "--sinks", str(sinks), "--window", str(window), "--json"],
            capture_output=True, text=True, check=True).stdout)
        assert scored["tokens"] > 100_000
        found = scored["formats"][0]["parts"][:TIMES]
        print(f"{sinks} sinks, window {window}: " + " ".join(f"{part:.4f}" for part in found), flush=True)
        return found

    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text * TIMES)
        file.flush()
        for kept in (512, 2048):
            plain, with_sinks = parts(0, kept), parts(4, kept - 4)
            # The first time over, a text begins with a window that is not full yet.
            assert with_sinks[-1] < 1.005 * with_sinks[1], "it gets worse as the text goes on"
            assert all(a < b for a, b in zip(with_sinks, plain)), "sinks are worth nothing"


if __name__ == "__main__":
    main()
