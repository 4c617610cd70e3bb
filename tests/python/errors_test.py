"""What is refused, by which exception, and in which words."""

import pathlib
import re
import signal
import unittest

import numpy as np

import kvtier
import pages
from pages import WAIT, namespace

RESULT_H = pathlib.Path(__file__).resolve().parents[2] / "core/include/kvtier/result.h"


def arrays(shape=(2, 4, 4, 2, 8), dtype=np.float32, count=2):
    return [np.zeros(shape, dtype) for _ in range(count)]


DIMS = "kv block token head dim"
RAW = dict(format="raw", layers=1, raw_bytes=64)
# What is given; the words.
REFUSED_POOLS = {
    "an axis twice": (dict(tensors=arrays(), dims="kv block block head dim"), "the axis 'block' twice"),
    "no names": (dict(tensors=arrays(), dims="kv, block, token"), "are no names of axes"),
    "an axis of no name": (dict(tensors=arrays(), dims="kv page token head dim"), "no axis 'block'"),
    "an unknown axis": (dict(tensors=arrays((2, 4, 4, 2, 8, 1)), dims=DIMS + " lane"), "an axis 'lane'"),
    "no dim": (dict(tensors=arrays(), dims="kv block token head number"), "'number'"),
    "too few axes": (dict(tensors=arrays((4, 4, 2, 8)), dims=DIMS), "tensor 0 has 4 axes"),
    "too few tensors": (dict(tensors=arrays(count=1), dims=DIMS), "1 tensors were given, and the namespace has 2 layers"),
    "one tensor of two layers": (dict(tensors=arrays()[0], dims=DIMS), "one tensor was given for 2 layers"),
    "a list of all layers": (dict(tensors=arrays(), dims="layer " + DIMS), "the axis 'layer'"),
    "wrong heads": (dict(tensors=[*arrays(count=1), *arrays((2, 4, 4, 3, 8), count=1)], dims=DIMS), "tensor 1: axis 'head' has 3"),
    "wrong dim": (dict(tensors=arrays((2, 4, 4, 2, 9)), dims=DIMS), "tensor 0: axis 'dim' has 9"),
    "wrong fused": (dict(tensors=arrays((2, 4, 4, 15)), dims="kv block token (head dim)"), r"axis '(head dim)' has 15"),
    "heads left out": (dict(tensors=arrays((2, 4, 4, 8)), dims="kv block token dim"), "no axis 'head'"),
    "V left out": (dict(tensors=arrays((4, 4, 2, 8)), dims="block token head dim"), "no axis 'kv'"),
    "k alone": (dict(k=arrays((4, 4, 2, 8)), dims="block token head dim"), "no v was given"),
    "k with kv": (dict(k=arrays(), v=arrays(), dims=DIMS), "K and V were given apart"),
    "fewer pages": (dict(tensors=[*arrays(count=1), *arrays((2, 3, 4, 2, 8), count=1)], dims=DIMS), "tensor 1 has 3 pages"),
    "another type": (dict(tensors=[*arrays(count=1), *arrays(dtype=np.float16, count=1)], dims=DIMS), "tensor 1 has float16"),
    "no type of numbers": (dict(tensors=arrays(dtype=np.int8), dims=DIMS), "tensor 0 is of int8"),
    "pages of three tokens": (dict(tensors=arrays((2, 4, 3, 2, 8)), dims=DIMS), "pages of 3 tokens"),
    "no elements": (dict(tensors=arrays((2, 0, 4, 2, 8)), dims=DIMS), "tensor 0 has no elements"),
    "backwards": (dict(tensors=[a[:, ::-1] for a in arrays()], dims=DIMS), "tensor 0 has a negative stride"),
    "every other number": (dict(tensors=[a[..., ::2] for a in arrays((2, 4, 4, 2, 16))], dims=DIMS), "axis 'dim' has a stride of 8 bytes"),
    "one page for all": (dict(tensors=[np.lib.stride_tricks.as_strided(a, strides=(1024, 0, 64, 32, 4)) for a in arrays()], dims=DIMS),
                         "K of layer 0 has pages that overlap"),
    "layers in one place": (dict(tensors=arrays(count=1) * 2, dims=DIMS), "overlaps"),
    "no array": (dict(tensors=["a", "b"], dims=DIMS), "tensor 0 is of str"),
    "read-only": (dict(tensors=[np.broadcast_to(np.float32(0), (2, 4, 4, 2, 8))] * 2, dims=DIMS), "tensor 0 is read-only"),
    "no page tokens": (dict(tensors=arrays(), dims=DIMS, page_tokens=0), "page_tokens is 0"),
    "both forms": (dict(tensors=arrays(), k=arrays(), dims=DIMS), "give either tensors"),
}
REFUSED_RAW = {
    "too small": (np.zeros((4, 4, 15), np.uint8), "block token byte", "60 bytes a block, raw_bytes is 64"),
    "no rows of one stride": (np.zeros((4, 3, 6, 9), np.uint8)[:, :2, :4, :8], "block a b c", "its axis 'a' goes on after 54 bytes"),
}


