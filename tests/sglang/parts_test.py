#!/usr/bin/env python3
"""What users say of SGLang's backend, whose KV it is, where pages lie, and what is counted."""

import hashlib
import pathlib
import tempfile
import types
import unittest

import host_pools
import numpy as np
from host_pools import LAYOUTS, HostPool, indices, part

import kvtier

options, identity, pages, stats = (part(name, "sglang") for name in ("options", "identity", "pages", "stats"))
Refusal = pages.Refusal


def config(**more):
    return types.SimpleNamespace(
        **{
            **dict(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1),
            **dict(is_mla_model=False, model_name="org/name"),
            **more,
        }
    )


def engine(**more):
    return types.SimpleNamespace(
        **{**dict(version="1", model="/models/name", weights=None, computed_with={}, unread=""), **more}
    )


class OptionsTest(unittest.TestCase):
    def test_what_is_not_said_has_defaults_and_others_keys_are_not_ours(self):
        given = {"backend_name": "kvtier", "interface_v1": 1, "module_path": "kvtier.sglang"}
        self.assertEqual(options.Options.of(given), options.Options())

    def test_a_wrong_option_is_named(self):
        for key, value, said in (
            ("sockett", "/x", "kvtier.sockett is no option; there are kvtier.socket, "),
            ("socket", 3, "kvtier.socket is 3; it must be of type str"),
            ("load_timeout_s", "3", "kvtier.load_timeout_s is '3'; it must be of type float"),
            ("load_timeout_s", 0, "kvtier.load_timeout_s is 0.0; it must be at least 0.001"),
            ("slot_wait_s", float("nan"), "kvtier.slot_wait_s is nan; it must be at least 0.0"),
            ("connect_timeout_s", True, "kvtier.connect_timeout_s is True; it must be of type float"),
        ):
            with self.assertRaises(Refusal) as caught:
                options.Options.of({f"kvtier.{key}": value})
            self.assertIn(said, str(caught.exception))

    def test_whole_numbers_are_seconds_and_a_salt_is_not_shown(self):
        found = options.Options.of({"kvtier.load_timeout_s": 5, "kvtier.tenant": "secret"})
        self.assertEqual(found.load_timeout_s, 5.0)
        self.assertNotIn("secret", repr(found))


