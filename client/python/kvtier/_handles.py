"""Leases, loads and write-backs. No wait and no copy holds Python's lock."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from . import _kvtier
from ._errors import InvalidError, KvtierError, error_of, exception_of
from ._kvtier import LeaseState, Tier
from ._pool import Pool

#: Page numbers: a sequence, or an array of one dimension, of integers.
Numbers = Any


def stream_number(stream: Any) -> int:
    """Of a CUDA stream: its number in C, or an object that has it as `cuda_stream` (torch) or `ptr` (CuPy)."""
    if stream is None:
        return 0
    for attribute in ("cuda_stream", "ptr"):
        stream = getattr(stream, attribute, stream)
    if not isinstance(stream, int) or stream < 0:
        raise InvalidError(f"{stream!r} is no CUDA stream")
    return stream


class Fault(NamedTuple):
    """A block of a load that did not hold."""

    block: int  #: index in the lease
    error: KvtierError


class Load:
    """Copies in flight from leased blocks to pages. Leaving a `with` waits for them, and so does its end."""

    def __init__(self, native: _kvtier.Load, pool: Pool) -> None:
        self._native = native
        self._pool = pool

    @property
    def blocks(self) -> int:
        """Leading blocks whose header and proof held; only these are copied."""
        return self._native.blocks

    @property
    def faults(self) -> Sequence[Fault]:
        return [Fault(block, error_of(code, message)) for block, code, message in self._native.faults]

    def wait_layer(self, layer: int, stream: Any = None) -> None:
        """After it, layer `layer` of all blocks is in the pages, for work on `stream`."""
        if not 0 <= layer < self._pool.ns.layers:
            raise InvalidError(f"layer {layer} of {self._pool.ns.layers}")
        self._native.wait_layer(layer, stream_number(stream))

    @property
    def ended(self) -> bool:
        """Whether finish() would return at once."""
        return self._native.ended

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all copies have ended, at most `timeout` seconds. Whether they have."""
        return self._native.wait(timeout)

    def finish(self) -> int:
        """Waits for all copies, in memory. The leading blocks that may be used: `blocks`, or 0 if the lease was lost meanwhile."""
        return self._native.finish()

    def __await__(self) -> Generator[Any, None, int]:
        return asyncio.to_thread(self.finish).__await__()

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def __repr__(self) -> str:
        return f"<kvtier.Load of {self.blocks} blocks, {'ended' if self.ended else 'under way'}>"


class Lease:
    """A hold on blocks of a prefix that follow one another. Leaving a `with` releases it, and so does its end."""

    def __init__(self, native: _kvtier.Lease, cuda_device: int | None) -> None:
        self._native = native
        self._cuda_device = cuda_device

    @property
    def blocks(self) -> int:
        """Blocks granted: at most what was asked for, perhaps 0; 0 while asked."""
        return self._native.blocks

    def source(self, block: int) -> Tier:
        """The tier that the block was in when it was leased."""
        return self._native.source(block)

    def wait(self, timeout: float | None = None) -> int:
        """Waits until every granted block is in memory or has failed, at most `timeout` seconds.

        The leading blocks that are in memory; 0 once the lease is lost.
        """
        return self._native.wait(timeout)

    @property
    def settled(self) -> bool:
        """Whether wait() would return at once."""
        return self._native.settled

    @property
    def state(self) -> LeaseState:
        return self._native.state

    @property
    def error(self) -> KvtierError | None:
        """Why it is lost; None while it is not."""
        return exception_of(self._native.error)

    def fileno(self) -> int:
        """A descriptor for select() and its like, readable once wait() would return at once. It is the lease's.

        Also with the timeout of Cache.lease_async(), whatever has come by then. Errors: IoError.
        """
        return self._native.fileno()

    async def ready(self, timeout: float | None = None) -> int:
        """As wait(), for asyncio: no thread waits. A lease that is lost gives 0, and `error` says why."""
        if not self.settled:
            await _readable(self.fileno(), timeout)
        return self.wait(0)

    @property
    def held(self) -> bool:
        """Whether the daemon still holds these blocks for us."""
        return self._native.held

    def load(self, pool: Pool, pages: Numbers, stream: Any = None) -> Load:
        """Starts copying the leading blocks that are in memory now, at most as many as `pages` names.

        Errors: StaleError (the lease is lost), InvalidError (the pages).
        """
        return Load(self._native.load(pool._native, pages, stream_number(stream), self._cuda_device), pool)

    def release(self) -> None:
        """Loads under way end first."""
        self._native.release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<kvtier.Lease of {self.blocks} blocks, {self.state.name}>"


