#!/usr/bin/env python3
"""llama.cpp, as the package llama-cpp-python has it, with its KV in kvtierd, against itself without.

    engine_test.py --build DIR --work DIR

Makes a virtual environment in the work folder, whose llama.cpp pip compiles once, and builds kvtier-llama over the
libkvtier that the build installs. Exit status 77, skipped, where the package cannot be had.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import venv

SKIPPED = 77
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from demo import Daemon  # noqa: E402

PACKAGES = ("llama-cpp-python==0.3.36", "gguf==0.19.0")
MODEL = ROOT / "engine_adapter" / "models" / "docs-4m"
BLOCK = 64
PROMPT = 3000
CONFIG = """\
socket = "{work}/kvtierd.sock"
[host]
capacity = "128MiB"
extent_size = "16MiB"
huge_pages = false
[disk]
directory = "{work}/disk"
capacity = "256MiB"
segment_size = "16MiB"
[http]
listen = ""
"""


class EngineTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=ARGUMENTS.work)
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        self.daemon = Daemon(ARGUMENTS.build / "bin", self.work, CONFIG)
        self.daemon.start()
        self.addCleanup(self.end_daemon)
        draw = random.Random(5)
        self.shared = [draw.randrange(1, 2048) for _ in range(PROMPT)]
        self.prompts = [self.prompt("one", self.shared + [7, 11, 13]), self.prompt("two", self.shared + [17, 19])]
        self.wanted = self.ask("--no-cache")

    def end_daemon(self):
        if self.daemon.process.poll() is None:
            self.daemon.process.send_signal(signal.SIGCONT)
            self.daemon.stop(signal.SIGKILL)

    def prompt(self, name, tokens):
        path = self.work / name
        path.write_text(" ".join(map(str, tokens)))
        return path

    def ask(self, *flags, prompts=None):
        command = [PROGRAM / "kvtier-llama", "--model", GGUF, "--socket", self.daemon.socket, "--tokens", "--json",
                   "--threads", "2", "--block-tokens", str(BLOCK), *flags, *(prompts or self.prompts)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def ctl(self, *command):
        command = [self.daemon.ctl, "--socket", self.daemon.socket, *command]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def same(self, answers, restored):
        """The same answers as llama.cpp's own, by so many restored tokens of each prompt."""
        self.assertEqual([a["answer"] for a in answers], [a["answer"] for a in self.wanted])
        self.assertEqual([a["restored_tokens"] for a in answers], restored)
        self.assertEqual([a["refused_blocks"] for a in answers], [0, 0])

    def test_answers_are_the_same_from_every_tier_and_the_first_token_comes_sooner(self):
        whole = PROMPT // BLOCK * BLOCK
        # The second prompt begins as the first, whose process has saved it.
        self.same(self.ask(), [0, whole])
        again = self.ask()
        self.same(again, [whole, whole])
        self.assertLess(again[0]["first_token_ms"], self.wanted[0]["first_token_ms"] / 3)
        self.assertEqual(again[0]["offered_blocks"], 0)  # nothing is saved twice
        self.ctl("drop", "--tier", "host")
        self.same(self.ask(), [whole, whole])
        for how in (signal.SIGTERM, signal.SIGKILL):
            self.daemon.stop(how)
            self.daemon.start()
            self.same(self.ask(), [whole, whole])

    def test_a_conversation_goes_on_from_its_answer(self):
        first, _ = self.ask("--answer", "100")
        text = self.shared + [7, 11, 13] + first["answer"]
        longer = [self.prompt("longer", text + [23, 29])]
        # All that was decoded is there: the prompt and the answer but for its last token.
        whole = (len(text) - 1) // BLOCK * BLOCK
        answers = self.ask(prompts=longer)
        self.assertEqual([a["restored_tokens"] for a in answers], [whole])
        self.assertEqual(answers[0]["answer"], self.ask("--no-cache", prompts=longer)[0]["answer"])

    def test_what_would_not_be_the_same_is_never_restored(self):
        self.same(self.ask(), [0, PROMPT // BLOCK * BLOCK])
        for flags in (("--flash-attention", "off"), ("--adapter", "lora@1"), ("--tenant", "other"),
                      ("--block-tokens", "32")):
            with self.subTest(flags=flags):
                self.assertEqual(self.ask(*flags)[0]["restored_tokens"], 0)
                self.assertGreater(self.ask(*flags)[0]["restored_tokens"], 0)

    def test_little_memory_for_staging_saves_and_restores_all_the_same(self):
        whole = PROMPT // BLOCK * BLOCK
        self.same(self.ask("--staging", "1"), [0, whole])
        self.same(self.ask("--staging", "1"), [whole, whole])

    def test_a_daemon_that_is_hung_or_gone_costs_no_more_than_the_deadline(self):
        self.daemon.process.send_signal(signal.SIGSTOP)
        answers = self.ask("--deadline-ms", "100", prompts=self.prompts[:1])
        self.assertEqual(answers[0]["answer"], self.wanted[0]["answer"])
        self.assertEqual(answers[0]["restored_tokens"], 0)
        self.daemon.process.send_signal(signal.SIGCONT)
        self.daemon.stop(signal.SIGKILL)
        answers = self.ask("--deadline-ms", "100", prompts=self.prompts[:1])
        self.assertEqual(answers[0]["answer"], self.wanted[0]["answer"])

    def test_what_is_corrupt_on_disk_is_computed(self):
        self.ask()
        self.ctl("flush")
        self.daemon.stop(signal.SIGTERM)
        for segment in (self.work / "disk").rglob("*.seg"):
            with open(segment, "r+b") as file:
                size = segment.stat().st_size
                for at in range(0, size, 1 << 16):
                    file.seek(at + 12345)
                    file.write(b"not what it was")
        self.daemon.start()
        self.ctl("drop", "--tier", "host")
        answers = self.ask()
        self.assertEqual([a["answer"] for a in answers], [a["answer"] for a in self.wanted])
        self.assertEqual(answers[0]["restored_tokens"], 0)

    def test_what_cannot_be_cut_into_blocks_is_refused_by_name(self):
        done = subprocess.run([PROGRAM / "refusals", GGUF], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])

    def test_bad_input_is_named(self):
        bad = self.prompt("bad", [1, 2])
        bad.write_text("1 2 x")
        long = self.prompt("long", [1] * 9000)
        for flags, why in (
                (["--model", GGUF, "--tokens", bad], "byte 4: token ids"),
                (["--model", GGUF, "--tokens", long], "do not fit into a context of"),
                (["--model", GGUF, self.prompts[0]], "no vocabulary"),
                (["--model", bad, "--tokens", bad], "is not a model"),
                (["--model", GGUF, "--answer", "no", bad], "--answer no"),
                (["--tokens", bad], "--model"), (["--model", GGUF], "PROMPT_FILE")):
            with self.subTest(why=why):
                done = subprocess.run([PROGRAM / "kvtier-llama", "--no-cache", *flags], capture_output=True, text=True)
                self.assertIn(done.returncode, (1, 2))
                self.assertIn(why, done.stderr)


def skip(why, log):
    print(f"skipped: {why}:", log.strip()[-600:])
    sys.exit(SKIPPED)


def prepared(work):
    """An environment with llama.cpp, its site-packages, and the bundled model in its form."""
    environment = work / "llama-venv"
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    # Without the part for pictures, and with instructions of this machine.
    flags = dict(os.environ, CMAKE_ARGS="-DLLAVA_BUILD=OFF " + os.environ.get("CMAKE_ARGS", ""))
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], env=flags, capture_output=True, text=True)
    if done.returncode:
        skip("llama-cpp-python cannot be installed", done.stderr)
    packages = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"], check=True,
                              capture_output=True, text=True).stdout.strip()
    model = work / "docs-4m.gguf"
    subprocess.run([python, HERE / "gguf_model.py", MODEL, model], check=True, stdout=subprocess.DEVNULL)
    return packages, model