class IdentityTest(unittest.TestCase):
    def namespace(self, **more):
        fields = dict(
            sizes=[64, 64], page_size=4, layout="x", rank=(0, 1), model="m@1", positions="p", options=options.Options()
        )
        return identity.namespace_of(**{**fields, **more})

    def test_engines_that_differ_in_anything_share_nothing(self):
        different = [
            {},
            dict(sizes=[64, 64, 64]),
            dict(sizes=[128]),
            dict(sizes=[64, 32]),
            dict(page_size=8),
            dict(layout="y"),
            dict(rank=(0, 2)),
            dict(rank=(1, 2)),
            dict(rank=(0, 0)),
            dict(model="m@2"),
            dict(positions="q"),
            dict(options=options.Options(tenant="t")),
        ]
        self.assertEqual(len({self.namespace(**more).id for more in different}), len(different))
        self.assertEqual(self.namespace().id, self.namespace(options=options.Options(load_timeout_s=9.0)).id)

    def test_pages_that_no_namespace_takes_are_refused(self):
        with self.assertRaises(Refusal) as caught:
            self.namespace(page_size=2048)
        self.assertIn("block_tokens is 2048", str(caught.exception))

    def test_each_rank_has_its_own_and_with_mla_those_of_one_stage_share(self):
        def ranks(pool="kv", same_kind=True, **more):
            return [
                identity.rank_of(config(tp_rank=tp, tp_size=2, pp_rank=pp, **more), pool, same_kind)
                for pp in range(more.get("pp_size", 1))
                for tp in range(2)
            ]

        self.assertEqual(ranks(), [(0, 2), (1, 2)])
        self.assertEqual(ranks(pp_size=2), [(0, 4), (1, 4), (2, 4), (3, 4)])
        self.assertEqual(ranks(is_mla_model=True), [(0, 0), (0, 0)])
        self.assertEqual(ranks(is_mla_model=True, pp_size=2), [(0, 2), (0, 2), (1, 2), (1, 2)])
        self.assertEqual(ranks(is_mla_model=True, attn_cp_rank=1, attn_cp_size=2), [(1, 2), (1, 2)])
        # State that is spread over ranks is, also where KV is not.
        self.assertEqual(ranks("mamba", False, is_mla_model=True), [(0, 2), (1, 2)])
        self.assertEqual(ranks("indexer", False, is_mla_model=True), [(0, 0), (0, 0)])

    def test_weights_that_cannot_be_read_are_asked_for(self):
        hub = types.SimpleNamespace(hf_config=types.SimpleNamespace(_commit_hash=None), model="org/name", revision=None)
        for of, why in ((engine(unread="ValueError: not set"), "not set"), (engine(weights=hub), "cannot be read")):
            with self.assertRaises(Refusal) as caught:
                identity.model_of(of, config(), options.Options())
            self.assertIn(why, str(caught.exception))
            self.assertIn('Add "kvtier.revision"', str(caught.exception))
            self.assertEqual(identity.model_of(of, config(), options.Options(revision="7")), "name@7")

    def test_a_models_name_is_of_its_path_else_what_it_is_served_as(self):
        known = types.SimpleNamespace(hf_config=types.SimpleNamespace(_commit_hash="c0ffee"), model="x", revision=None)
        self.assertEqual(identity.model_of(engine(weights=known), config(), options.Options()), "name@c0ffee")
        self.assertEqual(identity.model_of(engine(model=""), config(), options.Options(revision="7")), "name@7")

    def test_what_kv_is_computed_with_counts_a_drafts_weights_and_scales_of_a_file_too(self):
        with tempfile.TemporaryDirectory() as scratch:
            draft, scales = pathlib.Path(scratch) / "draft", pathlib.Path(scratch) / "scales.json"
            draft.mkdir()
            seen = {identity.computed_with(engine()), identity.computed_with(engine(computed_with={"dtype": "bf16"}))}
            for weights, factor in ((b"1", b"1"), (b"2", b"1"), (b"2", b"22")):
                (draft / "model.safetensors").write_bytes(weights * (1 + len(seen)))
                scales.write_bytes(factor)
                facts = {"speculative_draft_model_path": str(draft), "quantization_param_path": str(scales)}
                seen.add(identity.computed_with(engine(computed_with=facts)))
        self.assertEqual(len(seen), 5)


