#!/usr/bin/env python3
"""Faults in and around a real vLLM engine: whatever happens, its answers are those of vLLM without the connector.

  scripts/vllm-demo.sh --faults [TEST ...]        which installs what it needs; ten minutes on two idle cores

Prompts are computed in chunks of 512 tokens, and answered greedily, with blocks stored raw.
"""
import argparse
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "scripts" / "vllm"))
from vllm_demo import BLOCK_TOKENS, CONFIG, ENGINE, MODEL, Cache  # noqa: E402
from vllm_engine import Engine, Server  # noqa: E402

CHUNK = 512
STOPPED_SECONDS = 90
TOKENS_MAX = 8
CONNECTOR = {"kvtier.load_timeout_s": 10}  # of which nothing is over on a machine that is busy


class FaultsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.log = open(BUILD / "vllm-faults.log", "w")
        cls.addClassCleanup(cls.log.close)
        how = {**ENGINE, "max_num_batched_tokens": CHUNK}
        cls.plain = cls.enterClassContext(Engine(cls.log, MODEL, **how))
        # The disk tier wants a real file system, which /tmp may not be.
        work = pathlib.Path(tempfile.mkdtemp(prefix="vllm-faults-", dir=BUILD))
        cls.addClassCleanup(shutil.rmtree, work, ignore_errors=True)
        cls.cache = Cache(BUILD / "bin", work, CONFIG)
        cls.cache.start()
        cls.addClassCleanup(lambda: cls.cache.stop(signal.SIGKILL))
        cls.engine = cls.enterClassContext(Engine(cls.log, MODEL, cls.cache.socket, CONNECTOR, **how))
        cls.known = {}

    def expected(self, prompts):
        """The answers of vLLM alone."""
        new = [prompt for prompt in prompts if tuple(prompt) not in self.known]
        if new:
            for prompt, answer in zip(new, self.plain.ask(new, max_tokens=TOKENS_MAX)["answers"], strict=True):
                self.known[tuple(prompt)] = answer["ids"]
        return [self.known[tuple(prompt)] for prompt in prompts]

    def ask(self, prompts, engine=None, forget=True):
        """What was counted, of answers that are those of vLLM alone."""
        return self.check(prompts, (engine or self.engine).ask(prompts, forget=forget, max_tokens=TOKENS_MAX))

    def check(self, prompts, said):
        self.assertEqual([answer["ids"] for answer in said["answers"]], self.expected(prompts))
        self.assertEqual(said["counted"].get("faults", 0), 0)
        return said["counted"]

    def prompt(self, number, tokens):
        """Each number's is another from its first token on."""
        return random.Random(number).choices(range(100, 2000), k=tokens)

    def stored(self, prompts):
        """They are computed, and their blocks are on disk alone."""
        before = self.cache.blocks("host")
        counted = self.ask(prompts)
        self.assertEqual(counted["external"], 0)
        self.cache.wait_until_durable(before + sum(len(prompt) // BLOCK_TOKENS for prompt in prompts))
        self.cache.leave_on_disk_alone()

    def test_a_prompt_in_chunks_is_stored_whole_and_comes_back(self):
        prompt = self.prompt(1, 3 * CHUNK)
        self.stored([prompt])
        counted = self.ask([prompt])
        # All but the block of the last token, which is computed.
        self.assertEqual(counted["external"], 3 * CHUNK - BLOCK_TOKENS)
        self.assertEqual((counted["loaded"], counted["failed"]), (11, 0))

    def test_a_bad_block_on_disk_is_computed(self):
        prompt = self.prompt(2, 3 * CHUNK)
        self.stored([prompt])
        damaged = []
        self.cache.start_again(signal.SIGTERM, meanwhile=lambda: damaged.append(self.damage(prompt)))
        counted = self.ask([prompt])
        self.assertEqual(damaged, [1])
        self.assertGreater(counted["failed"], 0)
        self.assertGreater(counted["loaded"], 0)

    def damage(self, prompt):
        """Changes a byte in the middle of the record of one block of `prompt`; how many records were found."""
        # A record has its tokens.
        block = prompt[8 * BLOCK_TOKENS : 9 * BLOCK_TOKENS]
        tokens = b"".join(token.to_bytes(4, "little") for token in block)
        changed = 0
        for path in sorted((self.cache.work / "disk" / "segments").glob("*.seg")):
            with open(path, "r+b") as segment:
                at = segment.read().find(tokens)
                if at >= 0:
                    segment.seek(at + 100_000)
                    byte = segment.read(1)
                    segment.seek(at + 100_000)
                    segment.write(bytes([byte[0] ^ 1]))
                    changed += 1
        return changed

    def test_a_daemon_that_is_killed_during_loads_and_stores_costs_no_answer(self):
        self.dies(signal.SIGKILL, 10)

    def test_a_daemon_that_is_restarted_during_loads_and_stores_costs_no_answer(self):
        self.dies(signal.SIGTERM, 20)

    def dies(self, how, number):
        old = [self.prompt(number, 2 * CHUNK), self.prompt(number + 1, CHUNK)]
        self.stored(old)
        loaded = 0
        for turn, seconds in enumerate((0.0, 0.1, 0.5)):
            new = self.prompt(number + 2 + turn, CHUNK + 7)
            prompts = [*old, new]
            self.expected(prompts)
            self.engine.begin(prompts, forget=True, max_tokens=TOKENS_MAX)
            time.sleep(seconds)  # to meet it in other work every time
            self.cache.start_again(how)
            loaded += self.check(prompts, self.engine.answer())["loaded"]
        self.assertGreater(loaded + self.ask(old)["loaded"], 0)

    def test_a_daemon_that_stands_still_keeps_nobody_waiting(self):
        old = [self.prompt(30, 2 * CHUNK), self.prompt(31, CHUNK)]
        self.stored(old)
        prompts = [[*old, self.prompt(32 + turn, CHUNK + 7)] for turn in range(3)]
        for each in prompts:
            self.expected(each)
        began = time.monotonic()
        self.engine.begin(prompts[0], forget=True, max_tokens=TOKENS_MAX)
        self.cache.process.send_signal(signal.SIGSTOP)
        try:
            # Answers come while it stands.
            counted = [self.check(prompts[0], self.engine.answer())]
            counted += [self.ask(each) for each in prompts[1:]]
            answered = time.monotonic() - began
            time.sleep(max(0.0, STOPPED_SECONDS - answered))
        finally:
            self.cache.process.send_signal(signal.SIGCONT)
        print(f"\n9 answers in {answered:.1f} s while the daemon stood; counted: {counted}", flush=True)
        self.cache.tell("flush")
        self.cache.leave_on_disk_alone()
        until = time.monotonic() + 240
        # Lookups begin again by themselves.
        while self.ask(old)["loaded"] == 0:
            self.assertLess(time.monotonic(), until)

    def test_32_requests_share_a_prefix_that_is_on_disk_alone(self):
        prefix = self.prompt(50, 2 * CHUNK)
        self.stored([prefix])
        prompts = [[*prefix, 200 + tail, 7, 9] for tail in range(32)]
        counted = self.ask(prompts)
        self.assertEqual(counted["failed"], 0)
        self.assertEqual(counted["external"] + counted["own"], 32 * len(prefix))

    def test_requests_that_are_preempted_for_lack_of_pages_are_answered(self):
        prompts = [self.prompt(60 + number, 2 * BLOCK_TOKENS - 4) for number in range(8)]
        how = {**ENGINE, "max_model_len": 1024, "max_num_batched_tokens": CHUNK, "num_gpu_blocks_override": 12}
        with Engine(self.log, MODEL, self.cache.socket, CONNECTOR, **how) as engine:
            computed = self.ask(prompts, engine)
            self.assertGreater(computed["preemptions"], 0)
            self.cache.wait_until_durable(8)
            self.cache.leave_on_disk_alone()
            loaded = self.ask(prompts, engine)
            self.assertGreater(loaded["loaded"], 0)

    def test_vllm_serve_whose_engine_is_a_process_of_its_own_answers_alike(self):
        prompt = (SOURCE / "scripts" / "demo-document.txt").read_text()[:6000]
        flags = ["--dtype", ENGINE["dtype"], "--max-model-len", "4096"]
        before = self.cache.blocks("host")
        with Server(BUILD / "vllm-served.log", self.cache.socket, *flags) as server:
            self.cache.wait(server.is_up, "vllm serve did not come up", seconds=300)
            first = server.complete(prompt)
            blocks = (first["usage"]["prompt_tokens"] - 1) // BLOCK_TOKENS
            self.assertGreater(blocks, 4)
            self.cache.wait_until_durable(before + blocks)
            server.ask("/reset_prefix_cache", {})
            again = server.complete(prompt)
            self.assertEqual(again["choices"][0]["text"], first["choices"][0]["text"])
            self.cache.wait(lambda: server.counted("kvtier_blocks_loaded_total") == blocks, "its blocks were not counted as loaded")
            self.assertEqual(server.counted("kvtier_faults_total"), 0)


def main():
    global BUILD
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help="CMake's binary directory")
    parser.add_argument("tests", nargs="*", help="names of tests; without: all of them")
    arguments = parser.parse_args()
    BUILD = arguments.build.resolve()
    names = [f"FaultsTest.{name}" for name in arguments.tests]
    unittest.main(argv=[sys.argv[0], *names], verbosity=2)


if __name__ == "__main__":
    main()
