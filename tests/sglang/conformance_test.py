#!/usr/bin/env python3
"""The backend in SGLang's own factory and cache controller, over SGLang's own host pools, with a real kvtierd; no GPU.

  pip install . && pip install --no-deps sglang     # and what `import sglang.srt.managers.cache_controller` asks for
  conformance_test.py --daemon build/test/bin/kvtierd --ctl build/test/bin/kvtierctl --scratch build

Skipped (77) where SGLang's sources cannot be imported. The first run compiles SGLang's page hash.
"""

import inspect
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import torch
    from engine_driver import PAGE, Engine, PoolName, PoolTransfer, mamba_pool, mha_pool, mla_pool
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageExtraInfo, PoolHitPolicy
except ImportError as missing:
    print(f"skipped: SGLang is not there: {missing}")
    sys.exit(77)

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))
import pages as daemons  # noqa: E402
from kvtier.engines.weights import folder_digest  # noqa: E402
from kvtier.sglang import KvtierStorage  # noqa: E402

MODEL = HERE.parents[1] / "engine_adapter" / "models" / "docs-4m"
PUBLISHED = """
import sys
from sglang.srt import runtime_context
from sglang.srt.server_args import ServerArgs
from kvtier.sglang import engine, identity, options
given = ServerArgs(model_path=sys.argv[1], dtype=sys.argv[2], device="cpu", skip_tokenizer_init=True)
given.resolve_once()
runtime_context.publish(given, role="scheduler")
running = engine.running_engine()
print(identity.model_of(running, None, options.Options()), identity.computed_with(running))
"""
WAIT = 60.0
MHA = ("layer_first", "page_first", "page_first_direct", "page_head")
MLA = ("layer_first", "page_first", "page_first_direct")
LAYOUTS = [(mha_pool, layout) for layout in MHA] + [(mla_pool, layout) for layout in MLA]


class EnginesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        given = daemons.arguments()
        cls.daemon = daemons.ServedDaemon(given.daemon, given.scratch, device="0", host="64MiB")
        cls.addClassCleanup(cls.daemon.close)

    def engine(self, pool, beside=None, revision="", v1=1, timeout=WAIT, slot_wait=WAIT, more=None, **ranks):
        extra = {
            "kvtier.socket": str(self.daemon.socket),
            "kvtier.revision": revision or self.id(),
            "kvtier.load_timeout_s": timeout,
            "kvtier.slot_wait_s": slot_wait,
            "kvtier.connect_timeout_s": WAIT,
            **({"interface_v1": v1} if v1 else {}),
            **(more or {}),
        }
        made = Engine(extra, pool, beside, **ranks)
        self.addCleanup(made.close)
        return made

    def stored(self, engine, tokens, seed=1, prefix_keys=None, last_hash=None, **names):
        """They are filled, backed up, and found when this returns: hashes, and what the pages hold."""
        indices = engine.pool.alloc(len(tokens))
        engine.fill(indices, seed)
        hashes = engine.hashes(tokens, last_hash, **names)
        self.assertEqual(engine.back_up(indices, tokens, hashes, prefix_keys), len(tokens))
        self.flush(engine)
        return hashes, engine.pages(indices)

    def flush(self, engine):
        engine.storage._link.client.flush(WAIT)

    def same(self, one, other):
        self.assertEqual(len(one), len(other))
        for mine, theirs in zip(one, other):
            self.assertTrue(torch.equal(mine, theirs))


class InterfaceTest(unittest.TestCase):
    def test_every_method_takes_what_sglangs_takes(self):
        self.assertTrue(issubclass(KvtierStorage, HiCacheStorage))
        self.assertFalse(inspect.isabstract(KvtierStorage))
        names = [name for name, _ in inspect.getmembers(HiCacheStorage, inspect.isfunction) if not name.startswith("__")]
        self.assertGreater(len(names), 15)
        for name in names:
            self.assertIn(name, vars(KvtierStorage), f"{name} is not the backend's own")
            theirs, ours = (list(inspect.signature(getattr(of, name)).parameters) for of in (HiCacheStorage, KvtierStorage))
            self.assertEqual(ours, theirs, name)