class PagesTest(unittest.TestCase):
    def found(self, pool):
        return pages.host_pages(pool, lambda numbers: np.array(list(numbers)))

    def refused(self, pool):
        with self.assertRaises(Refusal) as caught:
            self.found(pool)
        return str(caught.exception)

    def test_a_page_is_as_many_pieces_as_its_layout_has_runs(self):
        runs = {"layer_first": 2 * host_pools.LAYERS, "layer_first of MLA": host_pools.LAYERS}
        for layout in LAYOUTS:
            with self.subTest(layout):
                found = self.found(HostPool(layout))
                self.assertEqual(len(found.pieces), runs.get(layout, 1 if "MLA" in layout else 2))
                self.assertEqual(found.page_bytes, HostPool(layout).page(0).nbytes)
                self.assertEqual((found.count, found.page_size), (6, 4))

    def test_every_element_of_a_page_is_in_one_piece(self):
        for layout in LAYOUTS:
            pool = HostPool(layout)
            found = self.found(pool)
            seen = set()
            for number in range(found.count):
                for piece in found.pieces:
                    run = range(piece.base + number * piece.stride, piece.base + number * piece.stride + piece.size)
                    self.assertTrue(seen.isdisjoint(run))
                    seen.update(run)
            start = pool.array.ctypes.data
            self.assertEqual(seen, set(range(start, start + pool.array.nbytes)), layout)

    def test_a_pool_that_does_not_say_where_its_pages_lie_is_refused(self):
        silent = HostPool("page_first")
        silent.get_page_buffer_meta = lambda _: (_ for _ in ()).throw(ValueError("Unsupported layout"))
        self.assertIn("HostPool with layout page_first does not say where its pages lie", self.refused(silent))
        self.assertIn("Unsupported layout", self.refused(silent))
        empty = HostPool("page_first")
        empty.get_page_buffer_meta = lambda _: None
        self.assertIn("holds no KV", self.refused(empty))

    def test_pages_that_do_not_follow_one_another_are_refused(self):
        pool = HostPool("page_first")
        straight = pool.get_page_buffer_meta

        def crooked(asked):
            pointers, sizes = straight(asked)
            return [p + 2 * (asked.tolist()[0] == 5 * 4) for p in pointers], sizes

        pool.get_page_buffer_meta = crooked
        self.assertIn("page 5 does not lie where pages 0 and 1 say", self.refused(pool))

    def test_pools_whose_pages_move_or_are_spread_are_refused(self):
        for name, value in (("shared_allocation_domain", object()), ("dcp_size", 2)):
            pool = HostPool("page_first")
            setattr(pool, name, value)
            self.assertIn("its pages move, or are spread over ranks", self.refused(pool))
        self.assertIn("has 1 pages", self.refused(HostPool("page_first", pages=1)))

    def test_indices_that_are_no_whole_pages_are_refused(self):
        found = self.found(HostPool("page_first"))
        self.assertEqual(found.numbers(indices([4, 0, 5], 4), 3), [4, 0, 5])
        for wrong, asked in (
            (indices([0, 1], 4), 3),
            (indices([0, 1], 4)[:-1], 2),
            (np.arange(2, 6), 1),
            (np.array([0, 2, 1, 5]), 1),
            (indices([6], 4), 1),
            (np.arange(-4, 0), 1),
            (None, 1),
        ):
            with self.assertRaises(ValueError):
                found.numbers(wrong, asked)

    def test_a_layout_is_told_from_others(self):
        self.assertEqual(len({self.found(HostPool(layout)).layout for layout in LAYOUTS}), len(LAYOUTS))


class DigestTest(unittest.TestCase):
    def test_a_key_is_sha_256_in_hex(self):
        digest_of = part("cache", "sglang").digest_of
        digest = hashlib.sha256(b"page")
        self.assertEqual(digest_of(digest.hexdigest()), digest.digest())
        for wrong in ("", "ab", digest.hexdigest() + "00", "x" * 64):
            with self.assertRaises(ValueError):
                digest_of(wrong)


class StatisticsTest(unittest.TestCase):
    def test_calls_are_told_once_and_sums_stay(self):
        counted = stats.Statistics()
        counted.loaded(4, 1, 2, 4_000_000_000, 2.0)
        counted.loaded(0, 0, 3, 0, 0.1)
        counted.stored(2, 1, 1_000_000_000, 0.5)
        counted.fault()
        self.assertEqual(counted.taken(), ([4], [2.0], [2], [2.0]))
        self.assertEqual(counted.taken(), ([], [], [], []))
        sums = counted.counts()
        self.assertEqual((sums.loads, sums.pages_loaded, sums.pages_from_disk, sums.pages_failed), (2, 4, 1, 5))
        self.assertEqual((sums.stores, sums.pages_stored, sums.pages_dropped, sums.faults), (1, 2, 1, 1))

    def test_what_nobody_takes_is_bounded(self):
        counted = stats.Statistics()
        for _ in range(5000):
            counted.loaded(1, 0, 0, 1, 1.0)
        self.assertEqual(len(counted.taken()[0]), 1000)


if __name__ == "__main__":
    unittest.main(argv=["parts_test"], verbosity=1)
