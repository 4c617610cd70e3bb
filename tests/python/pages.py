"""A cache on a daemon of the test's own, and KV in whatever layout a test wants it."""

import argparse
import math
import pathlib
import re
import subprocess
import sys
import unittest

import numpy as np

import kvtier

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "ops"))
from served_daemon import ServedDaemon  # noqa: E402

WAIT = 60.0  # seconds: for what comes at once but on a machine that is busy


def arguments():
    parser = argparse.ArgumentParser()
    for name in ("daemon", "ctl", "scratch"):
        parser.add_argument("--" + name, required=True)
    return parser.parse_known_args()[0]


class CacheTest(unittest.TestCase):
    """`self.daemon` is of the whole class, `self.client` of one test."""

    MORE = ""  # of the daemon's configuration
    ENV = {}

    @classmethod
    def setUpClass(cls):
        given = arguments()
        cls.daemon = ServedDaemon(given.daemon, given.scratch, device="0", host="64MiB", more=cls.MORE, env=cls.ENV)
        cls.addClassCleanup(cls.daemon.close)

    def setUp(self):
        self.client = kvtier.Client(self.daemon.socket, slot_wait=WAIT)
        self.addCleanup(self.client.close)
        self.client.wait_connected(WAIT)

    def open(self, ns):
        cache = self.client.open(ns)
        self.addCleanup(cache.close)
        return cache

    def store(self, cache, prefix, pool, pages, first=0):
        """All of it; its blocks are found when this returns. How many were not there before."""
        blocks = len(pages) // pool.pages_of_block
        for attempt in range(5):
            write = cache.write_back(prefix, first, pool, pages)
            write.wait()
            self.assertIsNone(write.error)
            self.assertEqual((write.accepted + write.cached, write.dropped), (blocks, (0, 0, 0, 0)))
            if attempt == 0:
                new = write.accepted
            self.client.flush(WAIT)
            # In a full tier the slots that the client asks for next may be those of what it has just stored.
            if cache.match(prefix).blocks >= first + blocks:
                return new
        self.fail("what is stored goes at once, time after time")

    def leave_on_disk_alone(self):
        """Blocks that were flushed, and that nobody leases, are gone from memory. What is on its way there is waited for."""
        def gone():
            subprocess.run([arguments().ctl, "--socket", self.daemon.socket, "drop", "--tier", "host"], check=True,
                           stdout=subprocess.DEVNULL)
            return all(tier["blocks"] == 0 for tier in self.daemon.status()["tiers"] if tier["tier"] == "host")
        self.daemon.wait(gone)

    def load(self, cache, prefix, pool, pages):
        """How many blocks came."""
        blocks = len(pages) // pool.pages_of_block
        with cache.lease(prefix, blocks, timeout=WAIT) as lease:
            self.assertEqual(lease.blocks, blocks)
            self.assertEqual(lease.wait(WAIT), blocks)
            load = lease.load(pool, pages)
            self.assertEqual(load.faults, [])
            return load.finish()


def main():
    unittest.main(argv=sys.argv[:1], verbosity=1)


def namespace(**fields):
    """Small; of 2 layers with 2 heads of 8 numbers, blocks of 4 tokens."""
    shape = dict(model="test", layers=2, kv_heads=2, head_dim_k=8, head_dim_v=8, block_tokens=4, format="f32")
    return kvtier.Namespace(**{**shape, **fields})


