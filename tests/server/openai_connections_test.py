#!/usr/bin/env python3
"""Clients of `kvtier-engine serve` that leave, say no more, or send what the `openai` client never does.

    openai_connections_test.py --engine bin/kvtier-engine --model engine_adapter/models/docs-4m --work DIR

Makes a virtual environment with the client in DIR. Exit status 77, skipped, where it cannot be installed.
"""

import concurrent.futures
import json
import re
import socket
import time

import served_engine
from served_engine import KEY, PROMPT, ServedTest


class ConnectionsTest(ServedTest):
    def test_closing_a_stream_cancels_what_is_computed(self):
        before = self.server.metric("kvtier_engine_requests_cancelled_total")
        stream = self.complete(max_tokens=3000, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        deadline = time.monotonic() + 60
        while self.server.metric("kvtier_engine_requests_cancelled_total") == before:
            self.assertLess(time.monotonic(), deadline, "the request goes on without its client")
        while self.server.metric("vllm:num_requests_running") > 0:
            self.assertLess(time.monotonic(), deadline)

    def test_a_client_that_leaves_without_reading_cancels_too(self):
        before = self.server.metric("kvtier_engine_requests_cancelled_total")
        body = json.dumps({"model": "docs", "prompt": PROMPT, "max_tokens": 8000, "ignore_eos": True})
        with socket.create_connection(("127.0.0.1", self.server.port)) as connection:
            connection.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
                                f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
            deadline = time.monotonic() + 60
            while self.server.metric("vllm:num_requests_running") == 0:
                self.assertLess(time.monotonic(), deadline)
        while self.server.metric("kvtier_engine_requests_cancelled_total") == before:
            self.assertLess(time.monotonic(), deadline, "the request goes on without its client")

    def test_a_client_that_sends_no_more_gets_its_answer(self):
        """shutdown() of the sending side is not the end of the client; an interim answer may come before a late one."""
        for tokens, stream in ((4, False), (4, True), (1500, False)):
            with self.subTest(tokens=tokens, stream=stream):
                body = json.dumps({"model": "docs", "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True,
                                   "stream": stream}).encode()
                answer = self.server.sent(f"POST /v1/completions HTTP/1.1\nHost: x\nAuthorization: Bearer {KEY}\n"
                                          f"Content-Length: {len(body)}\n\n", body, half_close=True)
                while answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\n"):
                    answer = answer.split(b"\r\n\r\n", 1)[1]
                self.assertTrue(answer.startswith(b"HTTP/1.1 200 OK\r\n"), answer[:100])
                self.assertIn(b'"finish_reason":"length"', answer)

    def test_head_is_get_without_a_body_and_the_connection_goes_on(self):
        for path in ("/health", "/metrics", "/v1/models", "/v1/models/docs", "/nowhere", "/v1/completions"):
            with self.subTest(path):
                request = f" {path} HTTP/1.1\nHost: x\nAuthorization: Bearer {KEY}\n"
                last = "GET /health HTTP/1.1\nHost: x\nConnection: close\n\n"
                answers = self.server.sent("HEAD" + request + "\n" + last).split(b"HTTP/1.1 ")[1:]
                self.assertEqual(len(answers), 2, answers)
                self.assertTrue(answers[0].endswith(b"\r\n\r\n"), answers[0])
                whole = self.server.sent("GET" + request + "Connection: close\n\n").split(b"HTTP/1.1 ")[1]
                self.assertEqual(answers[0].split()[0], whole.split()[0])
                length = re.search(rb"Content-Length: (\d+)", whole).group(1)
                if path not in ("/metrics", "/v1/completions"):
                    self.assertIn(b"Content-Length: " + length + b"\r\n", answers[0])
        for method in ("OPTIONS", "PUT", "DELETE"):
            answers = self.server.sent(f"{method} /v1/completions HTTP/1.1\nHost: x\n\n{last}").split(b"HTTP/1.1 ")[1:]
            self.assertEqual([a.split()[0] for a in answers], [b"405", b"200"])
            self.assertIn(b"Allow: POST\r\n", answers[0])
            self.assertIn(b"Allow: GET, HEAD\r\n", self.server.sent(f"{method} /health HTTP/1.1\nHost: x\nConnection: close\n\n"))

    def test_large_bodies_delay_nobody_else(self):
        """Two at once, of each kind: keys, values, and a text whose tokens take seconds to make."""
        size = (16 << 20) - 100
        pair = b'"%08x":0,'
        keys = b"{" + b"".join(pair % i for i in range(size // len(pair % 0)))[:-1] + b"}"
        objects = b'{"model":"docs","messages":[' + b'{"role":"user","content":"x"},' * 50000 + b'{}]}'
        numbers = b'{"model":"docs","prompt":[' + b"7," * 2000000 + b'7]}'
        words = b'{"model":"docs","prompt":"' + b"mount a disk, " * (size // 15) + b'"}'

        def health():
            begun = time.monotonic()
            self.assertEqual(self.server.raw("GET", "/health")[0], 200)
            return time.monotonic() - begun

        usual = max(health() for _ in range(50))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for body in (keys, objects, numbers, words):
                posts = [pool.submit(self.server.raw, "POST", "/v1/completions" if body is not objects else "/v1/chat/completions", body)
                         for _ in range(2)]
                waits = []
                while not all(post.done() for post in posts):
                    waits.append(health())
                for post in posts:
                    self.assertEqual(post.result()[0], 400)
                # A machine that is busy with other things has its own delays.
                self.assertLess(sorted(waits)[len(waits) * 9 // 10], 0.1 + 20 * usual, (body[:40], usual))

    def test_what_no_client_sends_is_refused(self):
        self.assertEqual(self.server.raw("GET", "/nowhere")[0], 404)
        self.assertEqual(self.server.raw("GET", "/v1/completions")[0], 405)
        self.assertEqual(self.server.raw("POST", "/v1/completions", "{")[0], 400)
        self.assertEqual(self.server.raw("POST", "/v1/completions", "[" * 100000)[0], 400)
        self.assertEqual(self.server.raw("POST", "/v1/completions", b"\xff{}")[0], 400)
        status, body = self.server.raw("POST", "/v1/completions", " " * (17 << 20))
        self.assertEqual((status, body["error"]["code"]), (413, "body_too_large"))
        self.assertEqual(self.server.raw("GET", "/health", headers={"X": "y" * 20000})[0], 431)
        with socket.create_connection(("127.0.0.1", self.server.port)) as connection:
            connection.sendall(b"not HTTP at all\r\n\r\n")
            self.assertIn(b" 400 ", connection.recv(1000))

    def test_health_and_metrics_need_no_key(self):
        self.assertEqual(self.server.raw("GET", "/health", key="")[1], {"status": "ok"})
        self.complete()
        text = self.server.raw("GET", "/metrics", key="")[1]
        for name in ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_queries_total",
                     "vllm:external_prefix_cache_hits_total", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                     "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_count"):
            self.assertIn("\n" + name + '{model_name="docs"}', text)
        self.assertGreater(self.server.metric("vllm:time_to_first_token_seconds_count"), 0)
        self.assertGreater(self.server.metric("vllm:generation_tokens_total"), 0)


if __name__ == "__main__":
    served_engine.main()
