"""Waits for blocks that are on a slow disk: with a timeout, by descriptor, in asyncio, and with a signal in between."""

import asyncio
import contextlib
import os
import select
import signal
import threading
import time

import numpy as np

import kvtier
import pages
from pages import WAIT, namespace
from threads_test import Counter

DIMS = "kv block token head dim"
BLOCKS = 24
BYTES_PER_S = 1 << 20


class WaitsTest(pages.CacheTest):
    ENV = {"KVTIER_DISK_BYTES_PER_S": str(BYTES_PER_S)}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ns = namespace(model="slow", kv_heads=2, head_dim_k=64, head_dim_v=64, block_tokens=16)
        cls.seconds = BLOCKS * cls.ns.record_bytes / BYTES_PER_S  # that reading it takes
        assert cls.seconds > 0.5

    def setUp(self):
        super().setUp()
        self.cache = self.open(self.ns)
        self.arrays = [np.ones((2, BLOCKS, 16, 2, 64), np.float32) for _ in range(2)]
        self.pool = kvtier.Pool.from_tensors(self.ns, self.arrays, DIMS)
        self.prefix = self.cache.prefix(range(BLOCKS * 16 + 1))
        self.store_once()
        self.leave_on_disk_alone()
        self.assertEqual(self.cache.match(self.prefix), (BLOCKS, (0, 0, BLOCKS)))

    def store_once(self):
        if self.cache.match(self.prefix).blocks < BLOCKS:
            self.store(self.cache, self.prefix, self.pool, range(BLOCKS))

    def lease(self):
        lease = self.cache.lease(self.prefix, timeout=WAIT)
        self.addCleanup(lease.release)
        self.assertEqual((lease.blocks, lease.state, lease.source(0)), (BLOCKS, kvtier.LeaseState.arriving, kvtier.Tier.disk))
        return lease

    def test_a_wait_ends_with_its_timeout_and_goes_on_with_the_next(self):
        lease = self.lease()
        begun = time.monotonic()
        some = lease.wait(self.seconds / 4)
        self.assertLess(some, BLOCKS)
        self.assertLess(time.monotonic() - begun, self.seconds)
        self.assertFalse(lease.settled)
        self.assertEqual(lease.load(self.pool, range(BLOCKS)).finish(), lease.wait(0) if lease.settled else some)
        self.assertEqual(lease.wait(WAIT), BLOCKS)
        self.assertEqual((lease.state, lease.error), (kvtier.LeaseState.settled, None))

    def test_other_threads_go_on_while_one_waits(self):
        lease = self.lease()
        with Counter() as counter:
            self.assertEqual(lease.wait(WAIT), BLOCKS)
        self.assertGreater(counter.counted, 1000)
        self.assertLess(max(counter.pauses), self.seconds / 2)

    def test_a_signal_is_handled_in_the_middle_of_a_wait(self):
        class Interrupted(Exception):
            pass

        def interrupt(*_):
            raise Interrupted
        lease = self.lease()
        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with self.assertRaises(Interrupted):
            lease.wait(WAIT)
        self.assertFalse(lease.settled)
        self.assertEqual(lease.wait(WAIT), BLOCKS)

    def test_a_lease_can_be_polled_beside_other_descriptors(self):
        lease = self.lease()
        self.assertEqual(select.select([lease], [], [], 0)[0], [])
        self.assertEqual(select.select([lease], [], [], WAIT)[0], [lease])
        self.assertTrue(lease.settled)
        self.assertEqual(select.select([lease], [], [], 0)[0], [lease], "nobody reads it empty")

    def test_asyncio_waits_without_a_thread(self):
        async def run():
            lease = self.cache.lease_async(self.prefix, timeout=WAIT)
            turns, threads = 0, threading.active_count()
            ready = asyncio.ensure_future(lease.ready())
            while not ready.done():
                turns += 1
                self.assertEqual(threading.active_count(), threads)
                await asyncio.sleep(0.001)
            self.assertGreater(turns, 20)
            self.assertEqual((await ready, lease.state, lease.blocks), (BLOCKS, kvtier.LeaseState.settled, BLOCKS))
            self.assertEqual(await lease.ready(), BLOCKS)
            self.assertEqual(await lease.load(self.pool, range(BLOCKS)), BLOCKS)
            lease.release()
        asyncio.run(run())

    def test_asyncio_waits_for_many_at_once_and_leaves_no_descriptor(self):
        async def one(first):
            with self.cache.lease_async(self.prefix, first + 1, first=first, timeout=WAIT) as lease:
                return await lease.ready()

        async def run():
            self.assertEqual(await asyncio.gather(*(one(n % BLOCKS) for n in range(60))), [1] * 60)
            with self.cache.lease_async(self.prefix, timeout=WAIT) as lease:
                for _ in range(20):
                    self.assertEqual(await lease.ready(timeout=0.001), lease.wait(0))
                cancelled = asyncio.ensure_future(lease.ready())
                await asyncio.sleep(0)
                cancelled.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await cancelled
        asyncio.run(run())
        self.leave_on_disk_alone()
        before = len(os.listdir("/proc/self/fd"))
        asyncio.run(run())
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), before)

    def test_a_lease_that_is_not_answered_in_time_is_lost(self):
        async def run():
            self.daemon.process.send_signal(signal.SIGSTOP)
            try:
                lease = self.cache.lease_async(self.prefix, timeout=0.1)
                self.assertEqual((lease.state, lease.blocks), (kvtier.LeaseState.asked, 0))
                self.assertEqual(await lease.ready(), 0)
                self.assertEqual(lease.state, kvtier.LeaseState.lost)
                self.assertIsInstance(lease.error, kvtier.DeadlineError)
            finally:
                self.daemon.process.send_signal(signal.SIGCONT)
        asyncio.run(run())

    def test_a_prefetch_brings_blocks_to_memory_before_anybody_asks(self):
        self.cache.hint(self.prefix, kvtier.HintKind.prefetch)
        self.daemon.wait(lambda: self.cache.match(self.prefix).per_tier.host == BLOCKS)
        with self.cache.lease(self.prefix, timeout=WAIT) as lease:
            self.assertEqual((lease.source(0), lease.settled), (kvtier.Tier.host, True))
        self.cache.hint(self.prefix, kvtier.HintKind.keep, 2, first=1, tier=kvtier.Tier.host, priority=3, keep_for=1.5)
        self.cache.hint(self.prefix, kvtier.HintKind.ended)
        for wrong in (dict(tier=kvtier.Tier.disk), dict(priority=4), dict(keep_for=-1.0), dict(keep_for=float("nan"))):
            with self.assertRaises(kvtier.InvalidError):
                self.cache.hint(self.prefix, kvtier.HintKind.keep, **wrong)
        with self.assertRaises(kvtier.InvalidError):
            self.cache.hint(kvtier.Prefix(namespace(model="other"), range(9)), kvtier.HintKind.ended)

    def test_flush_waits_for_the_disk_and_no_longer_than_it_may(self):
        other = self.open(namespace(model=self.id(), kv_heads=2, head_dim_k=64, head_dim_v=64, block_tokens=16))
        pool = kvtier.Pool.from_tensors(other.ns, self.arrays, DIMS)
        write = other.write_back(range(BLOCKS * 16), 0, pool, range(BLOCKS))
        self.assertTrue(write.wait(WAIT))
        self.assertEqual((write.accepted, write.cached, write.dropped, write.error), (BLOCKS, 0, (0, 0, 0, 0), None))
        with self.assertRaises(kvtier.DeadlineError):
            self.client.flush(0.05)
        self.client.flush(WAIT)


if __name__ == "__main__":
    pages.main()
