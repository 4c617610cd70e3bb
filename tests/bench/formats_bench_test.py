#!/usr/bin/env python3
"""bench/formats on a small text: what has to hold of its figures whatever the machine.

    formats_bench_test.py --bin DIR --model engine_adapter/models/docs-4m --work DIR

Exit status 77, skipped, where no Python with NumPy is found (Debian's python3-numpy).
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SYSTEM_PYTHON = "/usr/bin/python3"  # which Debian's python3-numpy is for
ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench" / "formats"))
try:
    from numpy_llama import NumpyLlama, np
except ImportError:
    if sys.executable != SYSTEM_PYTHON and os.path.exists(SYSTEM_PYTHON):
        os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, *sys.argv])
    print("skipped: no Python here has NumPy")
    sys.exit(77)
import heavy_hitters  # noqa: E402
import needles  # noqa: E402
import rounding  # noqa: E402
from programs import Programs, Server  # noqa: E402

ARGUMENTS = None
FORMATS = ["f32", "bf16", "fp8_e4m3", "int8", "int4"]
# So much worse than f32 may a format be.
WORSE_MAX = {"f32": 0, "bf16": 1e-4, "int8": 5e-4, "fp8_e4m3": 2e-3, "int4": 1e-2}


def text():
    return (ARGUMENTS.model / "heldout.txt").read_text()


def measured(*options):
    """{row: value} of the command."""
    with tempfile.TemporaryDirectory(dir=ARGUMENTS.work) as work:
        file = Path(work) / "rows.json"
        command = [sys.executable, ROOT / "bench/formats/formats_bench.py", "--bin", ARGUMENTS.bin, "--model", ARGUMENTS.model,
                   "--dir", work, "--json", file, *map(str, options)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(done.stderr)
        return {row["name"]: row["value"] for row in json.loads(file.read_text())}, done.stdout


class Command(unittest.TestCase):
    def test_more_bits_take_more_room_and_are_not_worse(self):
        formats = [word for name in FORMATS for word in ("--format", name)]
        rows, table = measured("--part", "bytes", "--part", "quality", "--text-bytes", 5000, "--context", 1024, *formats)
        sizes = [rows[f"{name}.bytes_a_token"] for name in ("f32", "bf16", "int8", "fp8_e4m3", "int4")]
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        self.assertEqual(len(set(sizes[:2] + sizes[3:])), 4)
        for name in FORMATS:
            self.assertAlmostEqual(rows[f"{name}.tokens_a_gib"] * rows[f"{name}.bytes_a_token"] / 2**30, 1, places=3)
            self.assertLess(rows[f"{name}.bits_per_byte"], rows["f32.bits_per_byte"] * (1 + WORSE_MAX[name]) + 1e-12, name)
            self.assertIn(f"| {name} |", table)
        self.assertNotEqual(rows["f32.bits_per_byte"], rows["int4.bits_per_byte"])

    def test_needles_and_first_tokens_come_from_where_they_are_said_to_come_from(self):
        rows, _ = measured("--part", "needles", "--part", "times", "--text-bytes", 5000, "--context", 2048,
                           "--distance", 64, "--format", "f32", "--format", "int4", "--prefix-tokens", 256, "--chunk-tokens", 64, "--rounds", 1)
        self.assertEqual(rows["f32.needles.64.as_f32"], 100)
        self.assertLess(rows["f32.needles.64.bits"], 20)  # some 40 where it has none to look at
        for name in ("f32", "int4"):
            for source in ("computed", "own_pages", "host", "disk"):
                self.assertGreater(rows[f"{name}.first_token.256.64.{source}"], 0)

    def test_what_it_cannot_measure_it_says(self):
        with self.assertRaisesRegex(AssertionError, "random weights have no needles"):
            measured("--random-weights", "tiny", "--part", "needles")
        with self.assertRaisesRegex(AssertionError, "smaller --distance"):
            measured("--part", "needles", "--text-bytes", 5000, "--context", 1024, "--distance", 900)


class Offline(unittest.TestCase):
    def setUp(self):
        self.programs = Programs(ARGUMENTS.bin, ["--model", ARGUMENTS.model], "cpu")
        self.model = NumpyLlama(ARGUMENTS.model)

    def test_the_engine_computes_what_numpy_computes_without_a_cache_and_in_its_formats(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(text()[:900])
            file.flush()
            ids = self.programs.tokenize(text()[:900])
            said = self.programs.engine("score", "--text-file", file.name)
        found = {each["format"]: each["bits_per_byte"] * said["bytes"] for each in said["formats"]}
        for name, apart in (("f32", 1e-6), ("fp8_e4m3", 5e-4), ("int8", 5e-4), ("int4", 3e-3)):
            bits = self.model.bits(ids, rounding.dynamic(name)).sum()
            self.assertAlmostEqual(bits / found[name], 1, delta=apart, msg=name)

    def test_answers_in_f32_out_of_the_cache_are_those_without_one(self):
        haystack = needles.Haystack(self.programs, text()[:4000], 1900, 64)
        with tempfile.TemporaryDirectory(dir=ARGUMENTS.work) as work:
            cached = needles.measure(self.programs, Path(work), {64: haystack}, "f32")
            with Server(self.programs, Path(work), "--no-cache", "--storage-format", "f32") as server:
                self.assertEqual(cached.answers[64], needles.asked(server, haystack)[0])

    def test_fixed_scales_cut_off_what_the_calibration_did_not_see(self):
        draw = np.random.default_rng(1)
        x = draw.standard_normal((2, 3, 16, 64)).astype(np.float32)
        for by in rounding.Calibration.AXES:
            calibration = rounding.Calibration(by)
            calibration(0, "k", x)
            static = rounding.Static("int8", calibration)
            self.assertLess(np.abs(static(0, "k", x) - x).max(), np.abs(x).max() / 127)
            self.assertEqual(static.cut, 0)
            self.assertLessEqual(np.abs(static(0, "k", 2 * x)).max(), 128 / 127 * np.abs(x).max() + 1e-6)
            self.assertGreater(static.cut, 0)

    def test_nothing_is_evicted_within_the_budget_and_never_the_latest(self):
        ids = np.asarray(self.programs.tokenize(text()[:1200])[:2 * 64]).reshape(2, 64)
        whole = heavy_hitters.Run(self.model, ids, 200, "h2o", 2)
        exact = np.stack([self.model.bits(row, rounding.dynamic("f32")) for row in ids], 1)
        self.assertLess(np.abs(np.stack(whole.bits) - exact).max(), 1e-3)
        kept = heavy_hitters.Kept(1, self.model, 32, "h2o")
        draw = np.random.default_rng(2)
        for place in range(96):
            k, v = draw.standard_normal((2, 1, self.model.kv_heads, self.model.dim)).astype(np.float32)
            kept.attend(draw.standard_normal((1, self.model.heads, self.model.dim)).astype(np.float32), k, v, place)
        has = kept.has(96)
        self.assertTrue((has.sum(-1) == 32).all())
        self.assertTrue(has[..., -16:].all())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    global ARGUMENTS
    ARGUMENTS, rest = parser.parse_known_args()
    ARGUMENTS.bin, ARGUMENTS.model, ARGUMENTS.work = (path.resolve() for path in (ARGUMENTS.bin, ARGUMENTS.model, ARGUMENTS.work))
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