class RefusedTest(unittest.TestCase):
    def test_a_pool_that_does_not_fit_is_refused_by_name(self):
        for name, (given, words) in REFUSED_POOLS.items():
            with self.subTest(name):
                with self.assertRaises((kvtier.InvalidError, TypeError)) as caught:
                    kvtier.Pool.from_tensors(namespace(), **given)
                self.assertIn(words, str(caught.exception))

    def test_raw_pages_that_are_no_rows_are_refused_by_name(self):
        for name, (tensor, dims, words) in REFUSED_RAW.items():
            with self.subTest(name):
                with self.assertRaises(kvtier.InvalidError) as caught:
                    kvtier.Pool.from_tensors(namespace(**RAW), [tensor], dims)
                self.assertIn(words, str(caught.exception))

    def test_a_namespace_is_checked_when_it_is_made(self):
        for fields, words in ((dict(layers=0), "layers is 0"), (dict(block_tokens=2000), "block_tokens is 2000"),
                              (dict(format="fp4"), "'fp4' is not a storage format"), (dict(digest_bytes=8), "digest_bytes")):
            with self.assertRaises(kvtier.InvalidError) as caught:
                namespace(**fields)
            self.assertIn(words, str(caught.exception))
        with self.assertRaises(TypeError):
            kvtier.Namespace(model=7, layers=1, kv_heads=1, head_dim_k=1)

    def test_a_prefix_says_what_it_does_not_take(self):
        prefix = kvtier.Prefix(namespace())
        for tokens, error in (([-1], kvtier.InvalidError), ([1 << 32], kvtier.InvalidError), (np.array([-1]), kvtier.InvalidError),
                              ([0.5], TypeError), (np.zeros(3, np.float32), TypeError), (np.zeros((2, 2), int), TypeError), ("1", TypeError)):
            with self.assertRaises(error):
                prefix.append(tokens)
        with self.assertRaises(kvtier.InvalidError):
            prefix.append_digest(b"0123456789abcdef")
        with self.assertRaises(kvtier.InvalidError):
            prefix.cover(0, 1, b"more than extra_bytes_max, which is 0")
        self.assertEqual((prefix.tokens, prefix.blocks), (0, 0))

    def test_every_code_of_the_library_has_an_exception(self):
        codes = re.search(r"enum class Errc \{(.*?)\};", RESULT_H.read_text(), re.DOTALL)[1]
        names = re.findall(r"^\s*(\w+)(?: = 1)?,", codes, re.MULTILINE)
        self.assertGreater(len(names), 10)
        self.assertEqual({kind.code for kind in kvtier.KvtierError.__subclasses__()}, set(names))

    def test_a_client_says_which_option_is_wrong(self):
        for options, words in ((dict(socket=""), "socket"), (dict(slots_ahead=1 << 20), "slots_ahead"),
                               (dict(reconnect_delay_max=0.0), "reconnect_delay_max"), (dict(reconnect_delay_max=float("nan")), "reconnect_delay_max")):
            with self.assertRaises(kvtier.InvalidError) as caught:
                kvtier.Client(**options)
            self.assertIn(words, str(caught.exception))
        if not kvtier.WITH_CUDA:
            with self.assertRaises(kvtier.UnavailableError):
                kvtier.Client(cuda_device=0)