class Drops(NamedTuple):
    """Blocks that were not written back, by the reason."""

    no_slot: int  #: the daemon had no room in time
    queue_full: int  #: too much was queued already
    disconnected: int  #: no connection, or it ended
    failed: int  #: pages or GPU were not usable, or the client may only read


class WriteBack:
    """Blocks on their way from pages to the cache. Leaving a `with` waits until the pages are free, and so does its end."""

    def __init__(self, native: _kvtier.WriteBack) -> None:
        self._native = native

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the pages are not read any more. Whether they are free.

        `timeout` None: for copies in memory, and as long for slots as the write-back was given. Else at most so many
        seconds, and nothing is given up for it.
        """
        if timeout is not None:
            return self._native.wait_until(timeout)
        self._native.wait()
        return True

    def hurry(self) -> None:
        """Drops what has no slot now. Does not wait."""
        self._native.hurry()

    @property
    def ended(self) -> bool:
        """Whether wait() would return at once."""
        return self._native.ended

    @property
    def accepted(self) -> int:
        """Blocks that went to the cache. Once it has ended every block is accepted, cached or dropped."""
        return self._native.accepted

    @property
    def cached(self) -> int:
        """Blocks that were there already."""
        return self._native.cached

    @property
    def dropped(self) -> Drops:
        return Drops(*self._native.dropped)

    @property
    def error(self) -> KvtierError | None:
        """Where all of it was refused: why."""
        return exception_of(self._native.error)

    def __await__(self) -> Generator[Any, None, bool]:
        return asyncio.to_thread(self.wait).__await__()

    def __enter__(self) -> WriteBack:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def __repr__(self) -> str:
        return f"<kvtier.WriteBack, {'ended' if self.ended else 'under way'}, {self.accepted} blocks accepted>"


class LayerStore:
    """A write-back whose pages are filled layer by layer. Leaving a `with` without commit() abandons it."""

    def __init__(self, native: _kvtier.LayerStore) -> None:
        self._native = native

    @property
    def blocks(self) -> int:
        """Blocks taken on: at most what was offered."""
        return self._native.blocks

    def layer(self, layer: int, stream: Any = None) -> None:
        """Layer `layer` of all blocks is in the pages: now, or after what is on `stream`. Each once; does not wait.

        Errors: InvalidError (no such layer, or handed over before), StaleError (committed or abandoned).
        """
        self._native.layer(layer, stream_number(stream))

    def commit(self) -> WriteBack:
        """Stores the blocks, once. Does not wait. Errors: StaleError."""
        return WriteBack(self._native.commit())

    def abandon(self) -> None:
        """Nothing of it is left behind. Waits for the copy of the layer that is being copied."""
        self._native.abandon()

    def __enter__(self) -> LayerStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()


async def _readable(fd: int, timeout: float | None) -> None:
    """Until `fd` can be read, or `timeout` seconds are over."""
    # Its own, so that a loop that polls a lease that was closed meanwhile polls nothing of another's.
    mine = os.dup(fd)
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    try:
        loop.add_reader(mine, came.set)
        try:
            await asyncio.wait_for(came.wait(), timeout)
        except (asyncio.TimeoutError, TimeoutError):
            pass
        finally:
            loop.remove_reader(mine)
    finally:
        os.close(mine)
