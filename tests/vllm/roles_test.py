#!/usr/bin/env python3
"""Two vLLMs with kvtier, one that computes prompts and one that answers, behind scripts/proxies/pd_proxy.py.

  scripts/vllm-demo.sh --roles        which installs what it needs; some minutes on two idle cores
"""
import argparse
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "scripts" / "vllm"))
from vllm_demo import BLOCK_TOKENS, CONFIG, ENGINE, MODEL, Cache  # noqa: E402
from vllm_engine import Server  # noqa: E402


class RolesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        work = pathlib.Path(tempfile.mkdtemp(prefix="vllm-roles-", dir=BUILD))
        cls.addClassCleanup(shutil.rmtree, work, ignore_errors=True)
        cls.cache = Cache(BUILD / "bin", work, CONFIG)
        cls.cache.start()
        cls.addClassCleanup(lambda: cls.cache.stop(signal.SIGKILL))
        flags = ["--dtype", ENGINE["dtype"], "--max-model-len", "4096", "--max-num-batched-tokens", "512"]
        cls.servers = {}
        for role in ("kv_producer", "kv_consumer"):
            # One behind the other: each finds out how much memory there is.
            server = Server(BUILD / f"vllm-{role}.log", cls.cache.socket, *flags, role=role)
            cls.servers[role] = cls.enterClassContext(server)
            cls.cache.wait(server.is_up, "vllm serve did not come up", seconds=900)
        cls.prefill, cls.decode = cls.servers["kv_producer"], cls.servers["kv_consumer"]
        cls.proxy = subprocess.Popen(
            [sys.executable, SOURCE / "scripts" / "proxies" / "pd_proxy.py", "--port", "0", "--prefill", cls.prefill.url, "--decode",
             cls.decode.url], stdout=subprocess.PIPE, text=True)
        cls.addClassCleanup(cls.end_proxy)
        cls.url = re.search(r"http://\S+", cls.proxy.stdout.readline()).group(0)

    @classmethod
    def end_proxy(cls):
        cls.proxy.kill()
        cls.proxy.wait()
        cls.proxy.stdout.close()

    def complete(self, prompt):
        body = {"model": str(MODEL), "prompt": prompt, "max_tokens": 16, "temperature": 0}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.loads(answer.read())

    def test_an_answer_is_the_one_of_an_engine_alone(self):
        document = (SOURCE / "scripts" / "demo-document.txt").read_text()
        blocks = 0
        for begin in (0, 3000):  # behind the prompt, then at once
            prompt = document[begin:begin + 6000]
            answer = self.complete(prompt)
            blocks += (answer["usage"]["prompt_tokens"] - 1) // BLOCK_TOKENS
            # The other engine has the prompt's blocks in pages of its own.
            self.assertEqual(self.prefill.complete(prompt)["choices"][0]["text"], answer["choices"][0]["text"])
        self.assertGreater(blocks, 8)
        self.cache.wait(lambda: self.decode.counted("kvtier_blocks_loaded_total") == blocks, "not all blocks were loaded")
        self.assertEqual(self.decode.counted("kvtier_faults_total"), 0)
        self.assertEqual(self.prefill.counted("kvtier_faults_total"), 0)

    def test_z_without_the_engine_for_prompts_the_other_computes(self):
        prompt = (SOURCE / "scripts" / "demo-document.txt").read_text()[6000:11000]
        self.prefill.process.send_signal(signal.SIGKILL)
        self.prefill.process.wait()
        self.assertEqual(len(self.complete(prompt)["choices"]), 1)


def main():
    global BUILD
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help="CMake's binary directory")
    BUILD = parser.parse_args().build.resolve()
    unittest.main(argv=[sys.argv[0]], verbosity=2)


if __name__ == "__main__":
    main()
