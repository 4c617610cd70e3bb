#!/usr/bin/env python3
"""Engines of which some compute prompts and others answer, with the proxy in front of them and a kvtierd between them.

    disaggregation_test.py --kvtierd bin/kvtierd --engine bin/kvtier-engine --model engine_adapter/models/docs-4m --work DIR
"""
import argparse
import faulthandler
import signal
import sys
import threading
import time
import unittest
from pathlib import Path

from engines import Host, redis, text, until

LONG = 150  # lines: some 4,000 tokens
SLOW = ("--chunk-tokens", "16")  # a step has one block, so that there is time to interfere


def asked(engine, prompt, **more):
    """An answer that is on its way: a list that will have (status, body)."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(engine.complete(prompt, **more)))
    thread.start()
    return thread, answers


def text_of(answer):
    return answer["choices"][0]["text"]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


class SameTokens(unittest.TestCase):
    def compare(self, storage):
        host = Host(self, ARGUMENTS, storage)
        prefill, decode = host.engine("prefill"), host.engine("decode")
        for options in ((), ("--behind",)):
            proxy = host.proxy([prefill], [decode], *options)
            for number in (1, 2):
                prompt = text(number + 10 * len(options), 60)
                status, answer = proxy.complete(prompt)
                self.assertEqual(status, 200, answer)
                self.assertEqual(text_of(answer), host.alone(prompt))
                # All but the block of the last token was computed by the other engine.
                self.assertGreater(cached(answer), answer["usage"]["prompt_tokens"] - 18)
                self.assertNotIn("kv_transfer_params", answer)
            proxy.end()
        self.assertEqual(decode.metric("kvtier_engine_handoffs_total"), 4)
        self.assertEqual(decode.metric("kvtier_engine_handoffs_given_up_total"), 0)
        self.assertEqual(prefill.metric("kvtier_engine_prompts_for_others_total"), 4)
        self.assertEqual(prefill.metric("kvtier_engine_tokens_for_others_missing_total"), 0)
        self.assertLess(decode.metric("kvtier_engine_tokens_computed_total"), 4 * (24 + 18))

    def test_stored_as_computed(self):
        self.compare("f32")

    def test_stored_in_fp8(self):
        self.compare("fp8_e4m3")

    def across_hosts(self, storage):
        store = redis(self)
        theirs, ours = (Host(self, ARGUMENTS, storage, store) for _ in range(2))
        prefill, decode = theirs.engine("prefill"), ours.engine("decode")
        for options in ((), ("--behind",)):
            proxy = ours.proxy([prefill], [decode], *options)
            for number in (1, 2):
                prompt = text(number + 10 * len(options), 60)
                status, answer = proxy.complete(prompt)
                self.assertEqual(status, 200, answer)
                self.assertEqual(text_of(answer), ours.alone(prompt))
                self.assertGreater(cached(answer), answer["usage"]["prompt_tokens"] - 18)
            proxy.end()
        self.assertEqual(decode.metric("kvtier_engine_handoffs_given_up_total"), 0)
        self.assertLess(decode.metric("kvtier_engine_tokens_computed_total"), 4 * (24 + 18))

    def test_on_two_hosts_stored_as_computed(self):
        self.across_hosts("f32")

    def test_on_two_hosts_stored_in_fp8(self):
        self.across_hosts("fp8_e4m3")

    def test_samples_and_streams_are_the_answering_engines(self):
        host = Host(self, ARGUMENTS)
        prefill, decode = host.engine("prefill"), host.engine("decode")
        proxy = host.proxy([prefill], [decode])
        body = {"model": "docs-4m", "prompt": text(3, 60), "max_tokens": 8, "temperature": 0.9, "seed": 7, "n": 3,
                "ignore_eos": True}
        alone = host.engine("both", "--no-cache")
        wanted = alone.request("/v1/completions", body)[1]["choices"]
        for _ in range(2):  # behind the prompt, then at once
            status, answer = proxy.request("/v1/completions", body)
            self.assertEqual(status, 200, answer)
            self.assertEqual([choice["text"] for choice in answer["choices"]], [choice["text"] for choice in wanted])
        texts = ["", "", ""]
        last = None
        for last in proxy.events("/v1/completions", body):
            if last != "[DONE]":
                for choice in last["choices"]:
                    texts[choice["index"]] += choice["text"]
        self.assertEqual(last, "[DONE]")
        self.assertEqual(texts, [choice["text"] for choice in wanted])


class Roles(unittest.TestCase):
    def setUp(self):
        self.host = Host(self, ARGUMENTS)

    def test_a_prompt_is_handed_over_by_hand(self):
        prefill, decode = self.host.engine("both"), self.host.engine("both")
        prompt = text(4, 60)
        status, computed = prefill.complete(prompt, kv_transfer_params={"do_remote_decode": True, "remote_engine_id": None})
        self.assertEqual(status, 200, computed)
        # One token is all that there is, however many were asked for, and what was stored is there already.
        self.assertEqual(computed["usage"]["completion_tokens"], 1)
        self.assertEqual(computed["choices"][0]["finish_reason"], "length")
        params = computed["kv_transfer_params"]
        self.assertTrue(params["do_remote_prefill"])
        self.assertEqual(params["kvtier_tokens"], (computed["usage"]["prompt_tokens"] - 1) // 16 * 16)
        self.assertEqual(params["kvtier_missing_tokens"], 0)
        status, answer = decode.complete(prompt, kv_transfer_params=params)
        self.assertEqual(status, 200, answer)
        self.assertEqual(text_of(answer), self.host.alone(prompt))
        self.assertEqual(cached(answer), params["kvtier_tokens"])

    def test_a_handoff_of_another_model_is_refused(self):
        other = self.host.engine("prefill", "--served-name", "docs-4m", model=self.host.other_model())
        decode = self.host.engine("decode")
        proxy = self.host.proxy([other], [decode])
        for _ in range(2):
            status, answer = proxy.complete(text(5, 60))
            self.assertEqual(status, 400, answer)
            self.assertEqual(answer["error"]["code"], "handoff_mismatch")
            self.assertIn("namespace", answer["error"]["message"])
        # Neither is one of another storage format.
        f32 = self.host.engine("prefill", storage="f32")
        status, computed = f32.complete(text(5, 60))
        status, answer = decode.complete(text(5, 60), kv_transfer_params=computed["kv_transfer_params"])
        self.assertEqual((status, answer["error"]["code"]), (400, "handoff_mismatch"))

    def test_wrong_use_is_told(self):
        prefill, decode = self.host.engine("prefill"), self.host.engine("decode")
        awaited, for_another = {"do_remote_prefill": True}, {"do_remote_decode": True}
        for engine, more, what in (
                (prefill, {"kv_transfer_params": awaited}, "--role prefill"),
                (decode, {"kv_transfer_params": for_another}, "--role decode"),
                (prefill, {"stream": True}, "stream"),
                (prefill, {"prompt": ["a", "b"]}, "list"),
                (decode, {"prompt": ["a", "b"], "kv_transfer_params": awaited}, "list"),
                (decode, {"kv_transfer_params": awaited | for_another}, "both"),
                (decode, {"kv_transfer_params": 3}, "not an object"),
                (decode, {"kv_transfer_params": awaited | {"kvtier_tokens": -1}}, "kvtier_tokens"),
                (decode, {"kv_transfer_params": awaited | {"elsewhere": 1}}, "elsewhere")):
            status, answer = engine.request(
                "/v1/completions", {"model": "docs-4m", "prompt": "some words", "max_tokens": 4, **more})
            self.assertEqual(status, 400, answer)
            self.assertIn(what, answer["error"]["message"])


class Faults(unittest.TestCase):
    def setUp(self):
        self.host = Host(self, ARGUMENTS)

    def computing(self, prefill):
        """The prefill engine is in the middle of a long prompt."""
        before = prefill.metric("kvtier_engine_tokens_computed_total")
        until(lambda: prefill.metric("kvtier_engine_tokens_computed_total") > before + 200, "a prompt is half computed")

    def test_prefill_killed_in_the_middle_of_a_prompt(self):
        prefill, decode = self.host.engine("prefill", *SLOW), self.host.engine("decode")
        proxy = self.host.proxy([prefill], [decode])
        proxy.complete(text(1, 60))  # the proxy knows the namespace from here on
        prompt = text(6, LONG)
        thread, answers = asked(proxy, prompt)
        self.computing(prefill)
        prefill.signal(signal.SIGKILL)
        thread.join()
        status, answer = answers[0]
        self.assertEqual(status, 200, answer)
        self.assertEqual(text_of(answer), self.host.alone(prompt))
        # What had been stored by then was not computed again.
        self.assertGreater(cached(answer), 100)
        self.assertLess(cached(answer), answer["usage"]["prompt_tokens"] - 100)
        # From then on the other one does all, and at once.
        status, answer = proxy.complete(text(7, 60))
        self.assertEqual((status, text_of(answer)), (200, self.host.alone(text(7, 60))))
        self.assertGreater(proxy.request("/status")[1]["requests"]["prefill_failed"], 0)

    def test_prefill_that_stands_still_is_waited_for_no_longer_than_was_said(self):
        prefill = self.host.engine("prefill", *SLOW)
        decode = self.host.engine("decode", "--handoff-deadline-ms", "700")
        proxy = self.host.proxy([prefill], [decode])
        proxy.complete(text(1, 60))
        prompt = text(8, LONG)
        thread, answers = asked(proxy, prompt)
        self.computing(prefill)
        prefill.signal(signal.SIGSTOP)
        self.addCleanup(prefill.signal, signal.SIGCONT)
        thread.join()
        status, answer = answers[0]
        self.assertEqual(status, 200, answer)
        self.assertEqual(text_of(answer), self.host.alone(prompt))
        self.assertGreater(cached(answer), 100)
        self.assertEqual(decode.metric("kvtier_engine_handoffs_given_up_total"), 1)

    def test_the_daemon_killed_in_the_middle_of_a_prompt(self):
        prefill, decode = self.host.engine("prefill", *SLOW), self.host.engine("decode")
        proxy = self.host.proxy([prefill], [decode])
        proxy.complete(text(1, 60))
        prompt = text(9, LONG)
        thread, answers = asked(proxy, prompt)
        self.computing(prefill)
        self.host.end_daemon()
        thread.join()
        status, answer = answers[0]
        self.assertEqual(status, 200, answer)
        self.assertEqual(text_of(answer), self.host.alone(prompt))
        # It is back: prompts are handed over again.
        self.host.start_daemon()
        before = prefill.metric("kvtier_engine_tokens_for_others_total")

        def handed_over():
            status, answer = proxy.complete(text(1000 + int(time.monotonic() * 1000), 60), tokens=2)
            self.assertEqual(status, 200, answer)
            return prefill.metric("kvtier_engine_tokens_for_others_total") > before
        until(handed_over, "a prompt is stored again")

    def test_an_answering_engine_killed_before_and_in_its_answer(self):
        prefill = self.host.engine("prefill")
        first, second = self.host.engine("decode"), self.host.engine("decode")
        proxy = self.host.proxy([prefill], [first, second])
        body = {"model": "docs-4m", "prompt": text(2, 60), "max_tokens": 3000, "temperature": 0, "ignore_eos": True}
        events = []
        for event in proxy.events("/v1/completions", body):
            events.append(event)
            if len(events) == 3:
                busy = max((first, second), key=lambda one: one.metric("vllm:num_requests_running"))
                busy.signal(signal.SIGKILL)
        self.assertIn("is gone", events[-1]["error"]["message"])
        # The other one answers what comes now.
        other = second if busy is first else first
        for _ in range(2):
            status, answer = proxy.complete(text(2, 60))
            self.assertEqual(status, 200, answer)
        other.signal(signal.SIGKILL)
        other.process.wait(timeout=60)
        status, answer = proxy.complete(text(2, 60))
        self.assertEqual(status, 502)
        self.assertIn(other.url, answer["error"]["message"])

    def test_without_an_engine_for_prompts_and_for_short_ones_the_other_computes_alone(self):
        prefill, decode = self.host.engine("prefill"), self.host.engine("decode")
        proxy = self.host.proxy([prefill], [decode])
        status, answer = proxy.complete("Short words.")
        self.assertEqual((status, text_of(answer)), (200, self.host.alone("Short words.")))
        self.assertEqual(prefill.metric("kvtier_engine_requests_submitted_total"), 0)
        prefill.end()
        status, answer = proxy.complete(text(3, 60))
        self.assertEqual((status, text_of(answer)), (200, self.host.alone(text(3, 60))))
        counts = proxy.request("/status")[1]["requests"]
        self.assertEqual((counts["alone"], counts["prefill_failed"]), (1, 1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("kvtierd", "engine", "model", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    ARGUMENTS, rest = parser.parse_known_args()
    ARGUMENTS.work.mkdir(parents=True, exist_ok=True)
    faulthandler.dump_traceback_later(500, exit=True)  # so that a test that hangs says where
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
