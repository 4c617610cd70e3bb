#!/usr/bin/env python3
"""Host pools' pages in a real kvtierd: every layout comes back bit for bit, and a daemon that fails is a miss."""

import hashlib
import random
import signal
import subprocess
import time
import unittest

import numpy as np
from host_pools import LAYOUTS, MEMORY, HostPool, part

import pages as daemons
from pages import WAIT

cache, identity, options, pages, stats = (
    part(name, "sglang") for name in ("cache", "identity", "options", "pages", "stats")
)


def key_of(*what):
    return hashlib.sha256(repr(what).encode()).hexdigest()


class Rank:
    """One rank's pool and pages, as storage.py puts them together."""

    def __init__(self, socket, layout="page_first", *, rank=(0, 1), clock=time.monotonic, memory="numpy", of="test",
                 timeout=WAIT, slot_wait=WAIT, **shape):
        self.pool = HostPool(layout, memory=memory, **shape)
        self.found = pages.host_pages(self.pool, lambda numbers: np.array(list(numbers)))
        given = options.Options(str(socket), load_timeout_s=timeout, slot_wait_s=slot_wait, connect_timeout_s=WAIT)
        sizes = [piece.size for piece in self.found.pieces]
        ns = identity.namespace_of(sizes, self.found.page_size, self.found.layout, rank, of, "", given)
        self.statistics = stats.Statistics()
        self.link = cache.Link(given, "test", self.statistics, clock)
        self.cache = cache.PageCache(self.link, ns)
        self.places = self.found.pool(ns)

    def move(self, how, keys, numbers):
        return how(keys, [(self.places, number) for number in numbers])

    def store(self, keys, numbers):
        return self.move(self.cache.store, keys, numbers)

    def load(self, keys, numbers):
        return self.move(self.cache.load, keys, numbers)

    def contents(self, numbers):
        return [self.pool.page(number).tobytes() for number in numbers]

    def close(self):
        self.cache.close()
        self.link.client.close()


class RanksTest(daemons.CacheTest):
    def rank(self, *args, **more):
        made = Rank(self.daemon.socket, *args, **more)
        self.addCleanup(made.close)
        self.assertIn("is connected", made.cache.found())
        return made

    def stored(self, rank, name, numbers):
        """Keys of pages that are filled and stored, and found when this returns; and what they hold."""
        for number in numbers:
            rank.pool.fill(number, seed=int(key_of(name, number)[:8], 16))
        keys = [key_of(name, number) for number in numbers]
        self.assertEqual(rank.store(keys, numbers), [True] * len(keys))
        rank.link.client.flush(WAIT)
        return keys, rank.contents(numbers)