class ControllerTest(EnginesTest):
    def test_what_one_engine_backs_up_another_prefetches_bit_for_bit(self):
        for make, layout in LAYOUTS:
            for v1 in (1, 0):
                with self.subTest(make.__name__, layout=layout, v1=v1):
                    revision = f"{make.__name__} {layout} {v1}"
                    tokens = list(range(7 * PAGE))
                    _, contents = self.stored(self.engine(make(layout, 32), revision=revision, v1=v1), tokens)
                    other = self.engine(make(layout, 32), revision=revision, v1=v1)
                    other.pool.alloc(3 * PAGE)  # so that pages have other numbers
                    found, came, indices = other.prefetch([*tokens, *range(900, 912)])
                    self.assertEqual((found, came), (len(tokens), len(tokens)))
                    self.same(other.pages(indices), contents)

    def test_a_prompt_of_many_batches(self):
        tokens = list(range(300 * PAGE))
        _, contents = self.stored(self.engine(mha_pool("page_first", 320)), tokens)
        other = self.engine(mha_pool("page_first", 320))
        found, came, indices = other.prefetch(tokens)
        self.assertEqual((found, came), (len(tokens), len(tokens)))
        self.same(other.pages(indices), contents)

    def test_the_rest_of_a_prompt_is_found_with_all_some_and_none_of_the_hashes_before_it(self):
        # SGLang's scheduler says for a prefetch the hashes before the last node that it has, and not that node's own.
        tokens = list(range(8 * PAGE))
        engine = self.engine(mha_pool("page_first", 64))
        hashes, contents = self.stored(engine, tokens[: 4 * PAGE], prefix_keys=[])
        _, more = self.stored(engine, tokens[4 * PAGE :], 2, prefix_keys=hashes, last_hash=hashes[-1])
        for before in (hashes, hashes[:2], [], None):
            found, came, indices = engine.prefetch(tokens[4 * PAGE :], hashes[-1], before)
            self.assertEqual((found, came), (4 * PAGE, 4 * PAGE))
            self.same(engine.pages(indices), more)
        found, came, indices = engine.prefetch(tokens)
        self.same(engine.pages(indices), contents + more)

    def test_a_salt_and_an_adapter_keep_prompts_apart(self):
        engine = self.engine(mha_pool("page_first", 64))
        tokens = list(range(2 * PAGE))
        found = {}
        names = ({}, {"extra_key": "adapter"}, {"cache_salt": "adapter"}, {"extra_key": "a", "cache_salt": "dapter"})
        for seed, name in enumerate(names):
            self.assertEqual(engine.prefetch(tokens, **name)[0], 0)
            found[seed] = self.stored(engine, tokens, seed, **name)[1]
        for seed, name in enumerate(names):
            self.same(engine.pages(engine.prefetch(tokens, **name)[2]), found[seed])

    def test_a_missing_page_ends_what_is_found(self):
        engine = self.engine(mha_pool("page_first", 64))
        tokens = list(range(6 * PAGE))
        hashes = engine.hashes(tokens)
        indices = engine.pool.alloc(len(tokens))
        engine.fill(indices, 1)
        kept = [0, 1, 2, 4, 5]
        engine.storage.batch_set_v1([hashes[i] for i in kept], torch.cat([indices[i * PAGE : (i + 1) * PAGE] for i in kept]))
        self.flush(engine)
        self.assertEqual(engine.prefetch(tokens)[:2], (3 * PAGE, 3 * PAGE))
        self.assertEqual(engine.storage.batch_exists(hashes[4:]), 2)

    def test_ranks_have_pages_of_their_own(self):
        tokens = list(range(3 * PAGE))
        ranks = [self.engine(mha_pool("page_first", 32), tp_rank=rank, tp_size=2) for rank in range(2)]
        _, first = self.stored(ranks[0], tokens, 1)
        self.assertEqual(ranks[1].prefetch(tokens)[0], 0)
        _, second = self.stored(ranks[1], tokens, 2)
        for rank, contents in zip(ranks, (first, second)):
            self.same(rank.pages(rank.prefetch(tokens)[2]), contents)
        self.assertEqual(self.engine(mha_pool("page_first", 32)).prefetch(tokens)[0], 0)

    def test_with_mla_rank_0_writes_and_all_read(self):
        tokens = list(range(3 * PAGE))
        ranks = [self.engine(mla_pool("page_first", 32), tp_rank=rank, tp_size=2) for rank in range(2)]
        indices = ranks[1].pool.alloc(len(tokens))
        self.assertEqual(ranks[1].back_up(indices, tokens, ranks[1].hashes(tokens)), 0)
        self.assertEqual(ranks[1].storage.counts.stores, 0)
        _, contents = self.stored(ranks[0], tokens)
        self.same(ranks[1].pages(ranks[1].prefetch(tokens)[2]), contents)

    def test_ranks_in_processes_of_their_own_use_what_all_of_them_have(self):
        # Of the six pages rank 1 has lost two; with MLA both read what rank 0 wrote.
        for kind, expected in (("mha", [["4", "4", "True", "1"]] * 2), ("mla", [["6", "6", "True", s] for s in "10"])):
            with tempfile.TemporaryDirectory() as scratch:
                command = [sys.executable, str(HERE / "one_rank.py")]
                ranks = [
                    subprocess.Popen([*command, str(rank), self.daemon.socket, f"{scratch}/rendezvous", kind],
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                    for rank in range(2)
                ]
                said = [rank.communicate(timeout=4 * WAIT)[0].split()[-4:] for rank in ranks]
            self.assertEqual(said, expected, kind)

    def test_engines_whose_bytes_differ_share_nothing(self):
        tokens = list(range(3 * PAGE))
        self.stored(self.engine(mha_pool("page_first", 32), revision="differ"), tokens)
        for make, layout, dtype, more in (
            (mha_pool, "page_first_direct", torch.bfloat16, {}),
            (mha_pool, "page_first", torch.float16, {}),
            (mla_pool, "page_first", torch.bfloat16, {}),
            (mha_pool, "page_first", torch.bfloat16, {"kvtier.tenant": "another"}),
            (mha_pool, "page_first", torch.bfloat16, {"kvtier.revision": "another"}),
        ):
            other = self.engine(make(layout, 32, dtype), revision="differ", more=more)
            self.assertEqual(other.prefetch(tokens)[0], 0)

    def test_what_sglang_is_told(self):
        engine = self.engine(mha_pool("page_first", 64), metrics=True)
        tokens = list(range(5 * PAGE))
        self.stored(engine, tokens)
        engine.prefetch(tokens)
        said = engine.storage.get_stats()
        self.assertEqual((said.prefetch_pgs, said.backup_pgs), ([5], [5]))
        self.assertGreater(min(said.prefetch_bandwidth + said.backup_bandwidth), 0)
        said = engine.storage.get_stats()
        self.assertEqual((said.prefetch_pgs, said.backup_pgs), ([], []))
        from prometheus_client import REGISTRY
        labels = dict(tp_rank="0", dp_rank="0", pp_rank="0", attn_cp_rank="0")
        self.assertEqual(REGISTRY.get_sample_value("sglang:kvtier_pages_loaded_total", labels), 5)
        self.assertEqual(REGISTRY.get_sample_value("sglang:kvtier_pages_stored_total", labels), 5)
        # A backend that is attached again counts on.
        engine.controller.detach_storage_backend()
        self.assertEqual(engine.storage.exists("00" * 32), False)
        self.engine(mha_pool("page_first", 64), metrics=True).storage.get_stats()

    def test_injected_failures_cost_pages_and_no_answer(self):
        from sglang.srt.environ import envs
        with envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE.override(0.3):
            engine = self.engine(mha_pool("page_first", 256))
        known = {}
        came = 0
        for turn in range(60):
            name = turn % 12
            tokens = [1000 * name + i for i in range(3 * PAGE)]
            if turn < 12:
                indices = engine.pool.alloc(len(tokens))
                engine.fill(indices, name)
                engine.back_up(indices, tokens, engine.hashes(tokens))
                known[name] = engine.pages(indices)
            found, loaded, indices = engine.prefetch(tokens)
            self.same(engine.pages(indices[:loaded]), known[name][: loaded // PAGE])
            came += loaded
            engine.pool.free(indices)
        self.assertGreater(came, 0)


class SidecarsTest(EnginesTest):
    """Pools beside KV, through the second version of the interface."""

    def both(self, **more):
        beside = {PoolName.MAMBA: mamba_pool("page_first", 16)}
        engine = self.engine(mha_pool("page_first", 64), beside, **more)
        return engine, beside[PoolName.MAMBA]

    def state(self, engine, pool, keys, seed):
        """A state in the pool, as a transfer of it."""
        index = pool.alloc(1)
        flat = pool.get_dummy_flat_data_page()
        content = torch.randint(0, 256, (flat.numel() * flat.element_size(),), dtype=torch.uint8,
                                generator=torch.Generator().manual_seed(seed))
        pool.set_from_flat_data_page(int(index[0]), content.view(flat.dtype))
        return PoolTransfer(PoolName.MAMBA, host_indices=index, keys=keys, hit_policy=PoolHitPolicy.TRAILING_PAGES)

    def test_a_state_is_restored_where_it_was_stored_and_nowhere_else(self):
        tokens = list(range(6 * PAGE))
        one, states = self.both()
        indices = one.pool.alloc(len(tokens))
        one.fill(indices, 1)
        hashes = one.hashes(tokens)
        transfer = self.state(one, states, [hashes[3]], 5)
        content = states.get_data_page(int(transfer.host_indices[0])).view(torch.uint8).clone()
        self.assertEqual(one.back_up(indices, tokens, hashes, beside=[transfer]), len(tokens))
        self.flush(one)

        other, restored = self.both()
        wanted = PoolTransfer(PoolName.MAMBA, keys=["unknown yet"], hit_policy=PoolHitPolicy.TRAILING_PAGES)
        said = other.storage.batch_exists_v2(hashes, [wanted])
        self.assertEqual((said.kv_hit_pages, said.restorable_prefix_pages), (4, [4]))
        self.assertEqual(said.extra_pool_hit_pages, {PoolName.KV: 6, PoolName.MAMBA: 4})
        wanted.host_indices = restored.alloc(1)
        found, came, at = other.prefetch(tokens, beside=[wanted])
        self.assertEqual((found, came, other.beside_came[PoolName.MAMBA]), (4 * PAGE, 4 * PAGE, 1))
        self.same(other.pages(at), one.pages(indices[: 4 * PAGE]))
        self.same([restored.get_data_page(int(wanted.host_indices[0])).view(torch.uint8)], [content])

    def test_a_pool_of_every_page_bounds_what_is_found(self):
        beside = {PoolName.DRAFT: mha_pool("page_first", 64)}
        engine = self.engine(mha_pool("page_first", 64), beside)
        tokens = list(range(5 * PAGE))
        hashes, _ = self.stored(engine, tokens)
        indices = beside[PoolName.DRAFT].alloc(3 * PAGE)
        transfer = PoolTransfer(PoolName.DRAFT, host_indices=indices, keys=hashes[:3])
        self.assertEqual(engine.storage.batch_set_v2([transfer]), {PoolName.DRAFT: [True] * 3})
        self.flush(engine)
        said = engine.storage.batch_exists_v2(hashes, [PoolTransfer(PoolName.DRAFT)])
        self.assertEqual((said.kv_hit_pages, said.restorable_prefix_pages), (3, [1, 2, 3]))
        self.assertEqual(engine.storage.batch_exists_v2(hashes).kv_hit_pages, 5)
        # What is only reported bounds nothing.
        told = PoolTransfer(PoolName.SWA, hit_policy=PoolHitPolicy.BLOCK_GROUPS)
        self.assertEqual(engine.storage.batch_exists_v2(hashes, [told]).kv_hit_pages, 5)
        # Of a pool that is not there, and with indices that do not fit, nothing comes, and others do.
        transfers = [PoolTransfer(PoolName.SWA, host_indices=indices, keys=hashes[:3]),
                     PoolTransfer(PoolName.DRAFT, host_indices=indices[1:], keys=hashes[:3]), transfer]
        self.assertEqual(engine.storage.batch_get_v2(transfers[:1]), {PoolName.SWA: [False] * 3})
        self.assertEqual(engine.storage.batch_get_v2(transfers[1:2]), {PoolName.DRAFT: [False] * 3})
        self.assertEqual(engine.storage.batch_get_v2([transfers[0], transfer])[PoolName.DRAFT], [True] * 3)
        self.assertEqual(engine.storage.counts.faults, 3)

    def test_a_pool_that_cannot_be_cached_ends_the_start_and_is_named(self):
        beside = {PoolName.DRAFT: mha_pool("page_unified", 64)}
        with self.assertRaises(ValueError) as caught:
            self.engine(mha_pool("page_first", 64), beside)
        self.assertIn("draft: MHATokenToKVPoolHost with layout page_unified does not say", str(caught.exception))


class IdentityTest(unittest.TestCase):
    def test_the_model_is_read_from_what_sglangs_scheduler_publishes(self):
        # Of a process of its own: what is published stays.
        said = [self.said_of(dtype) for dtype in ("bfloat16", "bfloat16", "float16")]
        self.assertEqual(said[0][0], f"docs-4m@{folder_digest(str(MODEL))}")
        self.assertEqual(said[0], said[1])
        self.assertEqual(said[0][0], said[2][0])
        self.assertNotEqual(said[0][1], said[2][1])

    def said_of(self, dtype):
        ended = subprocess.run([sys.executable, "-c", PUBLISHED, str(MODEL), dtype], stdout=subprocess.PIPE, text=True, check=True)
        return ended.stdout.splitlines()[-1].split()


class RefusalTest(EnginesTest):
    def refused(self, pool, **more):
        with self.assertRaises(ValueError) as caught:
            self.engine(pool, **more)
        return str(caught.exception)

    def test_a_mistake_in_the_configuration_is_named(self):
        self.assertIn("kvtier.sockett is no option", self.refused(mha_pool("page_first", 8), more={"kvtier.sockett": "x"}))
        self.assertIn('Add "kvtier.revision"', self.refused(mha_pool("page_first", 8), more={"kvtier.revision": ""}))
        self.assertIn("layout page_unified does not say", self.refused(mha_pool("page_unified", 8)))


class FaultsTest(EnginesTest):
    @classmethod
    def setUpClass(cls):
        pass

    def setUp(self):
        given = daemons.arguments()
        self.daemon = daemons.ServedDaemon(given.daemon, given.scratch, device="0")
        self.addCleanup(self.daemon.close)

    def test_a_controller_whose_daemon_is_killed_goes_on_and_finds_nothing(self):
        engine = self.engine(mha_pool("page_first", 64))
        tokens = list(range(4 * PAGE))
        hashes, _ = self.stored(engine, tokens)
        self.assertEqual(engine.prefetch(tokens)[1], len(tokens))
        self.daemon.process.kill()
        self.daemon.process.wait(WAIT)
        until = time.monotonic() + WAIT
        while engine.storage._link.client.connected:
            self.assertLess(time.monotonic(), until)
        began = time.monotonic()
        self.assertEqual(engine.prefetch(tokens)[:2], (0, 0))
        indices = engine.pool.alloc(len(tokens))
        self.assertEqual(engine.back_up(indices, tokens, hashes), 0)
        self.assertEqual(engine.storage.batch_get_v1(hashes, indices), [False] * 4)
        self.assertLess(time.monotonic() - began, WAIT / 4)

    def test_an_engine_starts_without_a_daemon(self):
        self.daemon.process.kill()
        self.daemon.process.wait(WAIT)
        with self.assertLogs("kvtier.sglang.storage", "INFO") as said:
            engine = self.engine(mha_pool("page_first", 64), more={"kvtier.connect_timeout_s": 0.1})
        self.assertIn("is not there, so that everything is computed until it is", said.output[-1])
        self.assertEqual(engine.prefetch(list(range(4 * PAGE)))[:2], (0, 0))

    def test_no_exception_comes_out_and_each_is_counted(self):
        engine = self.engine(mha_pool("page_first", 64))
        storage, indices = engine.storage, engine.pool.alloc(2 * PAGE)
        keys = engine.hashes(list(range(2 * PAGE)))
        info = HiCacheStorageExtraInfo(prefix_keys=keys)
        with self.assertLogs("kvtier.sglang.storage", "ERROR") as said:
            for result, expected in (
                (storage.batch_exists(["no digest"], info), 0),
                (storage.exists("no digest"), False),
                (storage.batch_get_v1(keys, indices[1:], info), [False, False]),
                (storage.batch_set_v1(keys, None, info), [False, False]),
                (storage.batch_set_v1(["x"], indices[:PAGE], info), [False]),
                (storage.get(keys[0], engine.pool.get_dummy_flat_data_page()), None),
                (storage.set(keys[0], engine.pool.get_dummy_flat_data_page()), False),
                (storage.batch_exists_v2(["no digest"]).kv_hit_pages, 0),
                (storage.batch_get(keys, None), [None, None]),
            ):
                self.assertEqual(result, expected)
        self.assertEqual(storage.counts.faults, 9)
        self.assertEqual(len(said.output), 1)  # within ten seconds
        self.assertIn("which costs a hit or a store and no answer (fault 1)", said.output[0])
        storage.clear()

    def test_pages_as_tensors_of_another_size_are_refused(self):
        engine = self.engine(mha_pool("page_first", 64), v1=0)
        key = engine.hashes(list(range(PAGE)))[0]
        page = engine.pool.get_dummy_flat_data_page()
        self.assertTrue(engine.storage.set(key, page + 3))
        self.flush(engine)
        self.assertTrue(engine.storage.exists(key))
        self.assertIsNone(engine.storage.get(key, page[1:]))
        self.assertIsNone(engine.storage.get(key, page[::2]))
        self.assertFalse(engine.storage.set(key, torch.cat([page, page])))
        self.assertEqual(engine.storage.counts.faults, 3)
        self.assertIs(engine.storage.get(key, page), page)
        self.assertTrue(bool((page == 3).all()))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
