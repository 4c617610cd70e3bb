#!/usr/bin/env python3
"""What users say of the connector, what a request's KV depends on, which weights these are, what is ordered when."""

import os
import pathlib
import struct
import tempfile
import types
import unittest

from parts import part

options, covers, planner, transfers, orders, handoff = (
    part(name) for name in ("options", "covers", "planner", "transfers", "orders", "handoff")
)
weights = part("weights", "engines")
BLOCK = 4


class OptionsTest(unittest.TestCase):
    def refused(self, given):
        with self.assertRaises(options.Refusal) as caught:
            options.Options.of(given)
        return str(caught.exception)

    def test_what_is_not_said_has_defaults_and_others_keys_are_not_ours(self):
        self.assertEqual(options.Options.of({"lmcache.socket": 3}), options.Options())

    def test_a_key_that_is_none_is_named_with_those_that_are(self):
        self.assertIn(
            "kvtier.sockett is no option; there are kvtier.socket, ",
            self.refused({"kvtier.sockett": "/x"}),
        )

    def test_a_value_of_another_type_is_refused(self):
        for key, value in (
            ("socket", 3),
            ("prefetch", 1),
            ("least_blocks", True),
            ("least_blocks", 1.5),
            ("load_timeout_s", "3"),
        ):
            self.assertIn(f"kvtier.{key} is {value!r}; it must be of type", self.refused({f"kvtier.{key}": value}))

    def test_a_value_out_of_its_range_is_refused(self):
        for key, value in (
            ("load_timeout_s", 0),
            ("load_timeout_s", float("nan")),
            ("slot_wait_s", -1),
            ("least_blocks", 0),
        ):
            self.assertIn(f"kvtier.{key} is ", self.refused({f"kvtier.{key}": value}))
        self.assertIn("kvtier.storage is 'fp4'; it must be one of auto, raw,", self.refused({"kvtier.storage": "fp4"}))

    def test_auto_is_raw_and_whole_numbers_are_seconds(self):
        self.assertEqual(options.Options.of({"kvtier.storage": "auto"}).storage, "raw")
        self.assertEqual(options.Options.of({"kvtier.load_timeout_s": 5}).load_timeout_s, 5.0)

    def test_a_tenants_salt_is_not_shown(self):
        self.assertNotIn("salt", repr(options.Options.of({"kvtier.tenant": "salt"})))

    def test_vllms_default_failure_policy_is_refused_with_what_to_write(self):
        with self.assertRaises(options.Refusal) as caught:
            options.check_failure_policy(types.SimpleNamespace(kv_load_failure_policy="fail"))
        self.assertIn('Add "kv_load_failure_policy": "recompute" to --kv-transfer-config', str(caught.exception))
        options.check_failure_policy(types.SimpleNamespace(kv_load_failure_policy="recompute"))


