#!/usr/bin/env python3
"""A consumer that others wrote: the KV indexer of NVIDIA Dynamo, subscribed to a kvtierd as to a vLLM engine.

    dynamo_test.py --kvtierd bin/kvtierd --kvtierctl bin/kvtierctl --engine bin/kvtier-engine --model DIR --work DIR

Makes a virtual environment with the package ai-dynamo-runtime in DIR. Exit status 77, skipped, where it cannot be
installed. What the indexer has is held against what kvtierctl lists, block by block and tier by tier.
"""
import argparse
import http.client
import json
import subprocess
import sys
import unittest
import venv
from pathlib import Path

from cached_host import CachedHost, ask, cached_tokens, free_ports, prompt, until

SKIPPED = 77
TIERS = {"device": "device", "host": "host_pinned", "disk": "disk"}  # ours, Dynamo's


class DynamoTest(unittest.TestCase):
    def setUp(self):
        self.host = CachedHost(self, ARGUMENTS)
        self.port = free_ports(1)[0]

    def start_indexer(self):
        self.host.start([PYTHON, "-m", "dynamo.indexer", "--port", str(self.port)])
        until(lambda: self.dynamo("GET", "/workers") is not None, "the indexer answers")
        self.dynamo("POST", "/register", {"instance_id": 1, "endpoint": self.host.events, "model_name": "docs",
                                          "replay_endpoint": self.host.replay, "block_size": 16})

    def dynamo(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            self.assertLess(reply.status, 300, path)
            return json.loads(reply.read())
        except OSError:
            return None
        finally:
            connection.close()

    def ask(self, number):
        return cached_tokens(ask(self.host.engine_port, prompt(number))[0])

    def listed(self):
        return {(TIERS[tier], int(block["key"][16:], 16)) for block in self.host.blocks() for tier in block["tiers"]}

    def indexed(self, tier=None):
        found = set()
        for part in self.dynamo("GET", "/dump").values():
            for event in part["events"]:
                for block in event["event"]["data"]["stored"]["blocks"]:
                    if tier in (None, event["storage_tier"]):
                        found.add((event["storage_tier"], block["block_hash"]))
        return found

    def exact(self):
        """Dynamo has what kvtierctl lists, and no more."""
        def holds():
            self.host.ctl("flush")
            return self.listed() == self.indexed()
        until(holds, "the indexer has what kvtierctl lists")

    def test_the_indexer_has_what_kvtierctl_lists_through_evictions_drops_and_a_killed_daemon(self):
        self.ask(0)
        self.start_indexer()  # late: it asks for what was there before
        self.exact()
        for number in range(1, 40):
            self.ask(number)
        self.exact()
        self.assertGreater(len(self.indexed("host_pinned")), 50)
        # The host tier is smaller than what was asked.
        self.assertGreater(len(self.indexed("disk")), 2 * len(self.indexed("host_pinned")))
        self.host.ctl("drop", "--tier", "host")
        self.exact()
        self.host.start_engine()
        self.assertGreater(self.ask(3), 0)
        self.exact()

        self.host.kill_daemon()
        self.host.start_daemon()
        # Of what is on disk alone nobody knows the tokens, without which this consumer can do nothing.
        until(lambda: not self.indexed(), "the indexer has heard of the new daemon")
        self.host.start_engine()
        self.assertGreater(self.ask(3), 0)
        until(lambda: len(self.indexed("host_pinned")) > 5, "tokens are known again")
        self.assertTrue(self.indexed() <= self.listed())
        # In both tiers.
        self.assertEqual({block for _, block in self.indexed("disk")},
                         {block for _, block in self.indexed("host_pinned")})


def python_with_dynamo(work):
    environment = work / "dynamo-venv"
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    if subprocess.run([python, "-c", "import dynamo.indexer"], capture_output=True).returncode == 0:
        return python
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", "ai-dynamo-runtime==1.6.1"], capture_output=True,
                          text=True)
    if done.returncode != 0:
        print("skipped: the package ai-dynamo-runtime cannot be installed:", done.stderr.strip()[-300:])
        sys.exit(SKIPPED)
    return python


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("kvtierd", "kvtierctl", "engine", "model", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    ARGUMENTS, rest = parser.parse_known_args()
    ARGUMENTS.work.mkdir(parents=True, exist_ok=True)
    PYTHON = python_with_dynamo(ARGUMENTS.work)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
