#!/usr/bin/env python3
"""Engines in PID and mount namespaces of their own beside kvtierd's: what two containers of one host are.

    containers_test.py --engine bin/kvtier-engine --daemon bin/kvtierd --ctl bin/kvtierctl --model DIR

Exits with 77 where namespaces cannot be made, or the kernel cannot name a peer that is not seen (before Linux 6.5).
"""

import argparse
import http.client
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

CONTAINER = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
PROMPT = " ".join(f"Line {i}: to mount disk number {i}, the administrator edits the file of that number." for i in range(40))
SKIPPED = 77


class ContainersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.socket = self.root / "kvtierd.sock"
        config = self.root / "kvtierd.toml"
        config.write_text(f'socket = "{self.socket}"\n[host]\ncapacity = "256MiB"\n[http]\nlisten = ""\n')
        self.daemon = self.start([ARGUMENTS.daemon, "--config", str(config)])
        self.until(lambda: self.ctl() is not None, "kvtierd answers")

    def start(self, command, **more):
        process = subprocess.Popen(CONTAINER + command, **more)
        self.addCleanup(self.kill, process)
        return process

    def kill(self, process):
        if process.poll() is None:
            process.kill()  # and with it what is in the container
        process.wait(timeout=60)
        if process.stdout:
            process.stdout.close()

    def until(self, holds, what):
        deadline = time.monotonic() + 60
        while not holds():
            self.assertLess(time.monotonic(), deadline, f"it never came to be that {what}")

    def ctl(self):
        asked = subprocess.run([ARGUMENTS.ctl, "--socket", self.socket, "status", "--json"], capture_output=True, text=True)
        return json.loads(asked.stdout) if asked.returncode == 0 else None

    def engine(self):
        process = self.start(
            [ARGUMENTS.engine, "--threads", "1", "serve", "--model", ARGUMENTS.model, "--port", "0", "--socket",
             str(self.socket), "--deadline-ms", "20000"], stdout=subprocess.PIPE, text=True)
        process.port = int(re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline()).group(1))
        return process

    def ask(self, engine):
        connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=120)
        body = {"model": "docs-4m", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_an_engine_in_a_container_beside_shares_dies_and_gives_its_slots_back(self):
        first = self.engine()
        text, cached = self.ask(first)
        self.assertEqual(cached, 0)
        self.until(lambda: self.ctl()["blocks"] > 0, "its blocks are there")
        self.until(lambda: self.ctl()["reserved_slots"] > 0, "it has slots to fill")
        second = self.engine()
        again, cached = self.ask(second)
        self.assertEqual(again, text)
        self.assertGreater(cached, 0, "what an engine in another container computed")
        for engine in (first, second):
            engine.send_signal(signal.SIGKILL)
            engine.wait(timeout=60)
        self.until(lambda: self.ctl()["reserved_slots"] == 0 and self.ctl()["quarantined_slots"] == 0,
                   "the slots of both are free")
        third = self.engine()
        self.assertEqual(self.ask(third)[0], text)


def kernel_names_peers():
    major, minor = (int(number) for number in re.match(r"(\d+)\.(\d+)", Path("/proc/sys/kernel/osrelease").read_text()).groups())
    return (major, minor) >= (6, 5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("engine", "daemon", "ctl", "model"):
        parser.add_argument("--" + name, required=True)
    ARGUMENTS = parser.parse_args()
    if subprocess.run(CONTAINER + ["true"], capture_output=True).returncode != 0:
        print("skipped: PID and mount namespaces cannot be made here")
        sys.exit(SKIPPED)
    if not kernel_names_peers():
        print("skipped: the kernel has no SO_PEERPIDFD")
        sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1])
