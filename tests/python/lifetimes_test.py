"""What keeps what alive, and what is left when the interpreter ends or forks."""

import gc
import os
import subprocess
import sys
import weakref

import numpy as np

import kvtier
import pages
from pages import WAIT, namespace

DIMS = "kv block token head dim"
ENDS = {
    "handles of all kinds are open": """
client.wait_connected(60)
lease = cache.lease(range(9), timeout=60)
lease.wait(60)
load = lease.load(pool, [0, 1])
write = cache.write_back(range(100, 109), 0, pool, [2, 3])
""",
    "a thread that nobody waits for waits for a connection": """
import threading, time
nowhere = kvtier.Client("/nonexistent/kvtierd.sock")
waiting = threading.Event()
def wait():
    waiting.set()
    nowhere.wait_connected(3600)
threading.Thread(target=wait, daemon=True).start()
waiting.wait()
time.sleep(0.05)
""",
    "threads that nobody waits for use it": """
import threading, time
client.wait_connected(60)
def use():
    while True:
        with cache.lease(range(9), timeout=60) as lease:
            lease.load(pool, range(lease.wait(60))).finish()
for _ in range(4):
    threading.Thread(target=use, daemon=True).start()
time.sleep(0.2)
""",
    "it is used from atexit": """
import atexit
client.wait_connected(60)
@atexit.register
def last():
    with cache.lease(range(9), timeout=60) as lease:
        lease.wait(60)
""",
    "an exception goes through a with": """
client.wait_connected(60)
try:
    with cache.lease(range(9), timeout=60) as lease, lease.load(pool, [0, 1]):
        raise SystemExit(0)
finally:
    assert not lease.held
""",
}


def arrays():
    return [np.zeros((2, 4, 4, 2, 8), np.float32) for _ in range(2)]