class NoDaemonTest(unittest.TestCase):
    def test_without_a_daemon_everything_is_a_miss(self):
        ns = namespace()
        pool = kvtier.Pool.from_tensors(ns, arrays(), DIMS)
        with kvtier.Client("/nonexistent/kvtierd.sock") as client, client.open(ns) as cache:
            self.assertFalse(client.connected)
            with self.assertRaises(kvtier.DeadlineError) as caught:
                client.wait_connected(timeout=0.01)
            self.assertIsInstance(caught.exception, TimeoutError)
            self.assertIn("/nonexistent/kvtierd.sock", str(caught.exception))
            self.assertEqual(cache.match(range(9)), (0, (0, 0, 0)))
            with self.assertRaises(kvtier.UnavailableError) as unavailable:
                cache.lease(range(9), timeout=0.01)
            self.assertIsInstance(unavailable.exception, ConnectionError)
            write = cache.write_back(range(9), 0, pool, [0, 1])
            write.wait()
            self.assertEqual((write.accepted, client.stats().blocks_dropped), (0, 2))

    def test_after_close_a_client_says_so(self):
        client = kvtier.Client("/nonexistent/kvtierd.sock")
        cache = client.open(namespace())
        client.close()
        client.close()
        self.assertFalse(client.connected)
        self.assertIn("not connected", repr(client))
        for call in (lambda: client.open(namespace()), client.flush, client.stats, lambda: client.wait_connected(1.0),
                     lambda: cache.lease(range(9), timeout=1.0)):
            with self.assertRaises(kvtier.UnavailableError):
                call()
        cache.close()
        with self.assertRaises(kvtier.UnavailableError):
            cache.match(range(9))


class WithDaemonTest(pages.CacheTest):
    def test_a_lease_that_was_released_loads_nothing(self):
        cache = self.open(namespace())
        pool = kvtier.Pool.from_tensors(cache.ns, arrays(), DIMS)
        self.store(cache, cache.prefix(range(9)), pool, [0, 1])
        with cache.lease(range(9), timeout=WAIT) as lease:
            self.assertEqual(lease.source(0), kvtier.Tier.host)
            with self.assertRaises(IndexError):
                lease.source(2)
            for numbers, words in (([4], "page 4 of a pool of 4"), ([-1], "page 0 is not from 0")):
                with self.assertRaises(kvtier.InvalidError) as caught:
                    lease.load(pool, numbers)
                self.assertIn(words, str(caught.exception))
        self.assertFalse(lease.held)
        with self.assertRaises(kvtier.StaleError):
            lease.load(pool, [0, 1])

    def test_a_pool_of_another_namespace_is_refused(self):
        cache = self.open(namespace(model="mine"))
        pool = kvtier.Pool.from_tensors(namespace(model="other"), arrays(), DIMS)
        with cache.lease(range(9), timeout=WAIT) as lease, self.assertRaises(kvtier.InvalidError):
            lease.load(pool, [])
        with self.assertRaises(kvtier.InvalidError):
            cache.lease(kvtier.Prefix(namespace(model="other"), range(9)), timeout=WAIT)

    def test_a_daemon_that_does_not_answer_costs_the_timeout(self):
        cache = self.open(namespace(model="stopped"))
        self.daemon.process.send_signal(signal.SIGSTOP)
        self.addCleanup(self.daemon.process.send_signal, signal.SIGCONT)
        with self.assertRaises(kvtier.DeadlineError):
            cache.lease(range(9), timeout=0.05)
        with self.assertRaises(kvtier.DeadlineError):
            self.client.flush(timeout=0.05)
        self.assertEqual(self.client.stats().deadlines_missed, 2)


if __name__ == "__main__":
    pages.main()
