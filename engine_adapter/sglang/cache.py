"""Pages in kvtierd, each by its own digest.

A page's digest says all that comes before it, so each page is a prefix of one block here: what SGLang says of the pages
before (`prefix_keys`) is not needed, and is not complete in every call. Nothing here waits longer than its deadline,
but for copies in memory: when a call returns, nothing reads or writes the pages it was given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import kvtier

from ..engines.connection import found
from .identity import DIGEST_BYTES
from .options import Options
from .stats import Statistics

# Pages whose leases or write-backs are under way at a time: no more than SGLang asks for in one call, mostly.
_WINDOW = 128
_PAUSE_IN_TIMEOUTS = 10
Place = tuple[kvtier.Pool, int]  # a page's number in a pool


def digest_of(key: str) -> bytes:
    """Of SGLang's key of a page. Errors: ValueError."""
    digest = bytes.fromhex(key)
    if len(digest) != DIGEST_BYTES:
        raise ValueError(f"a page's key has {len(digest)} bytes, and SHA-256 {DIGEST_BYTES}")
    return digest


class Link:
    """What all pools of a rank share: the connection, and whether the daemon keeps up."""

    def __init__(
        self, options: Options, name: str, statistics: Statistics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.options = options
        self.statistics = statistics
        self.clock = clock
        self.client = kvtier.Client(options.socket, name=name, slot_wait=options.slot_wait_s)
        self._paused_until = 0.0

    def pause(self) -> None:
        """A load brought nothing in time: a daemon that stands still delays the requests of one moment, once."""
        self._paused_until = self.clock() + _PAUSE_IN_TIMEOUTS * self.options.load_timeout_s

    @property
    def paused(self) -> bool:
        return self.clock() < self._paused_until


class PageCache:
    """One pool's pages. For any number of threads."""

    def __init__(self, link: Link, ns: kvtier.Namespace) -> None:
        self.ns = ns
        self._link = link
        self._cache = link.client.open(ns)

    def found(self) -> str:
        """Whether the daemon is there and takes this namespace, for a line in the log."""
        return found(self._link.client, self._cache, self._link.options.connect_timeout_s, "page")

    def leading(self, keys: Sequence[str]) -> int:
        """How many of the first pages are there: a look into shared memory, and a question for the first that is not, where
        the daemon has a remote tier."""
        for i, key in enumerate(keys):
            if not self.present(key) and not self._is_remote(key):
                return i
        return len(keys)

    def _is_remote(self, key: str) -> bool:
        timeout = self._link.options.load_timeout_s
        return not self._link.paused and self._cache.look_up(self._prefix(key), timeout=timeout).blocks == 1

    def present(self, key: str) -> bool:
        return not self._link.paused and self._cache.match(self._prefix(key)).blocks == 1

    def load(self, keys: Sequence[str], places: Sequence[Place]) -> list[bool]:
        """Which pages came whole: some of the first, and none behind the first that did not."""
        began = self._link.clock()
        deadline = began + self._link.options.load_timeout_s
        good = from_disk = 0
        for first in range(0, 0 if self._link.paused else len(keys), _WINDOW):
            window = slice(first, first + _WINDOW)
            came, of_disk = self._load_window(keys[window], places[window], deadline)
            good, from_disk = good + came, from_disk + of_disk
            if came < len(keys[window]):
                break
        ended = self._link.clock()
        if good == 0 and keys and ended >= deadline:
            self._link.pause()
        bytes_loaded = good * self.ns.record_bytes
        self._link.statistics.loaded(good, from_disk, len(keys) - good, bytes_loaded, ended - began)
        return [True] * good + [False] * (len(keys) - good)

    def store(self, keys: Sequence[str], places: Sequence[Place]) -> list[bool]:
        """Which pages are in the cache now."""
        began = self._link.clock()
        deadline = began + self._link.options.slot_wait_s
        stored = [False] * len(keys)
        new = 0
        # From the last to the first: what came last is evicted last, and a prompt is of no use without its head.
        order = range(len(keys) - 1, -1, -1)
        for first in range(0, len(keys), _WINDOW):
            writes: list[tuple[int, kvtier.WriteBack]] = []
            try:
                for i in order[first : first + _WINDOW]:
                    pool, number = places[i]
                    wait = max(0.0, deadline - self._link.clock())
                    writes.append((i, self._cache.write_back(self._prefix(keys[i]), 0, pool, [number], slot_wait=wait)))
            finally:
                for _, write in writes:
                    write.wait()
            for i, write in writes:
                stored[i] = write.accepted + write.cached == 1
                new += write.accepted
        seconds = self._link.clock() - began
        self._link.statistics.stored(new, stored.count(False), new * self.ns.record_bytes, seconds)
        return stored

    def close(self) -> None:
        self._cache.close()

    def _prefix(self, key: str) -> kvtier.Prefix:
        return self._cache.prefix().append_digest(digest_of(key))

    def _load_window(self, keys: Sequence[str], places: Sequence[Place], deadline: float) -> tuple[int, int]:
        """How many of the first pages came whole, and how many of those were in no memory."""
        leases: list[kvtier.Lease] = []
        loads: list[kvtier.Load] = []
        try:
            for prefix in [self._prefix(key) for key in keys]:
                left = max(0.0, deadline - self._link.clock())
                leases.append(self._cache.lease_async(prefix, 1, timeout=left))
            for lease, (pool, number) in zip(leases, places):
                if lease.wait(max(0.0, deadline - self._link.clock())) == 0:
                    break
                loads.append(lease.load(pool, [number]))
        except kvtier.KvtierError:
            pass  # the lease is lost, or the daemon: what has not come is a miss
        finally:
            came = [load.finish() for load in loads]
            # Released from the last to the first, too, which makes the first the newest.
            sources = [lease.source(0) if i < len(loads) else None for i, lease in enumerate(leases)]
            for lease in reversed(leases):
                lease.release()
        good = came.index(0) if 0 in came else len(came)
        return good, sum(source in (kvtier.Tier.disk, kvtier.Tier.remote) for source in sources[:good])
