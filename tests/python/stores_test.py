"""Write-backs and stores by layer: what comes of them, and what a client says of itself."""

import asyncio
import logging

import numpy as np

import kvtier
import pages
from pages import WAIT, namespace

DIMS = "kv block token head dim"
BLOCKS = 4


class StoresTest(pages.CacheTest):
    MORE = '[[tenant]]\nname = "of another user"\nsalts = ["theirs"]\nusers = ["nobody"]\n'

    def setUp(self):
        super().setUp()
        self.cache = self.open(namespace(model=self.id()))
        self.arrays = [np.full((2, BLOCKS, 4, 2, 8), layer + 1, np.float32) for layer in range(2)]
        self.pool = kvtier.Pool.from_tensors(self.cache.ns, self.arrays, DIMS)
        self.prefix = self.cache.prefix(range(BLOCKS * 4 + 1))

    def check_loaded(self, blocks=BLOCKS):
        loaded = [np.zeros_like(array) for array in self.arrays]
        pool = kvtier.Pool.from_tensors(self.cache.ns, loaded, DIMS)
        self.assertEqual(self.load(self.cache, self.prefix, pool, range(blocks)), blocks)
        for got, stored in zip(loaded, self.arrays):
            np.testing.assert_array_equal(got[:, :blocks], stored[:, :blocks])

    def test_every_block_that_is_offered_is_accounted_for(self):
        self.store(self.cache, self.prefix, self.pool, range(2))
        with self.cache.write_back(self.prefix, 0, self.pool, range(BLOCKS)) as write:
            pass
        self.assertEqual((write.accepted, write.cached, write.dropped), (2, 2, (0, 0, 0, 0)))
        self.assertTrue(write.ended)
        self.assertIsNone(write.error)
        self.client.flush(WAIT)
        self.check_loaded()

    def test_what_cannot_be_written_back_says_why(self):
        reader = kvtier.Client(self.daemon.socket, read_only=True)
        self.addCleanup(reader.close)
        reader.wait_connected(WAIT)
        write = reader.open(self.cache.ns).write_back(self.prefix, 0, self.pool, range(BLOCKS))
        write.wait()
        self.assertIsInstance(write.error, kvtier.RefusedError)
        self.assertEqual((write.dropped.failed, reader.stats().dropped.failed), (BLOCKS, BLOCKS))
        write = self.cache.write_back(self.prefix, 0, self.pool, [BLOCKS])
        self.assertIsInstance(write.error, kvtier.InvalidError)
        with kvtier.Client("/nonexistent/kvtierd.sock") as nobody:
            write = nobody.open(self.cache.ns).write_back(self.prefix, 0, self.pool, range(BLOCKS), slot_wait=0.0)
            write.hurry()
            self.assertTrue(write.wait(WAIT))
            self.assertEqual((write.accepted, sum(write.dropped)), (0, BLOCKS))

    def test_a_write_back_can_be_awaited(self):
        async def run():
            write = self.cache.write_back(self.prefix, 0, self.pool, range(BLOCKS))
            self.assertTrue(await write)
            return write.accepted
        self.assertEqual(asyncio.run(run()), BLOCKS)

    def test_layers_are_stored_as_they_come_and_found_once_committed(self):
        self.arrays[0][:] = self.arrays[1][:] = 0
        with self.cache.begin_store(self.prefix, 0, self.pool, range(BLOCKS), slot_wait=WAIT) as store:
            self.assertEqual(store.blocks, BLOCKS)
            for layer in (1, 0):
                self.arrays[layer][:] = layer + 1
                store.layer(layer)
                self.assertEqual(self.cache.match(self.prefix).blocks, 0)
            with self.assertRaises(kvtier.InvalidError):
                store.layer(0)
            with self.assertRaises(kvtier.InvalidError):
                store.layer(2)
            write = store.commit()
        write.wait()
        self.assertEqual(write.accepted, BLOCKS)
        for late in (store.commit, lambda: store.layer(0), lambda: store.blocks):
            with self.assertRaises(kvtier.StaleError):
                late()
        store.abandon()
        self.client.flush(WAIT)
        self.check_loaded()

    def test_a_store_that_is_abandoned_leaves_nothing(self):
        for end in ("with", "abandon", "last reference", "error"):
            with self.subTest(end):
                store = self.cache.begin_store(self.prefix, 0, self.pool, range(BLOCKS))
                store.layer(0)
                if end == "with":
                    with store:
                        pass
                elif end == "abandon":
                    store.abandon()
                elif end == "error":
                    with self.assertRaises(ZeroDivisionError), store:
                        store.layer(1 // 0)
                del store
                self.client.flush(WAIT)
                self.assertEqual(self.cache.match(self.prefix).blocks, 0)
        self.store(self.cache, self.prefix, self.pool, range(BLOCKS))
        self.check_loaded()

    def test_a_commit_without_all_layers_drops_all_blocks(self):
        store = self.cache.begin_store(self.prefix, 0, self.pool, range(BLOCKS))
        store.layer(1)
        write = store.commit()
        write.wait()
        self.assertIsInstance(write.error, kvtier.InvalidError)
        self.assertEqual((write.accepted, sum(write.dropped)), (0, BLOCKS))

    def test_a_store_that_cannot_begin_says_why(self):
        with self.assertRaises(kvtier.InvalidError):
            self.cache.begin_store(self.prefix, 0, self.pool, [BLOCKS])
        with kvtier.Client("/nonexistent/kvtierd.sock") as nobody, self.assertRaises(kvtier.UnavailableError):
            nobody.open(self.cache.ns).begin_store(self.prefix, 0, self.pool, range(BLOCKS))

    def test_opening_says_what_the_daemon_refuses(self):
        good = self.client.open(self.cache.ns, wait=WAIT)
        self.assertIsNone(good.error)
        theirs = namespace(model="theirs", tenant="theirs")
        with self.assertRaises(kvtier.RefusedError) as caught:
            self.client.open(theirs, wait=WAIT)
        self.assertIn("of another user", str(caught.exception))
        cache = self.open(theirs)
        with self.assertRaises(kvtier.RefusedError):
            cache.wait_open(WAIT)
        self.assertIsInstance(cache.error, kvtier.RefusedError)
        with kvtier.Client("/nonexistent/kvtierd.sock") as nobody:
            self.assertIsInstance(nobody.open(theirs).error, kvtier.UnavailableError)
            with self.assertRaises(kvtier.DeadlineError):
                nobody.open(theirs, wait=0.01)

    def test_what_a_client_has_to_say_goes_to_its_logger(self):
        log = logging.getLogger("kvtier.test")
        with self.assertLogs(log, logging.DEBUG) as heard:
            client = kvtier.Client(self.daemon.socket, log=log)
            client.wait_connected(WAIT)
            self.daemon.wait(lambda: heard.output)
            client.close()
        self.assertNotEqual(heard.records[0].getMessage(), "")
        self.assertIn(heard.records[0].levelno, (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR))


if __name__ == "__main__":
    pages.main()