class Layout:
    """Arrays of one shape for each layer, or one for all, filled from and read back to [kv, block, token, head, dim].

    `dims` is as Pool.from_tensors() has it; `order` lists the same axes by where they lie in memory, the outermost
    first, where that differs. `page_tokens` pages of a block follow one another.
    """

    def __init__(self, ns, dims, order=None, *, pages, page_tokens=None, dtype=np.float32, apart=False, padding=0):
        self.ns, self.dims, self.apart = ns, dims, apart
        self.page_tokens = page_tokens or ns.block_tokens
        self.pages = pages
        names = re.findall(r"\w+", dims)
        self.names = names
        order = order.split() if order else names
        sizes = dict(layer=ns.layers, kv=2, block=pages, token=self.page_tokens)
        self.arrays = []
        for shape in [ns.layer_shape(0)] if "layer" in names else [ns.layer_shape(i) for i in range(ns.layers)]:
            for dim in (shape.head_dim_k, shape.head_dim_v) if apart else (shape.head_dim_k,):
                of = {**sizes, "head": shape.kv_heads, "dim": dim}
                memory = np.zeros([of[n] + (padding if n == order[-1] else 0) for n in order], dtype)
                memory = memory[..., :memory.shape[-1] - padding] if padding else memory
                self.arrays.append(memory.transpose([order.index(n) for n in names]))
        fused = [self._fused(array) for array in self.arrays]
        given = dict(page_tokens=page_tokens if re.search(r"\([^)]*token", dims) else None)
        if apart:
            both = [fused[0::2], fused[1::2]]
            k, v = [side[0] for side in both] if "layer" in names else both
            self.pool = kvtier.Pool.from_tensors(ns, dims=dims, k=k, v=v, **given)
        else:
            self.pool = kvtier.Pool.from_tensors(ns, fused[0] if "layer" in names else fused, dims, **given)

    def _fused(self, array):
        """The same memory with the axes that `dims` has in parentheses as one."""
        groups = [re.findall(r"\w+", group) for group in re.findall(r"\([^)]*\)|\w+", self.dims)]
        shape, at = [], 0
        for group in groups:
            shape.append(math.prod(array.shape[at:at + len(group)]))
            at += len(group)
        fused = array.view()
        fused.shape = shape  # raises where it would have to copy
        return fused

    def _page(self, layer, kv, page):
        """A view of one page, [token, head, dim]."""
        per_layer = 2 if self.apart else 1
        array = self.arrays[(0 if "layer" in self.names else layer) * per_layer + (kv if self.apart else 0)]
        at = dict(layer=layer, kv=kv, block=page)
        left = [n for n in self.names if n not in at]
        view = array[tuple(at.get(n, slice(None)) for n in self.names)]
        for missing in [n for n in ("token", "head") if n not in left]:
            view, left = view[np.newaxis], [missing, *left]
        return view.transpose([left.index(n) for n in ("token", "head", "dim")])

    def _each(self, kv_of_layer, numbers):
        for layer, sides in enumerate(kv_of_layer):
            for kv, side in enumerate(sides):  # [block, token, head, dim]
                flat = side.reshape(-1, self.page_tokens, *side.shape[2:])
                for page, part in zip(numbers, flat, strict=True):
                    yield self._page(layer, kv, page), part

    def views(self, numbers):
        """Of all layers and sides, each [token, head, dim]."""
        for layer in range(self.ns.layers):
            for kv in range(2 if self.ns.layer_shape(layer).head_dim_v else 1):
                yield from (self._page(layer, kv, page) for page in numbers)

    def fill(self, kv_of_layer, numbers):
        for page, part in self._each(kv_of_layer, numbers):
            page[...] = part

    def read(self, like, numbers):
        out = [[np.zeros_like(side) for side in sides] for sides in like]
        for page, part in self._each(out, numbers):
            part[...] = page
        return out


def random_kv(ns, blocks, seed=1):
    """For each layer [K, V], or [K], as [block, token, head, dim]: small whole numbers, the same in every type."""
    generator = np.random.default_rng(seed)
    found = []
    for layer in range(ns.layers):
        shape = ns.layer_shape(layer)
        dims = [shape.head_dim_k] + ([shape.head_dim_v] if shape.head_dim_v else [])
        found.append([generator.integers(-100, 100, (blocks, ns.block_tokens, shape.kv_heads, dim)).astype(np.float32) for dim in dims])
    return found
