#!/usr/bin/env python3
"""Servers with names of their own, full ones, ones that end, and ones with a daemon, against the `openai` client.

    openai_servers_test.py --engine bin/kvtier-engine --model engine_adapter/models/docs-4m --work DIR [--daemon bin/kvtierd]

Makes a virtual environment with the client in DIR. Exit status 77, skipped, where it cannot be installed.
"""

import concurrent.futures
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

import served_engine
from served_engine import ARGUMENTS, PROMPT, Server, openai


class NamedServerTest(unittest.TestCase):
    def test_a_name_is_found_however_its_path_is_written(self):
        server = Server("--served-name", "org/a model")
        try:
            for path in ("org%2Fa%20model", "org/a%20model", "%6frg%2fa%20model?x=/"):
                self.assertEqual(server.raw("GET", "/v1/models/" + path)[1]["id"], "org/a model")
            self.assertEqual(server.raw("GET", "/v1%2Fmodels")[0], 200)
            self.assertEqual(server.raw("GET", "/v1/models/org%252Fa%20model")[0], 404)
            client = server.client()
            self.assertEqual(client.models.retrieve("org/a model").id, "org/a model")
        finally:
            self.assertEqual(server.stop(), 0)


class BusyServerTest(unittest.TestCase):
    def test_more_than_may_wait_is_refused_for_now(self):
        server = Server("--waiting-max", "1", "--running-max", "1")
        client = server.client()
        streams, refused = [], threading.Event()
        try:
            for i in range(8):
                try:
                    streams.append(client.completions.create(model="docs", prompt=f"{i} {PROMPT}", max_tokens=3000, stream=True,
                                                             extra_body={"ignore_eos": True}))
                except openai.RateLimitError as error:
                    self.assertEqual(error.type, "rate_limit_error")
                    refused.set()
                    break
            self.assertTrue(refused.is_set())
        finally:
            for stream in streams:
                stream.close()
            self.assertEqual(server.stop(), 0)


class SpeculatingServerTest(unittest.TestCase):
    def test_answers_are_those_of_a_server_that_proposes_nothing(self):
        text = (ARGUMENTS.model / "heldout.txt").read_text()[:3000]
        asked = [{"max_tokens": 200}, {"max_tokens": 60, "stop": ["the "]}, {"max_tokens": 120, "stop": [". T", "\n\n"]},
                 {"max_tokens": 50, "temperature": 0.7, "seed": 5, "n": 3}, {"max_tokens": 40, "logprobs": 3},
                 {"max_tokens": 30, "n": 2, "extra_body": {"use_beam_search": True, "best_of": 3}},
                 {"max_tokens": 20, "echo": True, "logprobs": 1}]

        def answers(*options):
            server = Server(*options)
            try:
                client = server.client()
                plain = [client.completions.create(model="docs", prompt=text, **{"temperature": 0, **each}) for each in asked]
                stream = client.completions.create(model="docs", prompt=text, temperature=0, stream=True, max_tokens=80,
                                                   stream_options={"include_usage": True})
                streamed = [(choice.text, choice.finish_reason) for chunk in stream for choice in chunk.choices]
                told = [([choice.model_dump() for choice in each.choices], each.usage.completion_tokens) for each in plain]
                told.append("".join(text for text, _ in streamed))
                return told, server.metric("vllm:spec_decode_num_draft_tokens_total"), \
                    server.metric("vllm:spec_decode_num_accepted_tokens_total")
            finally:
                self.assertEqual(server.stop(), 0)

        plain, proposed, _ = answers()
        self.assertEqual(proposed, 0)
        speculated, proposed, accepted = answers("--speculate", "ngram")
        self.assertEqual(plain, speculated)
        self.assertGreater(accepted, 100)
        self.assertGreater(proposed, accepted)


