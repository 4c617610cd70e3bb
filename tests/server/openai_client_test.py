#!/usr/bin/env python3
"""The official `openai` client, unmodified, against `kvtier-engine serve`, and what it never sends.

    openai_client_test.py --engine bin/kvtier-engine --model engine_adapter/models/docs-4m --work DIR [--daemon bin/kvtierd]

Makes a virtual environment with the client in DIR. Exit status 77, skipped, where it cannot be installed.
"""

import argparse
import concurrent.futures
import http.client
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import venv
from pathlib import Path

SKIPPED = 77
KEY = "a-key-of-the-test"
TEMPLATE = """{% for m in messages %}{{ m.role }}: {{ m.content }}
{% if m.role == 'broken' %}{{ m.content + 1 }}{% endif %}{% if m.role == 'tool' and not m.name %}{{ raise_exception('no tools here') }}{% endif %}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
PROMPT = "To mount a disk, the administrator edits the file /etc/fstab. The fields of each line of this file are"


class Server:
    """One `kvtier-engine serve` with a model that has a chat template."""

    def __init__(self, arguments, *options, cache=("--no-cache",)):
        self.folder = tempfile.TemporaryDirectory()
        model = Path(self.folder.name, "docs")  # the name is part of the namespace
        model.mkdir()
        for file in arguments.model.iterdir():
            os.symlink(file.resolve(), model / file.name)
        Path(model, "chat_template.jinja").write_text(TEMPLATE)
        key = Path(self.folder.name, "key")
        key.write_text(KEY + "\n")
        self.process = subprocess.Popen(
            [arguments.engine, "--threads", "2", "serve", "--model", model, "--port", "0",
             *cache, "--storage-format", "f32", "--api-key-file", key, *options],
            stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)", line).group(1))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        self.process.stdout.close()
        self.folder.cleanup()
        return status

    def sent(self, head, body=b"", half_close=False):
        """All bytes that come back for the bytes of one request, whose connection is then closed."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as connection:
            connection.sendall(head.replace("\n", "\r\n").encode() + body)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            answer = b""
            while more := connection.recv(1 << 16):
                answer += more
            return answer

    def raw(self, method, path, body=None, key=KEY, headers=None):
        """(status, JSON or text) of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, body, {"Authorization": "Bearer " + key, **(headers or {})})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, json.loads(text) if text.startswith("{") else text

    def metric(self, name):
        found = re.search(rf"^{re.escape(name)}{{[^}}]*}} (\S+)$", self.raw("GET", "/metrics")[1], re.M)
        return float(found.group(1))


class OpenAiClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(ARGUMENTS)
        cls.client = openai.OpenAI(api_key=KEY, base_url=f"http://127.0.0.1:{cls.server.port}/v1", max_retries=0, timeout=120)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def complete(self, prompt=PROMPT, **options):
        return self.client.completions.create(model="docs", prompt=prompt, **{"max_tokens": 16, "temperature": 0, **options})

    def test_models_lists_the_one(self):
        self.assertEqual([model.id for model in self.client.models.list().data], ["docs"])
        self.assertEqual(self.client.models.retrieve("docs").id, "docs")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_a_completion_says_what_it_used_and_found(self):
        prompt = PROMPT + " these, in this order, and no others"
        first, second = self.complete(prompt), self.complete(prompt)
        self.assertEqual(first.object, "text_completion")
        self.assertEqual(first.choices[0].text, second.choices[0].text)
        self.assertEqual(first.choices[0].finish_reason, "length")
        self.assertEqual(first.usage.completion_tokens, 16)
        self.assertEqual(first.usage.total_tokens, first.usage.prompt_tokens + 16)
        self.assertGreaterEqual(second.usage.prompt_tokens_details.cached_tokens, 16)

    def test_another_cache_salt_finds_nothing(self):
        prompt = PROMPT + " of the salted kind"
        self.complete(prompt)
        salted = self.complete(prompt, extra_body={"cache_salt": "salt"})
        self.assertEqual(salted.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(salted.choices[0].text, self.complete(prompt).choices[0].text)

    def test_token_ids_are_a_prompt_too(self):
        self.assertEqual(self.complete([5, 6, 7, 8]).usage.prompt_tokens, 4)

    def test_several_prompts_in_one_request_answer_as_one_each(self):
        prompts = [PROMPT, [5, 6, 7, 8], "The second prompt says"]
        one_each = [self.complete(prompt) for prompt in prompts[:1] + prompts[2:]]
        both = self.complete([prompts[0], prompts[2]], echo=True)
        self.assertEqual([c.index for c in both.choices], [0, 1])
        self.assertEqual([c.text for c in both.choices], [p + o.choices[0].text for p, o in zip([prompts[0], prompts[2]], one_each)])
        self.assertEqual(both.usage.prompt_tokens, sum(o.usage.prompt_tokens for o in one_each))
        self.assertEqual(both.usage.completion_tokens, 32)
        sampled = dict(n=2, temperature=0.9, seed=3, max_tokens=8, extra_body={"ignore_eos": True})
        lists = self.complete([prompts[1], [9, 10]], **sampled)
        self.assertEqual([c.index for c in lists.choices], [0, 1, 2, 3])
        self.assertEqual([c.text for c in lists.choices[:2]], [c.text for c in self.complete(prompts[1], **sampled).choices])
        texts, ends = [""] * 2, 0
        for chunk in self.complete([prompts[0], prompts[2]], stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                ends += choice.finish_reason == "length"
        self.assertEqual((texts, ends), ([o.choices[0].text for o in one_each], 2))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(["fine", "word " * 9000])
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def test_a_stream_adds_up_to_the_whole(self):
        whole = self.complete(max_tokens=32)
        chunks = list(self.complete(max_tokens=32, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices), whole.choices[0].text)
        self.assertGreater(len(chunks), 8)
        self.assertEqual(chunks[-2].choices[0].finish_reason, "length")
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 32)
        self.assertIsNone(chunks[0].usage)

    def test_a_chat_answers_as_its_rendered_text_does(self):
        messages = [{"role": "system", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "text", "text": "What is a"}, {"type": "text", "text": "file?"}]}]
        chat = self.client.chat.completions.create(model="docs", messages=messages, max_completion_tokens=12, temperature=0)
        text = self.complete("system: Be brief.\nuser: What is a\nfile?\nassistant:", max_tokens=12)
        self.assertEqual(chat.choices[0].message.content, text.choices[0].text)
        self.assertEqual(chat.choices[0].message.role, "assistant")
        stream = self.client.chat.completions.create(model="docs", messages=messages, max_tokens=12, temperature=0, stream=True)
        chunks = list(stream)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), chat.choices[0].message.content)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "length")

    def test_seeds_decide_and_n_gives_so_many(self):
        one = self.complete(temperature=0.9, seed=7, n=3, max_tokens=12, extra_body={"ignore_eos": True})
        two = self.complete(temperature=0.9, seed=7, n=3, max_tokens=12, extra_body={"ignore_eos": True})
        self.assertEqual([c.text for c in one.choices], [c.text for c in two.choices])
        self.assertEqual(len({c.text for c in one.choices}), 3)
        self.assertEqual([c.index for c in one.choices], [0, 1, 2])
        self.assertEqual(one.usage.completion_tokens, 36)

    def test_stop_texts_end_an_answer_before_them(self):
        text = self.complete(max_tokens=32).choices[0].text
        stop = text[20:26]
        for stream in (False, True):
            answer = self.complete(max_tokens=32, stop=[stop, "never said"], stream=stream)
            choices = [c.choices[0] for c in answer] if stream else answer.choices
            self.assertEqual("".join(c.text for c in choices), text[:text.index(stop)])
            self.assertEqual(choices[-1].finish_reason, "stop")

    def test_logprobs_come_with_the_tokens(self):
        answer = self.complete(logprobs=3, max_tokens=5).choices[0].logprobs
        self.assertEqual(len(answer.tokens), 5)
        self.assertTrue(all(logprob <= 0 for logprob in answer.token_logprobs))
        self.assertTrue(all(len(top) == 3 for top in answer.top_logprobs))
        self.assertEqual(answer.token_logprobs[0], max(answer.top_logprobs[0].values()))
        chat = self.client.chat.completions.create(model="docs", messages=[{"role": "user", "content": "x"}], max_tokens=4,
                                                   temperature=0, logprobs=True, top_logprobs=2)
        content = chat.choices[0].logprobs.content
        self.assertEqual(b"".join(bytes(c.bytes) for c in content).decode(), chat.choices[0].message.content)
        self.assertEqual(content[0].logprob, content[0].top_logprobs[0].logprob)

    def test_the_logprobs_of_a_prompt_are_those_that_a_harness_reads(self):
        """As lm-evaluation-harness asks ("local-completions"), and what it reads of the answers."""
        self.complete(PROMPT)  # nothing of it may come from the cache
        for tokens in ([5, 6, 7, 8] * 40, PROMPT, [PROMPT, "A word"], [[5, 6, 7], [8, 9]]):
            for more in ({"max_tokens": 1}, {"max_tokens": 0}, {"max_tokens": 1, "n": 2}):
                with self.subTest(tokens=str(tokens)[:30], more=more):
                    answer = self.complete(tokens, logprobs=1, echo=True, temperature=0, seed=1234, **more)
                    several = isinstance(tokens[0], list) or isinstance(tokens, list) and isinstance(tokens[0], str)
                    prompts = len(tokens) if several else 1
                    self.assertEqual(len(answer.choices), prompts * more.get("n", 1))
                    self.assertEqual(answer.usage.prompt_tokens_details.cached_tokens, 0)
                    for choice in answer.choices:
                        told = choice.logprobs
                        self.assertEqual(choice.finish_reason, "length")
                        self.assertEqual((told.token_logprobs[0], told.top_logprobs[0]), (None, None))
                        self.assertTrue(all(logprob <= 0 for logprob in told.token_logprobs[1:]))
                        self.assertEqual("".join(told.tokens), choice.text)
                        for token, logprob, top in list(zip(told.tokens, told.token_logprobs, told.top_logprobs))[1:]:
                            self.assertIn(len(top), (1, 2))
                            self.assertEqual(top[token], logprob)
                        for token, offset in zip(told.tokens, told.text_offset):
                            self.assertTrue(choice.text[offset:].startswith(token))
                        if more["max_tokens"] == 1:  # greedy
                            self.assertEqual(told.token_logprobs[-1], max(told.top_logprobs[-1].values()))
        text = "The second prompt says"
        whole = self.complete(text, logprobs=2, echo=True, max_tokens=3).choices[0]
        parts = [c.choices[0] for c in self.complete(text, logprobs=2, echo=True, max_tokens=3, stream=True)]
        self.assertEqual("".join(part.text for part in parts), whole.text)
        told = [part.logprobs for part in parts if part.logprobs]
        self.assertEqual(sum((part.token_logprobs for part in told), []), whole.logprobs.token_logprobs)
        self.assertEqual(sum((part.text_offset for part in told), []), whole.logprobs.text_offset)

    def test_the_logprobs_of_a_prompt_are_those_of_the_score(self):
        text = " ".join(f"{PROMPT} {i}." for i in range(6))
        told = self.complete(text, logprobs=0, echo=True, max_tokens=0).choices[0].logprobs
        file = Path(self.server.folder.name, "text")
        file.write_text(text)
        scored = json.loads(subprocess.run(
            [ARGUMENTS.engine, "score", "--model", ARGUMENTS.model, "--text-file", file, "--storage-format", "f32", "--json"],
            capture_output=True, check=True).stdout)
        bits = -sum(told.token_logprobs[1:]) / math.log(2)
        self.assertEqual(len(told.tokens), scored["tokens"] + 1)
        size = len(text.encode()) - len(told.tokens[0].encode())
        self.assertAlmostEqual(bits / size, scored["formats"][0]["bits_per_byte"], places=4)

    def test_a_context_is_filled_and_no_token_more(self):
        context = self.client.models.list().data[0].max_model_len
        for left, most in ((2, 100), (1, 1), (2, None)):
            answer = self.complete([5] * (context - left), max_tokens=most, extra_body={"ignore_eos": True})
            self.assertEqual(answer.usage.total_tokens, context)
            self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(self.complete([5] * context, max_tokens=0).usage.total_tokens, context)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete([5] * context, max_tokens=1)
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def test_a_history_of_tool_calls_without_content_is_taken(self):
        calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": calls},
                    {"role": "tool", "name": "f", "content": "y", "tool_call_id": "1"}]
        chat = self.client.chat.completions.create(model="docs", messages=messages, max_tokens=4, temperature=0)
        self.assertEqual(chat.choices[0].message.content,
                         self.complete("user: x\nassistant: \ntool: y\nassistant:", max_tokens=4).choices[0].text)

    def test_no_error_tells_where_the_model_lies(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="docs", messages=[{"role": "broken", "content": "x"}])
        self.assertIn("chat_template", str(caught.exception))
        self.assertNotIn("/", caught.exception.message)

    def test_echo_repeats_the_prompt(self):
        plain = self.complete().choices[0].text
        self.assertEqual(self.complete(echo=True).choices[0].text, PROMPT + plain)
        self.assertEqual("".join(c.choices[0].text for c in self.complete(echo=True, stream=True)), PROMPT + plain)

    def test_beam_search_finds_no_worse_an_answer_than_greed(self):
        beam = {"use_beam_search": True, "best_of": 4, "ignore_eos": True}
        found = self.complete(max_tokens=8, logprobs=0, n=2, extra_body=beam)
        greedy = self.complete(max_tokens=8, logprobs=0, extra_body={"ignore_eos": True})
        self.assertEqual(len(found.choices), 2)
        self.assertGreaterEqual(sum(found.choices[0].logprobs.token_logprobs) + 1e-4, sum(greedy.choices[0].logprobs.token_logprobs))

    def test_sixteen_at_once_answer_as_one_at_a_time(self):
        def ask(i):
            return self.complete(PROMPT + f" number {i}" * (i + 1), temperature=0.8, seed=i, max_tokens=24).choices[0].text

        alone = [ask(i) for i in range(16)]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            together = list(pool.map(ask, range(16)))
        self.assertEqual(together, alone)

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

    def test_errors_have_their_types_and_name_the_field(self):
        for options, field in [({"temperature": -1}, "temperature"), ({"n": 99}, "n"), ({"frequency_penalty": 1}, "frequency_penalty"),
                               ({"stop": [""]}, "stop"), ({"extra_body": {"colour": 1}}, "colour"), ({"best_of": 3}, "best_of"),
                               ({"prompt": ["a", []]}, "prompt"), ({"max_tokens": -1}, "max_tokens")]:
            with self.subTest(field), self.assertRaises(openai.BadRequestError) as caught:
                self.complete(**options)
            self.assertEqual(caught.exception.param, field)
            self.assertEqual(caught.exception.type, "invalid_request_error")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete("word " * 9000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.completions.create(model="other", prompt="x")
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="docs", messages=[{"role": "tool", "content": "x", "tool_call_id": "1"}])
        self.assertIn("no tools here", str(caught.exception))
        with self.assertRaises(openai.AuthenticationError):
            self.client.with_options(api_key="wrong").models.list()

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


class NamedServerTest(unittest.TestCase):
    def test_a_name_is_found_however_its_path_is_written(self):
        server = Server(ARGUMENTS, "--served-name", "org/a model")
        try:
            for path in ("org%2Fa%20model", "org/a%20model", "%6frg%2fa%20model?x=/"):
                self.assertEqual(server.raw("GET", "/v1/models/" + path)[1]["id"], "org/a model")
            self.assertEqual(server.raw("GET", "/v1%2Fmodels")[0], 200)
            self.assertEqual(server.raw("GET", "/v1/models/org%252Fa%20model")[0], 404)
            client = openai.OpenAI(api_key=KEY, base_url=f"http://127.0.0.1:{server.port}/v1", max_retries=0, timeout=120)
            self.assertEqual(client.models.retrieve("org/a model").id, "org/a model")
        finally:
            self.assertEqual(server.stop(), 0)


class BusyServerTest(unittest.TestCase):
    def test_more_than_may_wait_is_refused_for_now(self):
        server = Server(ARGUMENTS, "--waiting-max", "1", "--running-max", "1")
        client = openai.OpenAI(api_key=KEY, base_url=f"http://127.0.0.1:{server.port}/v1", max_retries=0, timeout=120)
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


class DrainTest(unittest.TestCase):
    """What happens to answers under way when the server is asked to end."""

    def begin(self, tokens, *options):
        """A server, and a stream of it whose first token has come."""
        server = Server(ARGUMENTS, *options)
        client = openai.OpenAI(api_key=KEY, base_url=f"http://127.0.0.1:{server.port}/v1", max_retries=0, timeout=120)
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
        server = Server(ARGUMENTS, cache=("--socket", self.socket, "--deadline-ms", "30000", "--load-policy", "load"))
        client = openai.OpenAI(api_key=KEY, base_url=f"http://127.0.0.1:{server.port}/v1", max_retries=0, timeout=120)
        found = client.completions.create(model="docs", prompt=prompt, max_tokens=16, temperature=0)
        hits = server.metric("vllm:external_prefix_cache_hits_total")
        self.assertEqual(server.stop(), 0)
        return found, hits

    def test_a_daemon_that_has_stopped_costs_all_requests_one_deadline(self):
        """Four of the 24 have their turn at a time: those that come later have waited in the queue."""
        prompts = [" ".join(f"{PROMPT} {i} {j}." for j in range(4)) for i in range(24)]

        def ask_all(*cache, stop=False):
            server = Server(ARGUMENTS, "--running-max", "4", cache=cache)
            client = openai.OpenAI(api_key=KEY, base_url=f"http://127.0.0.1:{server.port}/v1", max_retries=0, timeout=120)
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


def use_client(work):
    """The path of a virtual environment with the client; None where it cannot be installed."""
    environment = work / "venv"
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    found = subprocess.run([python, "-c", "import openai"], capture_output=True)
    if found.returncode != 0:
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", "openai"], capture_output=True, text=True)
        if done.returncode != 0:
            print("skipped: the openai package cannot be installed:", done.stderr.strip()[-300:])
            return None
    return python


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--daemon", type=Path, help="kvtierd, for the tests with a cache")
    ARGUMENTS, rest = parser.parse_known_args()
    try:
        import openai
    except ImportError:
        interpreter = use_client(ARGUMENTS.work)
        if interpreter is None:
            sys.exit(SKIPPED)
        os.execv(interpreter, [str(interpreter), *sys.argv])
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
