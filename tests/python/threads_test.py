"""No wait and no copy holds Python's lock, and any number of threads may use one object."""

import threading
import time
import unittest

import numpy as np

import kvtier
import pages
from pages import WAIT, namespace

DIMS = "kv block token head dim"
NOWHERE = "/nonexistent/kvtierd.sock"


class Counter:
    """A thread that counts as fast as it can, and notes its longest pause."""

    def __enter__(self):
        self.stop, self.pauses, self.counted = False, [], 0
        started = threading.Event()
        self.thread = threading.Thread(target=self._count, args=(started,))
        self.thread.start()
        started.wait()
        return self

    def _count(self, started):
        last = time.perf_counter()
        started.set()
        while not self.stop:
            now = time.perf_counter()
            if now - last > 0.001:
                self.pauses.append(now - last)
            last = now
            self.counted += 1
        self.pauses.append(time.perf_counter() - last)

    def __exit__(self, *error):
        self.stop = True
        self.thread.join()


class LockTest(unittest.TestCase):
    def check(self, call, least):
        """`call` takes `least` seconds or more, and others get on for most of it."""
        for attempt in range(5):
            with Counter() as counter:
                begun = time.perf_counter()
                call()
                took = time.perf_counter() - begun
            self.assertGreater(took, least)
            self.assertGreater(counter.counted, 0)
            # A call with the lock held is one pause as long as itself. Another process may have had the core once.
            if max(counter.pauses) < took / 2:
                return
        self.fail(f"of {took:.3f} s others waited {max(counter.pauses):.3f} s")

    def test_a_wait_for_a_connection(self):
        with kvtier.Client(NOWHERE) as client:
            def wait():
                with self.assertRaises(kvtier.DeadlineError):
                    client.wait_connected(0.3)
            self.check(wait, 0.29)


class BesideADaemonTest(pages.CacheTest, LockTest):
    BYTES = 96 << 20

    def setUp(self):
        super().setUp()
        self.ns = namespace(model=self.id(), layers=8, kv_heads=8, head_dim_k=128, head_dim_v=128, block_tokens=16, format="fp8_e4m3")
        self.cache = self.open(self.ns)
        self.blocks = self.BYTES // (2 * 8 * 16 * 8 * 128 * 4)
        self.arrays = [np.ones((2, self.blocks, 16, 8, 128), np.float32) for _ in range(8)]
        self.pool = kvtier.Pool.from_tensors(self.ns, self.arrays, DIMS)
        self.prefix = self.cache.prefix(range(self.blocks * 16 + 1))

    def test_copies(self):
        generation = iter(range(1000))

        def store():
            prefix = self.cache.prefix([next(generation)] * (self.blocks * 16 + 1))
            self.cache.write_back(prefix, 0, self.pool, range(self.blocks)).wait()
        self.check(store, 0.005)
        self.store(self.cache, self.prefix, self.pool, range(self.blocks))
        with self.cache.lease(self.prefix, timeout=WAIT) as lease:
            self.assertEqual(lease.wait(WAIT), self.blocks)
            self.check(lambda: lease.load(self.pool, range(self.blocks)).finish(), 0.005)
            self.check(lambda: lease.load(self.pool, range(self.blocks)), 0.005)  # its end waits

    def test_threads_may_share_everything(self):
        self.store(self.cache, self.prefix, self.pool, range(self.blocks))
        until, failures, rounds = time.monotonic() + 3, [], [0] * 8
        lease = self.cache.lease(self.prefix, timeout=WAIT)
        self.assertEqual(lease.wait(WAIT), self.blocks)
        loads = [lease.load(self.pool, range(4)) for _ in range(4)]
        growing = self.cache.prefix()

        def hammer(thread):
            try:
                while time.monotonic() < until:
                    rounds[thread] += 1
                    growing.append([1, 2, 3])
                    self.assertEqual(self.cache.match(self.prefix).blocks, self.blocks)
                    self.cache.match(growing)
                    with self.cache.lease(self.prefix, 4, timeout=WAIT) as mine:
                        load = mine.load(self.pool, range(4))
                        load.wait_layer(3)
                        self.assertEqual(load.finish(), 4)
                    self.cache.write_back(growing, 0, self.pool, range(2)).wait()
                    for shared in loads:
                        shared.wait_layer(7)
                        self.assertIn(shared.finish(), (0, 4))
                    self.assertIn(lease.wait(0), (0, self.blocks))
                    if rounds[thread] == 20:
                        lease.release()
                    self.client.stats()
                    repr(lease), repr(loads[0]), repr(self.client), repr(growing)
            except BaseException as error:  # noqa: BLE001
                failures.append(error)
                raise
        threads = [threading.Thread(target=hammer, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertGreater(min(rounds), 1)
        self.assertEqual(growing.tokens, 3 * sum(rounds))

    def test_a_client_may_be_closed_beside_calls_of_it(self):
        self.store(self.cache, self.prefix, self.pool, range(self.blocks))
        for _ in range(10):
            client = kvtier.Client(self.daemon.socket)
            client.wait_connected(WAIT)
            cache = client.open(self.ns)
            begun = threading.Barrier(5)

            def use():
                begun.wait()
                try:
                    while True:
                        with cache.lease(self.prefix, timeout=WAIT) as lease:
                            lease.load(self.pool, range(self.blocks)).finish()
                        client.stats()
                except kvtier.KvtierError as error:
                    self.assertIn(error.code, ("unavailable", "stale"))
            threads = [threading.Thread(target=use) for _ in range(4)]
            for thread in threads:
                thread.start()
            begun.wait()
            client.close()
            for thread in threads:
                thread.join(WAIT)
                self.assertFalse(thread.is_alive())


if __name__ == "__main__":
    pages.main()