class DrainTest(unittest.TestCase):
    """What happens to answers under way when the server is asked to end."""

    def begin(self, tokens, *options):
        """A server, and a stream of it whose first token has come."""
        server = Server(*options)
        client = server.client()
        stream = client.completions.create(model="docs", prompt=PROMPT, max_tokens=tokens, temperature=0, stream=True,
                                           extra_body={"ignore_eos": True}, stream_options={"include_usage": True})
        next(stream)
        return server, stream

    def no_more_are_let_in(self, server):
        while True:
            try:
                socket.create_connection(("127.0.0.1", server.port), timeout=60).close()
            except (ConnectionRefusedError, ConnectionResetError):  # reset: it was in the queue
                return

    def test_an_answer_under_way_is_finished_and_nobody_else_is_let_in(self):
        server, stream = self.begin(600)
        server.process.send_signal(signal.SIGTERM)
        self.no_more_are_let_in(server)
        *_, last = stream
        self.assertEqual(last.usage.completion_tokens, 600)
        self.assertEqual(server.process.wait(timeout=60), 0)
        server.stop()

    def test_a_second_signal_and_the_bound_cut_it_off(self):
        for options, second in (((), True), (("--drain-seconds", "1"), False), (("--drain-seconds", "0"), False)):
            with self.subTest(options=options, second=second):
                server, stream = self.begin(4000, *options)
                server.process.send_signal(signal.SIGTERM)
                if second:
                    self.no_more_are_let_in(server)
                    server.process.send_signal(signal.SIGTERM)
                self.assertEqual(server.process.wait(timeout=60), 0)
                with self.assertRaises(Exception):
                    for chunk in stream:
                        self.assertIsNone(chunk.usage)
                server.stop()


class DaemonTest(unittest.TestCase):
    """What one server computed, the next one takes from kvtierd, with the same answer."""

    def setUp(self):
        if ARGUMENTS.daemon is None:
            self.skipTest("no --daemon given")
        self.folder = tempfile.TemporaryDirectory()
        self.socket = Path(self.folder.name, "kvtierd.sock")
        config = Path(self.folder.name, "kvtierd.toml")
        config.write_text(f'socket = "{self.socket}"\n[host]\ncapacity = "64MiB"\n')
        self.daemon = subprocess.Popen([ARGUMENTS.daemon, "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def tearDown(self):
        if ARGUMENTS.daemon is not None:
            self.daemon.send_signal(signal.SIGTERM)
            self.daemon.wait(timeout=60)
            self.folder.cleanup()

    def answer(self, prompt):
        server = Server(cache=("--socket", self.socket, "--deadline-ms", "30000", "--load-policy", "load"))
        client = server.client()
        found = client.completions.create(model="docs", prompt=prompt, max_tokens=16, temperature=0)
        hits = server.metric("vllm:external_prefix_cache_hits_total")
        self.assertEqual(server.stop(), 0)
        return found, hits

    def test_a_daemon_that_has_stopped_costs_all_requests_one_deadline(self):
        """Four of the 24 have their turn at a time: those that come later have waited in the queue."""
        prompts = [" ".join(f"{PROMPT} {i} {j}." for j in range(4)) for i in range(24)]

        def ask_all(*cache, stop=False):
            server = Server("--running-max", "4", cache=cache)
            client = server.client()
            client.completions.create(model="docs", prompt="It opens the namespace.", max_tokens=1)
            if stop:
                self.daemon.send_signal(signal.SIGSTOP)
            try:
                begun = time.monotonic()
                with concurrent.futures.ThreadPoolExecutor(24) as pool:
                    answers = list(pool.map(lambda p: client.completions.create(model="docs", prompt=p, max_tokens=4, temperature=0)
                                            .choices[0].text, prompts))
                took = time.monotonic() - begun
            finally:
                self.daemon.send_signal(signal.SIGCONT)
                self.assertEqual(server.stop(), 0)
            return answers, took

        for _ in range(2):  # what was dropped the first time is there after the second
            ask_all("--socket", self.socket, "--deadline-ms", "30000", "--load-policy", "load")
        answers, computing = ask_all("--no-cache")
        found, took = ask_all("--socket", self.socket, "--deadline-ms", "3000", "--load-policy", "load", stop=True)
        self.assertEqual(found, answers)
        self.assertGreater(took, 2.5)  # it was waited for
        self.assertLess(took, 3.1 + 2 * computing + 1)

    def test_a_prefix_outlives_the_server(self):
        prompt = " ".join(f"{PROMPT} {i}." for i in range(8))
        first, first_hits = self.answer(prompt)
        self.assertEqual(first_hits, 0)
        # A write-back that finds no slot yet is dropped, so that nobody waits: the next server makes up for it.
        for _ in range(5):
            second, second_hits = self.answer(prompt)
            self.assertEqual(second.choices[0].text, first.choices[0].text)
            if second_hits >= 64:
                break
        self.assertGreaterEqual(second_hits, 64)
        self.assertEqual(second.usage.prompt_tokens_details.cached_tokens, second_hits)
        self.assertEqual(second.choices[0].text, first.choices[0].text)


if __name__ == "__main__":
    served_engine.main()
