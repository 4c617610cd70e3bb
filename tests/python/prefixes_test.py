"""What names a block: its tokens, what covers them, or the engine's own digest."""

import copy
import hashlib
import unittest

import numpy as np

import kvtier
import pages
from pages import WAIT, namespace

DIMS = "kv block token head dim"


class PrefixTest(unittest.TestCase):
    def setUp(self):
        self.ns = namespace(extra_bytes_max=64)

    def test_it_counts_whole_blocks_and_never_matches_the_last_token(self):
        prefix = kvtier.Prefix(self.ns)
        for tokens, blocks, matchable in ((0, 0, 0), (3, 0, 0), (4, 1, 0), (5, 1, 1), (8, 2, 1), (9, 2, 2)):
            prefix.append(range(prefix.tokens, tokens))
            self.assertEqual((prefix.tokens, prefix.blocks, prefix.blocks_matchable), (tokens, blocks, matchable))
        self.assertEqual(repr(prefix), "<kvtier.Prefix of 9 tokens, 2 blocks>")

    def test_copies_go_their_own_ways(self):
        first = kvtier.Prefix(self.ns, range(6))
        second, third = first.copy(), copy.copy(first)
        second.append([6, 7])
        third.append([6, 8])
        self.assertEqual([p.tokens for p in (first, second, third)], [6, 8, 8])
        self.assertEqual(second.keys[0], third.keys[0])
        self.assertNotEqual(second.keys[1], third.keys[1])
        self.assertEqual(second.truncate(4).keys, first.keys)

    def test_what_covers_a_token_is_in_the_key_of_its_block_and_of_those_behind(self):
        keys = {extra: kvtier.Prefix(self.ns).cover(5, 6, extra).append(range(12)).keys for extra in (b"image 1", b"image 2")}
        plain = kvtier.Prefix(self.ns, range(12)).keys
        self.assertEqual(keys[b"image 1"], kvtier.Prefix(self.ns).append(range(4)).cover(5, 6, b"image 1").append(range(4, 12)).keys)
        for block in range(3):
            self.assertEqual(len({plain[block], keys[b"image 1"][block], keys[b"image 2"][block]}), 1 if block == 0 else 3)
        with self.assertRaises(kvtier.InvalidError):
            kvtier.Prefix(self.ns, range(8)).cover(5, 6, b"too late")

    def test_two_namespaces_never_share_a_key(self):
        ids = {namespace(**{field: value}).id for field, value in dict(model="b", adapter="x", tenant="y", rank=1, ranks=2, positions="p",
               block_tokens=8, format="bf16", extra_bytes_max=1, digest_bytes=16).items() if field != "rank"}
        self.assertEqual(len(ids), 9)
        self.assertNotIn("salt", repr(namespace(tenant="salt")))


class FoundTest(pages.CacheTest):
    def pool(self, ns, value):
        return kvtier.Pool.from_tensors(ns, [np.full((2, 4, 4, 2, 8), value, np.float32) for _ in range(2)], DIMS)

    def test_blocks_of_the_same_tokens_meet_only_with_the_same_image(self):
        cache = self.open(namespace(model="images", extra_bytes_max=64))
        seen = {name: hashlib.sha256(name.encode()).digest() for name in ("cat", "dog")}

        def prompt(image):
            return cache.prefix().cover(1, 3, seen[image]).append(range(9))
        self.store(cache, prompt("cat"), self.pool(cache.ns, 1), [0, 1])
        self.assertEqual(cache.match(prompt("dog")).blocks, 0)
        self.assertEqual(cache.match(range(9)).blocks, 0)
        with cache.lease(prompt("dog"), timeout=WAIT) as lease:
            self.assertEqual(lease.blocks, 0)
        self.assertEqual(cache.match(prompt("cat")), (2, (0, 2, 0)))
        self.assertEqual(self.load(cache, prompt("cat"), self.pool(cache.ns, 0), [2, 3]), 2)

    def test_an_engine_may_name_its_blocks_by_digests(self):
        cache = self.open(namespace(model="digests", digest_bytes=32))
        digests = [hashlib.sha256(bytes([n])).digest() for n in range(3)]
        prefix = cache.prefix().append_digest(digests[0]).append_digest(digests[1])
        self.assertEqual((prefix.tokens, prefix.blocks, prefix.blocks_matchable), (2, 2, 2))
        self.store(cache, prefix, self.pool(cache.ns, 1), [0, 1])
        self.assertEqual(cache.match(cache.prefix().append_digest(digests[0]).append_digest(digests[2])).blocks, 1)
        self.assertEqual(self.load(cache, prefix, self.pool(cache.ns, 0), [0, 1]), 2)
        with self.assertRaises(kvtier.InvalidError):
            prefix.append([1])

    def test_a_range_of_blocks_can_be_leased_and_stored(self):
        cache = self.open(namespace(model="ranges"))
        prefix = cache.prefix(range(17))
        self.store(cache, prefix, self.pool(cache.ns, 1), [0, 1])
        self.store(cache, prefix, self.pool(cache.ns, 2), [0, 1], first=2)
        arrays = [np.zeros((2, 4, 4, 2, 8), np.float32) for _ in range(2)]
        pool = kvtier.Pool.from_tensors(cache.ns, arrays, DIMS)
        with cache.lease(prefix, 4, first=1, timeout=WAIT) as lease:
            self.assertEqual((lease.blocks, lease.wait(WAIT)), (3, 3))
            with lease.load(pool, [3, 1, 0]) as load:
                self.assertEqual(load.blocks, 3)
        self.assertEqual([array[0, page, 0, 0, 0] for array in arrays for page in (3, 1, 0, 2)], [1, 2, 2, 0] * 2)
        stats = self.client.stats()
        self.assertEqual((stats.blocks_written, stats.hits.host), (4, 3))


if __name__ == "__main__":
    pages.main()
