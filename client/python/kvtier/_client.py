"""The connection to a daemon, and one namespace as one engine uses it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from typing import Any, NamedTuple

from . import _kvtier
from ._errors import KvtierError, exception_of
from ._handles import Drops, LayerStore, Lease, Numbers, WriteBack, stream_number
from ._kvtier import HintKind, Tier
from ._namespace import Namespace
from ._pool import Pool
from ._prefix import Prefix, Tokens


class TierCounts(NamedTuple):
    device: int
    host: int
    disk: int


class Match(NamedTuple):
    """What a lookup finds of a prompt."""

    blocks: int  #: leading blocks found
    per_tier: TierCounts  #: of those, by the fastest tier that holds each

    @property
    def remote(self) -> int:
        """Of those, what is in the remote tier alone, as far as the daemon knows."""
        return self.blocks - sum(self.per_tier)


class Stats(NamedTuple):
    blocks_looked_up: int
    hits: TierCounts
    misses: int
    faults: int
    leases_lost: int
    blocks_written: int
    blocks_dropped: int
    dropped: Drops  #: of those, by reason
    deadlines_missed: int
    connects: int

    @property
    def remote_hits(self) -> int:
        """Blocks leased from the remote tier; `hits` has the others."""
        return max(0, self.blocks_looked_up - sum(self.hits) - self.misses)


class Cache:
    """One namespace as one engine uses it. Client.open() makes it."""

    def __init__(self, native: _kvtier.Cache, ns: Namespace) -> None:
        self._native = native
        self._ns = ns

    @property
    def ns(self) -> Namespace:
        return self._ns

    def prefix(self, tokens: Tokens = ()) -> Prefix:
        """A Prefix in this namespace."""
        return Prefix(self._ns, tokens)

    def match(self, prefix: Prefix | Tokens) -> Match:
        """How many leading blocks are cached, and where: a look into shared memory, advisory."""
        blocks, per_tier = self._native.match(self._prefix(prefix)._native)
        return Match(blocks, TierCounts(*per_tier))

    def look_up(self, prefix: Prefix | Tokens, *, timeout: float | None = None) -> Match:
        """match(), once kvtierd has asked its remote tier for what it does not know of the prefix.

        That takes some milliseconds at most, `timeout` seconds here; where there is no remote tier it is match(). What could
        not be asked is a miss.
        """
        blocks, per_tier = self._native.look_up(self._prefix(prefix)._native, timeout)
        return Match(blocks, TierCounts(*per_tier))

    def lease(self, prefix: Prefix | Tokens, end: int | None = None, *, first: int = 0, timeout: float | None = None) -> Lease:
        """Holds blocks first .. end - 1 up to the first that is gone, and starts bringing those on disk to memory.

        `end` None: all that may come from the cache. Call it once a request from block 0 on, also for a miss: it is
        what counts lookups. Errors: DeadlineError, UnavailableError, RefusedError, InvalidError.
        """
        whole = self._prefix(prefix)
        native = self._native.lease(whole._native, first, whole.blocks_matchable if end is None else end, timeout)
        return Lease(native, self._native.cuda_device)

    def lease_async(self, prefix: Prefix | Tokens, end: int | None = None, *, first: int = 0,
                    timeout: float | None = None) -> Lease:
        """As lease(), without waiting for the answer: `await lease.ready()`, or poll Lease.fileno().

        A lease that was not granted within `timeout` seconds is lost; of one that was, what has come by then can be
        loaded. Errors: InvalidError, UnavailableError.
        """
        whole = self._prefix(prefix)
        native = self._native.lease_async(whole._native, first, whole.blocks_matchable if end is None else end, timeout)
        return Lease(native, self._native.cuda_device)

    def write_back(self, prefix: Prefix | Tokens, first_block: int, pool: Pool, pages: Numbers, stream: Any = None, *,
                   slot_wait: float | None = None) -> WriteBack:
        """Offers whole blocks first_block, first_block + 1, ... of `prefix`, as many as `pages` names. Does not wait.

        Blocks that are cached are skipped. One without a free slot waits `slot_wait` seconds for it (None: as long as
        Client(slot_wait=...) says), and what finds none is dropped and counted. The handle's end waits for the copies:
        keep it as long as the engine computes, then wait().
        """
        return WriteBack(self._native.write_back(self._prefix(prefix)._native, first_block, pool._native, pages,
                                                 stream_number(stream), slot_wait))

    def begin_store(self, prefix: Prefix | Tokens, first_block: int, pool: Pool, pages: Numbers, *,
                    slot_wait: float | None = None) -> LayerStore:
        """As write_back(), layer by layer as the engine finishes them. Nothing of it is found before commit().

        Errors: InvalidError, RefusedError, UnavailableError, NoSpaceError.
        """
        return LayerStore(self._native.begin_store(self._prefix(prefix)._native, first_block, pool._native, pages, slot_wait))

    def hint(self, prefix: Prefix | Tokens, kind: HintKind, end: int | None = None, *, first: int = 0,
             tier: Tier = Tier.host, priority: int = 0, keep_for: float = 0.0) -> None:
        """What is known of the time ahead of blocks first .. end - 1 (`end` None: of all). Never waits, never a promise.

        HintKind.prefetch: a request will need them soon, in `tier` (host or device). keep: they stay there while others
        go, for `keep_for` seconds before all that is not kept, and by `priority` (0 to 3) after that. demote: they will
        not be needed soon. ended: nor will the session, whose prefix this is, need anything.
        Errors: InvalidError, NoSpaceError (too many wait to be sent), UnavailableError.
        """
        whole = self._prefix(prefix)
        self._native.hint(whole._native, first, whole.blocks if end is None else end, kind, tier, priority, keep_for)

    @property
    def error(self) -> KvtierError | None:
        """Why the daemon has not opened the namespace (yet); None: it has."""
        return exception_of(self._native.error)

    def wait_open(self, timeout: float | None = None) -> None:
        """Waits until the daemon has opened the namespace. Errors: DeadlineError, and what it refused with."""
        self._native.wait_open(timeout)

    def close(self) -> None:
        """Gives its reserved slots back. Handles that it made go on."""
        self._native.close()

    def _prefix(self, prefix: Prefix | Tokens) -> Prefix:
        return prefix if isinstance(prefix, Prefix) else Prefix(self._ns, prefix)

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kvtier.Cache of {self._ns.model!r}, {self._ns.record_bytes} bytes a block>"


class Client:
    """The connection to a daemon. It starts connecting at once and reconnects by itself; without a daemon all is a miss.

    It does not go through fork(): in the child everything of it is a miss, and the parent's goes on. Start one there.
    """

    def __init__(self, socket: str | os.PathLike[str] = "/run/kvtier/kvtierd.sock", *, name: str = "python",
                 cuda_device: int | None = None, slots_ahead: int = 64, write_backs_queued_max: int = 1024,
                 reconnect_delay_max: float = 0.5, read_only: bool = False, verify_loads: bool = False,
                 slot_wait: float = 0.0, log: logging.Logger | None = None) -> None:
        """`cuda_device`: the GPU on which this engine's pages and streams are; None: they are in host memory.

        `name` is what kvtierctl shows. `slot_wait`: how long a write-back waits for slots where the daemon has none
        yet, as while a tier grows. `log`: who hears what the client has to say, at the level that it is enabled for.
        Times are in seconds. Errors: InvalidError, UnavailableError (no such GPU), IoError.
        """
        self._socket = os.fspath(socket)
        self._native = _kvtier.Client(
            socket=self._socket, name=name, cuda_device=cuda_device, slots_ahead=slots_ahead,
            write_backs_queued_max=write_backs_queued_max, reconnect_delay_max=reconnect_delay_max,
            read_only=read_only, verify_loads=verify_loads, slot_wait=slot_wait,
            log_level=None if log is None else _level_of(log))
        if log is not None:
            threading.Thread(target=_pass_on, args=(self._native.lines, log), name="kvtier-log", daemon=True).start()
        _open_clients.add(self)

    @property
    def connected(self) -> bool:
        return self._native.connected

    def wait_connected(self, timeout: float | None = None) -> None:
        """Errors: DeadlineError with the reason of the last failed attempt; UnavailableError."""
        self._native.wait_connected(timeout)

    def open(self, ns: Namespace, *, wait: float | None = None) -> Cache:
        """Opens it in the background, and Cache.error says what came of it; with `wait` (seconds) as Cache.wait_open().

        Errors: UnavailableError, and of Cache.wait_open().
        """
        cache = Cache(self._native.open(ns._native), ns)
        if wait is not None:
            cache.wait_open(wait)
        return cache

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything written back before is committed and, where the disk tier admits it, durable.

        Errors: DeadlineError, UnavailableError.
        """
        self._native.flush(timeout)

    def stats(self) -> Stats:
        looked_up, hits, misses, faults, lost, written, count, dropped, deadlines, connects = self._native.stats()
        return Stats(looked_up, TierCounts(*hits), misses, faults, lost, written, count, Drops(*dropped), deadlines, connects)

    def close(self) -> None:
        """Ends the connection and its threads. Its handles stay: leases are lost, loads and write-backs end."""
        self._native.close()
        _open_clients.discard(self)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kvtier.Client of {self._socket!r}, {'connected' if self.connected else 'not connected'}>"


_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}


def _level_of(log: logging.Logger) -> _kvtier.LogLevel:
    """The most that `log` lets through."""
    enabled = [level for level in _kvtier.LogLevel if log.isEnabledFor(_LEVELS[level.name])]
    return max(enabled, key=lambda level: -_LEVELS[level.name], default=_kvtier.LogLevel.error)


def _pass_on(lines: _kvtier.LogLines, log: logging.Logger) -> None:
    """The thread that lets Python hear of what threads say that must not wait for it."""
    while (said := lines.next()) is not None:
        level, line = said
        log.log(_LEVELS[level.name], "%s", line)


_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_clients() -> None:
    # Their threads end before what they use does. Threads that wait in a client meanwhile stay there.
    _kvtier.note_exit()
    for client in list(_open_clients):
        client.close()