class Folder(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.write("model.safetensors", b"weights")
        self.write("config.json", b"{}")

    def write(self, name, content):
        (self.folder / name).write_bytes(content)


class WeightsTest(Folder):
    def model(self, **more):
        return types.SimpleNamespace(
            **{"model": str(self.folder), "hf_config": types.SimpleNamespace(), "revision": None, **more}
        )

    def test_other_weights_in_place_of_the_same_size_are_others(self):
        before = weights.folder_digest(str(self.folder))
        self.assertEqual(before, weights.folder_digest(str(self.folder)))
        self.write("model.safetensors", b"Weights")
        os.utime(self.folder / "model.safetensors", ns=(1, 1))
        self.assertNotEqual(before, weights.folder_digest(str(self.folder)))

    def test_names_count_and_what_is_no_weight_does_not(self):
        before = weights.folder_digest(str(self.folder))
        self.write("README.md", b"more")
        self.assertEqual(before, weights.folder_digest(str(self.folder)))
        (self.folder / "model.safetensors").rename(self.folder / "other.safetensors")
        self.assertNotEqual(before, weights.folder_digest(str(self.folder)))

    def test_a_commit_is_a_revision_a_folder_its_digest_and_a_name_what_was_asked_for(self):
        self.assertEqual(
            weights.revision_of(self.model(hf_config=types.SimpleNamespace(_commit_hash="c0ffee"))), "c0ffee"
        )
        self.assertEqual(weights.revision_of(self.model()), weights.folder_digest(str(self.folder)))
        self.assertEqual(weights.revision_of(self.model(model="org/name", revision="main")), "main")
        snapshot = self.folder / "snapshots" / ("a" * 40)
        snapshot.mkdir(parents=True)
        self.assertEqual(weights.revision_of(self.model(model=str(snapshot))), "a" * 40)

    def test_one_files_weights_are_their_digest(self):
        alone = str(self.folder / "model.safetensors")
        before = weights.revision_of(self.model(model=alone))
        self.write("model.safetensors", b"other weights")
        self.assertNotEqual(before, weights.revision_of(self.model(model=alone)))


class CoversTest(Folder):
    def covers(self, **fields):
        return covers.covers_of(types.SimpleNamespace(**fields), 1000)

    def image(self, identifier, offset=2, length=5):
        return types.SimpleNamespace(
            identifier=identifier, modality="image", mm_position=types.SimpleNamespace(offset=offset, length=length)
        )

    def adapter(self, name="a", path=""):
        return types.SimpleNamespace(lora_name=name, lora_path=path)

    def test_a_plain_request_is_its_tokens(self):
        self.assertEqual(self.covers(lora_request=None, cache_salt=None, mm_features=[]), [])

    def test_an_adapter_and_a_salt_cover_all_and_an_image_its_tokens(self):
        found = self.covers(lora_request=self.adapter(), cache_salt="salt", mm_features=[self.image("cat")])
        self.assertEqual([(first, end) for first, end, _ in found], [(0, 1000), (0, 1000), (2, 7)])

    def test_what_differs_has_other_bytes(self):
        found = [
            self.covers(cache_salt="x"),
            self.covers(cache_salt="y"),
            self.covers(lora_request=self.adapter("x")),
            self.covers(lora_request=self.adapter("y")),
            self.covers(mm_features=[self.image("x")]),
            self.covers(mm_features=[self.image("y")]),
            self.covers(mm_features=[self.image("x", offset=3)]),
            self.covers(lora_request=self.adapter("ab", "c")),
            self.covers(lora_request=self.adapter("a", "bc")),
        ]
        extras = [extra for request in found for _, _, extra in request]
        self.assertEqual(len(set(extras)), len(extras))

    def test_an_adapter_that_is_trained_on_in_place_is_another(self):
        request = dict(lora_request=self.adapter(path=str(self.folder)))
        before = self.covers(**request)
        self.assertEqual(before, self.covers(**request))
        self.write("model.safetensors", b"trained on")
        self.assertNotEqual(before, self.covers(**request))

    def test_embeddings_and_prompts_that_go_on_streaming_are_not_cached(self):
        plain = dict(prompt_token_ids=[1], prompt_embeds=None, resumable=False)
        for other, cacheable in (
            ({}, True),
            ({"prompt_embeds": [0.5]}, False),
            ({"prompt_token_ids": None}, False),
            ({"resumable": True}, False),
        ):
            self.assertEqual(covers.is_cacheable(types.SimpleNamespace(**{**plain, **other})), cacheable)


class Tokens:
    """A prefix that is its tokens."""

    def __init__(self):
        self.list = []

    tokens = property(lambda self: len(self.list))
    blocks = property(lambda self: len(self.list) // BLOCK)
    blocks_matchable = property(lambda self: (len(self.list) - 1) // BLOCK)

    def append(self, tokens):
        self.list.extend(tokens)


class PlannerTest(unittest.TestCase):
    """Of a request of 10 tokens, two blocks and a half, that are all cached."""

    def setUp(self):
        self.now, self.prefetched = 0.0, []
        self.planner = planner.Planner(
            BLOCK,
            lambda covers: Tokens(),
            lambda prefix: prefix.blocks,
            clock=lambda: self.now,
            prefetch=self.prefetched.append,
            late_after_s=3.0,
            pause_s=30.0,
        )
        self.request = self.new("r")

    def new(self, name, tokens=10):
        return types.SimpleNamespace(request_id=name, all_token_ids=list(range(tokens)))

    def loaded(self, request):
        """Blocks 0 and 1 to pages 5 and 6."""
        self.assertEqual(self.planner.loadable_tokens(request, 0), 8)
        self.planner.admitted(request, [5, 6], 8)
        return self.planner.orders([])

    def test_the_last_token_is_computed(self):
        self.assertEqual(self.planner.loadable_tokens(self.new("exact", 8), 0), 4)
        self.assertEqual(self.planner.loadable_tokens(self.new("short", 4), 0), 0)

    def test_what_is_computed_is_not_loaded(self):
        self.assertEqual(self.planner.loadable_tokens(self.request, 4), 4)
        self.planner.admitted(self.request, [9, 6], 4)
        self.assertEqual(self.planner.orders([]).loads, [orders.Transfer("r", 1, [6])])

    def test_a_load_tells_its_tokens_and_covers_once(self):
        step = self.loaded(self.request)
        self.assertEqual(step.growth["r"].tokens, struct.pack("9I", *range(9)))
        self.assertEqual(step.fresh, [5, 6])
        step = self.planner.orders([planner.Scheduled("r", [5, 6, 7], True, 8, 10)])
        self.assertEqual((step.growth, step.stores, step.fresh), ({}, [], [7]))

    def test_blocks_whose_load_failed_are_computed_offered_again_and_never_loaded_again(self):
        self.loaded(self.request)
        self.planner.failed_pages({6})
        self.planner.landed(["r"])
        self.assertEqual(self.planner.loadable_tokens(self.request, 0), 0)
        step = self.planner.orders([planner.Scheduled("r", [5, 6, 7], True, 4, 10)])
        self.assertEqual(step.stores, [orders.Transfer("r", 0, [5, 6])])
        self.assertTrue(self.planner.ended(self.request))

    def test_a_load_that_brought_nothing_in_time_stops_lookups_for_a_while(self):
        self.loaded(self.request)
        self.now = 3.5
        self.planner.failed_pages({5, 6})
        self.assertEqual(self.planner.loadable_tokens(self.new("next"), 0), 0)
        self.now = 34.0
        self.assertEqual(self.planner.loadable_tokens(self.new("later"), 0), 8)

    def test_a_bad_block_stops_nobody_elses_lookups(self):
        self.loaded(self.request)
        self.planner.failed_pages({5, 6})
        self.assertEqual(self.planner.loadable_tokens(self.new("next"), 0), 8)

    def test_who_ends_while_it_is_loaded_for_is_reported_by_its_load_alone(self):
        self.loaded(self.request)
        self.assertFalse(self.planner.ended(self.request))
        self.assertEqual(self.planner.orders([]).silent, {"r"})

    def test_a_request_that_arrives_has_its_blocks_brought_up(self):
        self.planner.arrived(self.request)
        self.assertEqual([prefix.blocks_matchable for prefix in self.prefetched], [2])


class HandoffsTest(unittest.TestCase):
    """Of a prompt of 10 tokens, two blocks and a half."""

    def setUp(self):
        self.now, self.there, self.looks, self.open = 100.0, 0, 0, True
        self.handoffs = self.of("kv_both")

    def of(self, role):
        return handoff.Handoffs(role, "n", BLOCK, lambda: self.now, 30.0, 3.0, lambda: self.open)

    def request(self, **params):
        return types.SimpleNamespace(request_id="r", num_prompt_tokens=10, kv_transfer_params=params or None)

    def look(self):
        self.looks += 1
        return self.there

    def held(self, request, after=0.0, handoffs=None):
        self.now += after
        return (handoffs or self.handoffs).holds_back(request, self.look)

    def test_a_plain_request_is_never_held_back(self):
        for request in (self.request(), self.request(do_remote_decode=True), self.request(do_remote_prefill=False)):
            self.assertFalse(self.held(request))
        self.assertEqual(self.looks, 0)

    def test_a_request_waits_for_all_blocks_but_the_last_tokens(self):
        request = self.request(do_remote_prefill=True, kvtier_namespace="n")
        self.assertTrue(self.held(request))
        self.there = 4
        self.assertTrue(self.held(request, after=29))
        self.assertTrue(self.held(request, after=29))  # a block has come since
        self.there = 8
        self.assertFalse(self.held(request, after=0.1))
        # Whatever becomes of its load.
        self.there = 0
        self.assertFalse(self.held(request, after=0.1))

    def test_it_waits_for_no_more_than_was_stored(self):
        self.there = 4
        self.assertFalse(self.held(self.request(do_remote_prefill=True, kvtier_tokens=4)))

    def test_what_does_not_come_is_computed(self):
        request = self.request(do_remote_prefill=True)
        self.assertTrue(self.held(request))
        self.assertTrue(self.held(request, after=29.9))
        self.assertFalse(self.held(request, after=0.2))
        self.assertEqual(self.handoffs.given_up, 1)

    def test_without_a_cache_it_waits_no_longer_than_a_load(self):
        request = self.request(do_remote_prefill=True)
        self.open = False
        self.assertTrue(self.held(request))
        self.assertTrue(self.held(request, after=2.9))
        self.assertFalse(self.held(request, after=0.2))

    def test_it_is_not_looked_up_in_every_step(self):
        request = self.request(do_remote_prefill=True)
        for _ in range(10):
            self.assertTrue(self.held(request, after=0.0006))
        self.assertEqual(self.looks, 2)

    def test_another_models_prompt_is_computed_again_and_said_once(self):
        request = self.request(do_remote_prefill=True, kvtier_namespace="m")
        with self.assertLogs("vllm.kvtier", "WARNING") as said:
            self.assertFalse(self.held(request))
            self.assertFalse(self.held(request))
        self.assertEqual(len(said.output), 1)
        self.assertIn("namespace m, this engine's is n", said.output[0])

    def test_an_answer_says_what_another_engine_can_take(self):
        stored = {"do_remote_prefill": True, "do_remote_decode": False, "kvtier_namespace": "n", "kvtier_tokens": 8}
        self.assertIsNone(self.handoffs.ended(self.request()))
        self.assertEqual(self.handoffs.ended(self.request(do_remote_decode=True)), stored)
        self.assertEqual(self.of("kv_producer").ended(self.request()), stored)

    def test_a_producer_waits_for_nobody(self):
        self.assertFalse(self.held(self.request(do_remote_prefill=True), handoffs=self.of("kv_producer")))


class Standing:
    """A load, or a store, that ends when it is told to."""

    def __init__(self):
        self.over = self.waited = False

    def ended(self):
        return self.over

    def wait(self):
        self.over = self.waited = True

    def finish(self):
        return 1, 1

    def outcome(self):
        return 1, 0


class TransfersTest(unittest.TestCase):
    def setUp(self):
        self.copy = Standing()
        backend = types.SimpleNamespace(
            make_prefix=self.make_prefix, load=lambda *_: self.copy, store=lambda *_: self.copy
        )
        self.transfers = transfers.Transfers(backend, lambda: 0.0, lambda what, fault: None)
        self.transfer = orders.Transfer("r", 0, [5, 6])
        self.growth = {"r": orders.Growth(0, struct.pack("8I", *range(8)), [(0, 2, b"x")], 77)}
        self.made = []

    def make_prefix(self, covers, answer):
        self.made.append((covers, answer))
        return Tokens()

    def test_what_covers_a_prefix_and_how_long_its_answer_becomes_is_told_with_its_first_tokens(self):
        self.transfers.learn(orders.Orders(growth=self.growth))
        self.transfers.learn(orders.Orders(growth={"r": orders.Growth(8, struct.pack("I", 8))}))
        self.assertEqual(self.made, [([(0, 2, b"x")], 77)])

    def test_a_load_that_came_in_part_is_received_with_the_pages_that_it_left(self):
        self.transfers.learn(orders.Orders(growth=self.growth))
        self.transfers.begin_loads([self.transfer])
        self.assertEqual(self.transfers.results([]), (set(), set()))
        self.copy.over = True
        self.assertEqual(self.transfers.results([]), (set(), {"r"}))
        self.assertEqual(self.transfers.take_failed_pages(), {6})
        self.assertEqual(
            (
                self.transfers.counts.blocks_loaded,
                self.transfers.counts.blocks_from_disk,
                self.transfers.counts.blocks_failed,
            ),
            (1, 1, 1),
        )

    def test_a_load_of_whose_tokens_nothing_is_known_fails_as_a_whole(self):
        self.transfers.begin_loads([self.transfer])
        self.assertEqual(self.transfers.results([]), (set(), {"r"}))
        self.assertEqual(self.transfers.take_failed_pages(), {5, 6})

    def test_a_request_is_reported_once_and_only_when_nothing_reads_its_pages(self):
        self.transfers.learn(orders.Orders(growth=self.growth, stores=[self.transfer]))
        self.transfers.begin_stores([self.transfer])
        self.assertEqual(self.transfers.results(["r"]), (set(), set()))
        self.copy.over = True
        self.assertEqual(self.transfers.results([]), ({"r"}, set()))
        self.assertEqual(self.transfers.results(["r"]), (set(), set()))

    def test_pages_that_are_written_to_next_are_waited_for_and_no_others(self):
        self.transfers.learn(orders.Orders(growth=self.growth, stores=[self.transfer]))
        self.transfers.begin_stores([self.transfer])
        self.transfers.spare([7])
        self.assertFalse(self.copy.waited)
        self.transfers.spare([6])
        self.assertTrue(self.copy.waited)

    def test_tokens_that_do_not_follow_are_a_fault_and_the_request_is_not_cached_on(self):
        self.growth["r"].known = 4
        self.transfers.learn(orders.Orders(growth=self.growth))
        self.assertEqual(self.transfers.counts.faults, 1)
        self.transfers.begin_stores([self.transfer])
        self.assertEqual(self.transfers.counts.stores, 0)


if __name__ == "__main__":
    unittest.main()