def built(work, build, packages):
    """kvtier-llama over what the build installs, as a user builds it."""
    prefix, folder = work / "prefix", work / "kvtier-llama"
    shutil.rmtree(prefix, ignore_errors=True)
    for component in ("libkvtier0", "libkvtier-dev"):
        subprocess.run(["cmake", "--install", build, "--prefix", prefix, "--component", component], check=True,
                       stdout=subprocess.DEVNULL)
    config = next(prefix.glob("lib/*/pkgconfig/libkvtier.pc")).parent
    subprocess.run(["cmake", "-S", ROOT / "engine_adapter" / "llama_cpp", "-B", folder, f"-DLLAMA_DIR={packages}",
                    "-DCMAKE_BUILD_TYPE=Release", "-DKVTIER_LLAMA_TESTS=ON"],
                   env=dict(os.environ, PKG_CONFIG_PATH=str(config)), check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder], check=True, stdout=subprocess.DEVNULL)
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help="CMake's binary directory")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="a folder to keep the environment in")
    ARGUMENTS, rest = parser.parse_known_args()
    ARGUMENTS.work = ARGUMENTS.work.resolve()
    ARGUMENTS.work.mkdir(parents=True, exist_ok=True)
    PACKAGE_FOLDER, GGUF = prepared(ARGUMENTS.work)
    PROGRAM = built(ARGUMENTS.work, ARGUMENTS.build, PACKAGE_FOLDER)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
