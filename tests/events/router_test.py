#!/usr/bin/env python3
"""The example of a router (scripts/proxies/kv_router.py) in front of two hosts, each with a kvtierd, an engine and a network of
its own.

    router_test.py --kvtierd bin/kvtierd --kvtierctl bin/kvtierctl --engine bin/kvtier-engine --model DIR --work DIR

Exit status 77, skipped, where no Python with zmq and msgpack is found (Debian's python3-zmq and python3-msgpack). Where no
network namespaces can be had, both hosts are on the loopback.
"""
import argparse
import http.client
import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

from cached_host import CachedHost, ask, cached_tokens, prompt, until
from networks import Network, enter

SKIPPED = 77
ROUTER = Path(__file__).resolve().parents[2] / "scripts" / "proxies" / "kv_router.py"


class RouterTest(unittest.TestCase):
    def setUp(self):
        self.hosts = {name: CachedHost(self, ARGUMENTS, None if ON_LOOPBACK else Network(self, number))
                      for number, name in enumerate(("a", "b"))}
        command = [PYTHON, ROUTER, "--port", "0", "--model", ARGUMENTS.model.name,
                   "--tokenize", f"{ARGUMENTS.engine} tokenize --model {ARGUMENTS.model} --text-file"]
        for name, host in self.hosts.items():
            command += ["--host", f"{name}=http://{host.address}:{host.engine_port},{host.events},{host.replay}"]
        router = self.hosts["a"].start(command, stdout=subprocess.PIPE, text=True)
        self.port = int(re.search(r":(\d+)$", router.stdout.readline().strip()).group(1))
        until(lambda: all(host["last"] for host in self.known().values()), "the router follows both hosts")

    def known(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("GET", "/hosts")
        known = json.loads(connection.getresponse().read())
        connection.close()
        return known

    def settle(self):
        """What was stored is on disk, and the router knows it."""
        def holds():
            known = self.known()
            return all(known[name]["blocks"] == len(host.blocks()) for name, host in self.hosts.items())
        for host in self.hosts.values():
            host.ctl("flush")
        until(holds, "the router has as many blocks as kvtierctl lists")

    def ask(self, number, more=""):
        answer, headers = ask(self.port, prompt(number) + more)
        return headers["X-Kvtier-Host"], int(headers["X-Kvtier-Blocks"]), cached_tokens(answer)

    def test_a_prompt_goes_where_the_longest_part_of_it_is(self):
        first = {}
        for number in range(6):
            first[number], blocks, _ = self.ask(number)
            self.assertEqual(blocks, 0)
        # What nobody has goes to both in turns.
        self.assertEqual(sorted(first.values()), ["a"] * 3 + ["b"] * 3)
        self.settle()
        for number in (5, 0, 3, 1, 4, 2):
            host, blocks, cached = self.ask(number, " And then?")
            self.assertEqual(host, first[number])
            self.assertGreater(blocks, 10)
            self.assertGreaterEqual(cached, 16 * blocks - 16)

        # What a host forgets it is asked for no more. What was computed above is stored by then.
        forgetful = first[0]
        self.settle()
        self.hosts[forgetful].ctl("drop", "--all")
        self.settle()
        self.assertEqual(self.known()[forgetful]["blocks"], 0)
        self.assertEqual(self.ask(0)[1], 0)

        # What it has on disk is found there when it was killed and is back: the router remembers what a hash stands for.
        other = next(name for name in self.hosts if name != forgetful)
        kept = next(number for number, name in first.items() if name == other)
        before = self.known()[other]["last"]
        self.hosts[other].kill_daemon()
        self.hosts[other].start_daemon()
        until(lambda: self.known()[other]["last"] > before, "the router has heard of the new daemon")
        self.settle()
        host, blocks, _ = self.ask(kept)
        self.assertEqual(host, other)
        self.assertGreater(blocks, 10)

    def test_what_the_engine_refuses_is_passed_on(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("POST", "/v1/completions", "no JSON", {"Content-Type": "application/json"})
        self.assertEqual(connection.getresponse().status, 400)
        connection.close()
        # The answer goes out before its request is over.
        until(lambda: not any(host["under_way"] for host in self.known().values()), "no request is under way")

    def test_a_stream_comes_through_as_one(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = {"model": "docs-4m", "prompt": prompt(1), "max_tokens": 3, "temperature": 0, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        lines = connection.getresponse().read().decode().split("\n\n")
        connection.close()
        self.assertGreater(len(lines), 3)
        self.assertIn("data: [DONE]", lines)


def python_with_zmq():
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import msgpack, zmq"], capture_output=True).returncode == 0:
            return python
    print("skipped: no Python here has zmq and msgpack")
    sys.exit(SKIPPED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("kvtierd", "kvtierctl", "engine", "model", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    ARGUMENTS, rest = parser.parse_known_args()
    ARGUMENTS.work.mkdir(parents=True, exist_ok=True)
    PYTHON = python_with_zmq()
    ON_LOOPBACK = enter()
    print(f"both hosts on the loopback: {ON_LOOPBACK}" if ON_LOOPBACK else "each host in a network namespace", file=sys.stderr)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