class PagesTest(RanksTest):
    def test_every_layout_comes_back_bit_for_bit(self):
        for memory in MEMORY:
            for layout in LAYOUTS:
                for page_size in (1, 16):
                    with self.subTest(layout, memory=memory, page_size=page_size):
                        name = (layout, memory, page_size)
                        one, other = (self.rank(layout, memory=memory, page_size=page_size, of=str(name)) for _ in range(2))
                        keys, contents = self.stored(one, name, [4, 0, 3])
                        self.assertEqual(other.cache.leading([*keys, key_of("never")]), 3)
                        self.assertEqual(other.load(keys, [1, 5, 2]), [True] * 3)
                        self.assertEqual(other.contents([1, 5, 2]), contents)
                        self.assertEqual(other.contents([0, 3, 4]), [bytes(len(contents[0]))] * 3)

    def test_more_pages_than_are_under_way_at_a_time(self):
        one = self.rank(pages=300)
        keys, contents = self.stored(one, "many", range(300))
        other = self.rank(pages=300)
        self.assertEqual(other.load(keys, range(299, -1, -1)), [True] * 300)
        self.assertEqual(other.contents(range(299, -1, -1)), contents)
        # What is missing among the first of them is missed by those that come later.
        keys[10] = key_of("never")
        self.assertEqual(other.load(keys, range(300)), [True] * 10 + [False] * 290)

    def test_pages_are_stored_once(self):
        rank = self.rank(of="once")
        keys, _ = self.stored(rank, "once", [0, 1, 2])
        self.assertEqual(rank.store([*keys, key_of("fourth")], [0, 1, 2, 3]), [True] * 4)
        counts = rank.statistics.counts()
        self.assertEqual((counts.stores, counts.pages_stored, counts.pages_dropped), (2, 4, 0))

    def test_what_is_behind_a_page_that_is_missing_is_none(self):
        rank = self.rank(of="missing")
        keys, contents = self.stored(rank, "missing", [0, 1, 2])
        asked = [keys[0], keys[1], key_of("never"), keys[2]]
        self.assertEqual(rank.cache.leading(asked), 2)
        self.assertEqual(rank.load(asked, [3, 4, 5, 2]), [True, True, False, False])
        self.assertEqual(rank.contents([3, 4]), contents[:2])
        self.assertEqual(rank.statistics.counts().pages_failed, 2)
        self.assertTrue(rank.cache.present(keys[2]))

    def test_a_page_is_found_without_the_pages_before_it(self):
        rank = self.rank(of="alone")
        keys, contents = self.stored(rank, "alone", [0, 1, 2])
        self.assertEqual(rank.load(keys[1:], [4, 5]), [True, True])
        self.assertEqual(rank.contents([4, 5]), contents[1:])

    def test_ranks_have_pages_of_their_own_and_replicas_share(self):
        keys, contents = self.stored(self.rank(rank=(0, 2)), "rank 0", [0, 1])
        self.assertEqual(self.rank(rank=(1, 2)).cache.leading(keys), 0)
        keys, contents = self.stored(self.rank(rank=(0, 0)), "replicas", [0, 1])
        other = self.rank(rank=(0, 0))
        self.assertEqual(other.load(keys, [2, 3]), [True, True])
        self.assertEqual(other.contents([2, 3]), contents)

    def test_pages_on_disk_are_read_and_counted(self):
        rank = self.rank(of="disk")
        keys, contents = self.stored(rank, "disk", [0, 1, 2])
        self.leave_on_disk_alone()
        self.assertEqual(rank.cache.leading(keys), 3)
        self.assertEqual(rank.load(keys, [3, 4, 5]), [True] * 3)
        self.assertEqual(rank.contents([3, 4, 5]), contents)
        counts = rank.statistics.counts()
        self.assertEqual((counts.pages_loaded, counts.pages_from_disk), (3, 3))

    def test_a_key_that_is_no_digest_is_an_error_and_moves_nothing(self):
        rank = self.rank(of="keys")
        rank.pool.fill(0, 1)
        for how in (rank.store, rank.load):
            with self.assertRaises(ValueError):
                how(["page 1", "page 2"], [0, 1])
        self.assertEqual(rank.statistics.counts().loads, 0)

    def test_random_schedules(self):
        seed = random.randrange(1 << 32)
        chance = random.Random(seed)
        print(f"\nseed {seed}", flush=True)
        ranks = [self.rank(rank=(i, 2), of="random", pages=12) for i in range(2)]
        known = [{} for _ in ranks]
        loaded = 0
        for _ in range(300):
            which = chance.randrange(2)
            rank, of = ranks[which], known[which]
            numbers = chance.sample(range(12), chance.randint(1, 8))
            if chance.random() < 0.4:
                keys = [key_of(seed, chance.randrange(60)) for _ in numbers]
                keys = list(dict.fromkeys(keys))
                numbers = numbers[: len(keys)]
                for key, number in zip(keys, numbers):
                    # A key says all of a page, so it is always the same; of another rank it is another.
                    rank.pool.fill(number, int(key[:8], 16) ^ which)
                for key, content, good in zip(keys, rank.contents(numbers), rank.store(keys, numbers)):
                    if good:
                        of[key] = content
            else:
                keys = [chance.choice(sorted(of)) if of and chance.random() < 0.9 else key_of(seed, -chance.random())
                        for _ in numbers]
                good = rank.load(keys, numbers)
                self.assertEqual(good, sorted(good, reverse=True), seed)
                for key, content, came in zip(keys, rank.contents(numbers), good):
                    if came:
                        loaded += 1
                        self.assertEqual(content, of[key], seed)
        self.assertGreater(loaded, 100, seed)