class LifetimesTest(pages.CacheTest):
    def setUp(self):
        super().setUp()
        self.cache = self.open(namespace(model="lifetimes"))
        self.arrays = arrays()
        self.pool = kvtier.Pool.from_tensors(self.cache.ns, self.arrays, DIMS)

    def alive(self, watched):
        gc.collect()
        return [each() is not None for each in watched]

    def test_a_pool_keeps_its_arrays_and_they_go_with_it(self):
        mine = arrays()
        watched = [weakref.ref(array) for array in mine]
        pool = kvtier.Pool.from_tensors(self.cache.ns, mine, DIMS)
        del mine
        self.assertEqual(self.alive(watched), [True, True])
        del pool
        self.assertEqual(self.alive(watched), [False, False])

    def test_a_pool_keeps_what_dlpack_lends_and_gives_it_back(self):
        class Lender:
            def __init__(self):
                self.array = np.zeros((2, 4, 4, 2, 8), np.float32)

            def __dlpack__(self, **options):
                return self.array.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()
        lenders = [Lender(), Lender()]
        watched = [weakref.ref(lender.array) for lender in lenders]
        pool = kvtier.Pool.from_tensors(self.cache.ns, lenders, DIMS)
        del lenders
        self.assertEqual(self.alive(watched), [True, True])
        del pool
        self.assertEqual(self.alive(watched), [False, False])
        capsule = np.zeros(3).__dlpack__()
        view = kvtier._kvtier.dlpack_view(capsule)
        with self.assertRaises(ValueError):
            kvtier._kvtier.dlpack_view(capsule)  # it was taken
        del view

    def test_loads_and_write_backs_keep_the_arrays_until_they_end(self):
        self.store(self.cache, self.cache.prefix(range(9)), self.pool, [0, 1])
        for begin in (lambda lease, pool: lease.load(pool, [0, 1]),
                      lambda lease, pool: self.cache.write_back(range(50, 59), 0, pool, [0, 1])):
            mine = arrays()
            watched = [weakref.ref(array) for array in mine]
            with self.cache.lease(range(9), timeout=WAIT) as lease:
                lease.wait(WAIT)
                handle = begin(lease, kvtier.Pool.from_tensors(self.cache.ns, mine, DIMS))
                del mine
                self.assertEqual(self.alive(watched), [True, True])
                del handle
                self.assertEqual(self.alive(watched), [False, False])

    def test_nothing_is_left_of_what_was_used(self):
        self.store(self.cache, self.cache.prefix(range(9)), self.pool, [0, 1])

        def once():
            prefix = self.cache.prefix(np.arange(9))
            self.cache.match(prefix)
            with self.cache.lease(prefix, timeout=WAIT) as lease:
                lease.wait(WAIT)
                lease.load(self.pool, np.array([0, 1])).finish()
            self.cache.write_back(prefix, 0, self.pool, (0, 1)).wait()
            kvtier.Pool.from_tensors(self.cache.ns, self.arrays, DIMS)
            try:
                self.cache.lease(prefix, "all", timeout=WAIT)
            except TypeError:
                pass
            try:
                kvtier.Prefix(self.cache.ns, [-1])
            except kvtier.InvalidError:
                pass
        for _ in range(3):
            once()
        watched = [self.pool, self.cache, self.client, self.cache.ns, kvtier.InvalidError, *self.arrays]
        gc.collect()
        before, objects = [sys.getrefcount(each) for each in watched], len(gc.get_objects())
        rounds = 200
        for _ in range(rounds):
            once()
        gc.collect()
        for each, count in zip(watched, before):
            self.assertLess(abs(sys.getrefcount(each) - count), rounds / 4, repr(each))  # a leak is once a round
        self.assertLess(len(gc.get_objects()) - objects, rounds / 4)

    def test_the_interpreter_ends_with_anything_open(self):
        self.store(self.cache, self.cache.prefix(range(9)), self.pool, [0, 1])
        begin = f"""
import numpy as np, kvtier
ns = kvtier.Namespace(**{ {f: getattr(self.cache.ns, f) for f in ("model", "layers", "kv_heads", "head_dim_k", "head_dim_v", "block_tokens", "format")} })
pool = kvtier.Pool.from_tensors(ns, [np.zeros((2, 4, 4, 2, 8), np.float32) for _ in range(2)], "{DIMS}")
client = kvtier.Client("{self.daemon.socket}")
cache = client.open(ns)
"""
        for name, body in ENDS.items():
            with self.subTest(name):
                ended = subprocess.run([sys.executable, "-X", "dev", "-c", begin + body], capture_output=True, text=True, timeout=120)
                self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    def test_a_child_of_fork_finds_nothing_and_the_parent_goes_on(self):
        self.store(self.cache, self.cache.prefix(range(9)), self.pool, [0, 1])
        lease = self.cache.lease(range(9), timeout=WAIT)
        self.assertEqual(lease.wait(WAIT), 2)
        load = lease.load(self.pool, [0, 1])
        child = os.fork()
        if child == 0:
            os._exit(self.in_the_child(lease, load))
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertEqual(load.finish(), 2)
        self.assertTrue(lease.held)
        self.assertEqual(self.cache.match(range(9)).blocks, 2)

    def in_the_child(self, lease, load):
        """0, where all is a miss and a client of its own works."""
        try:
            self.assertFalse(self.client.connected)
            self.assertEqual(self.cache.match(range(9)).blocks, 0)
            self.assertEqual((lease.held, lease.wait(1), load.finish()), (False, 0, 0))
            with self.assertRaises(kvtier.UnavailableError):
                self.cache.lease(range(9), timeout=WAIT)
            write = self.cache.write_back(range(9), 0, self.pool, [0, 1])
            write.wait()
            self.assertEqual(write.accepted, 0)
            with kvtier.Client(self.daemon.socket) as own, own.open(self.cache.ns) as cache:
                own.wait_connected(WAIT)
                self.assertEqual(self.load(cache, cache.prefix(range(9)), self.pool, [0, 1]), 2)
            self.cache.close()
            self.client.close()
            return 0
        except BaseException as error:  # noqa: BLE001
            print(repr(error), file=sys.stderr, flush=True)
            return 1


if __name__ == "__main__":
    pages.main()