class FaultsTest(unittest.TestCase):
    def setUp(self):
        given = daemons.arguments()
        self.daemon = daemons.ServedDaemon(given.daemon, given.scratch, device="0")
        self.addCleanup(self.daemon.close)

    def rank(self, **more):
        made = Rank(self.daemon.socket, **more)
        self.addCleanup(made.close)
        return made

    def stored(self, rank):
        self.assertIn("is connected", rank.cache.found())
        keys = [key_of(i) for i in range(4)]
        for number in range(4):
            rank.pool.fill(number, number)
        self.assertEqual(rank.store(keys, range(4)), [True] * 4)
        rank.link.client.flush(WAIT)
        return keys, rank.contents(range(4))

    def kill(self):
        self.daemon.process.kill()
        self.daemon.process.wait(WAIT)

    def start_again(self):
        given = daemons.arguments()
        self.daemon.process = subprocess.Popen([given.daemon, "--config", self.daemon.work / "kvtierd.toml"],
                                               stderr=subprocess.DEVNULL)

    def until(self, condition):
        deadline = time.monotonic() + WAIT
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def test_without_a_daemon_everything_is_a_miss_at_once(self):
        rank = self.rank()
        keys, _ = self.stored(rank)
        self.kill()
        self.until(lambda: not rank.link.client.connected)
        began = time.monotonic()
        self.assertEqual(rank.cache.leading(keys), 0)
        self.assertEqual(rank.load(keys, range(4)), [False] * 4)
        self.assertEqual(rank.store([key_of("new")], [0]), [False])
        self.assertLess(time.monotonic() - began, WAIT / 4)  # nothing waited for its deadline
        self.assertFalse(rank.link.paused)
        counts = rank.statistics.counts()
        self.assertEqual((counts.pages_failed, counts.pages_dropped), (4, 1))

    def test_a_daemon_that_was_killed_and_comes_back_has_what_was_on_disk(self):
        rank = self.rank()
        keys, contents = self.stored(rank)
        self.kill()
        self.start_again()
        self.until(lambda: rank.cache.leading(keys) == 4)
        self.assertEqual(rank.load(keys, [4, 5, 0, 1]), [True] * 4)
        self.assertEqual(rank.contents([4, 5, 0, 1]), contents)
        self.assertEqual(rank.statistics.counts().pages_from_disk, 4)

    def test_one_that_never_was_is_found_when_it_starts(self):
        self.kill()
        rank = Rank(self.daemon.socket, slot_wait=WAIT)
        self.addCleanup(rank.close)
        self.assertEqual(rank.cache.leading([key_of(0)]), 0)
        self.assertEqual(rank.load([key_of(0)], [0]), [False])
        self.start_again()
        self.stored(rank)

    def test_one_that_stands_still_costs_one_deadline_and_then_a_pause(self):
        ahead = [0.0]
        rank = self.rank(timeout=0.5, slot_wait=0.5, page_size=512, clock=lambda: time.monotonic() + ahead[0])
        keys, contents = self.stored(rank)
        self.daemon.process.send_signal(signal.SIGSTOP)
        self.addCleanup(self.daemon.process.send_signal, signal.SIGCONT)
        began = time.monotonic()
        self.assertEqual(rank.load(keys, range(4)), [False] * 4)
        self.assertGreaterEqual(time.monotonic() - began, 0.4)
        self.assertLess(time.monotonic() - began, WAIT / 4)
        # From now on nobody waits.
        self.assertTrue(rank.link.paused)
        self.assertEqual(rank.cache.leading(keys), 0)
        began = time.monotonic()
        self.assertEqual(rank.load(keys, range(4)), [False] * 4)
        self.assertLess(time.monotonic() - began, 0.4)
        # More pages than there are slots for are given up together, after one wait.
        began = time.monotonic()
        stored = rank.store([key_of("new", i) for i in range(600)], [i % 4 for i in range(600)])
        self.assertLess(time.monotonic() - began, WAIT / 4)
        self.assertGreater(stored.count(False), 0)
        self.daemon.process.send_signal(signal.SIGCONT)
        ahead[0] += 60.0
        self.assertFalse(rank.link.paused)
        self.until(lambda: rank.load(keys, [4, 5, 0, 1]) == [True] * 4 or self.forget_pause(rank))
        self.assertEqual(rank.contents([4, 5, 0, 1]), contents)

    def forget_pause(self, rank):
        rank.link._paused_until = 0.0


if __name__ == "__main__":
    daemons.main()
