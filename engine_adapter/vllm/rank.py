"""One rank's connection to kvtierd, its cache and its pages."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import kvtier

from ..engines.connection import found
from .identity import Rank
from .options import Options

# Slots that are at hand when a step has computed its blocks: of some milliseconds of copies, so that these do not wait for
# the daemon to lend more.
_SLOTS_AHEAD_BYTES = 256 << 20
_SLOTS_AHEAD = (16, 1024)
# A prompt's blocks wait in their pages, of which vLLM has as many as it can pay for: none is left out for want of a place
# in the queue.
_QUEUED_MAX = 1 << 20


class RankBackend:
    """What Transfers asks for."""

    def __init__(self, rank: Rank, options: Options) -> None:
        device = rank.pool.device
        self._cuda = int(device.removeprefix("cuda:")) if device.startswith("cuda:") else None
        self._options = options
        self._pool = rank.pool
        least, most = _SLOTS_AHEAD
        self._client = kvtier.Client(
            options.socket,
            name=f"vllm rank {rank.ns.rank}",
            cuda_device=self._cuda,
            slots_ahead=max(least, min(most, _SLOTS_AHEAD_BYTES // rank.ns.record_bytes)),
            write_backs_queued_max=_QUEUED_MAX,
            slot_wait=options.slot_wait_s,
        )
        self._cache = self._client.open(rank.ns)
        self.record_bytes = rank.ns.record_bytes

    def found(self) -> str:
        """Whether the daemon is there and takes this namespace, for a line in the log."""
        return found(self._client, self._cache, self._options.connect_timeout_s, "block")

    def close(self) -> None:
        self._cache.close()
        self._client.close()

    def make_prefix(self, covers: list[tuple[int, int, bytes]], answer: int) -> kvtier.Prefix:
        prefix = self._cache.prefix().expect_answer(answer)
        for first, end, extra in covers:
            prefix.cover(first, end, extra)
        return prefix

    def load(self, prefix: kvtier.Prefix, first: int, pages: Sequence[int]) -> RankLoad:
        lease = self._cache.lease_async(prefix, first + len(pages), first=first, timeout=self._options.load_timeout_s)
        return RankLoad(lease, self._pool, list(pages))

    def store(self, prefix: kvtier.Prefix, first: int, pages: Sequence[int]) -> RankStore:
        stream = torch.cuda.current_stream(self._cuda) if self._cuda is not None else None
        return RankStore(self._cache.write_back(prefix, first, self._pool, list(pages), stream))


class RankLoad:
    """A lease, and when its blocks are in memory, or its time is over, the copies out of it."""

    def __init__(self, lease: kvtier.Lease, pool: kvtier.Pool, pages: list[int]) -> None:
        self._lease = lease
        self._pool = pool
        self._pages = pages
        self._load: kvtier.Load | None = None
        self._from_disk: list[bool] = []
        self._lost = False

    def ended(self) -> bool:
        if self._load is None and not self._lost and self._lease.settled:
            try:
                # Of its own stream: nobody computes on these pages before the load has ended.
                self._load = self._lease.load(self._pool, self._pages)
                # While they are copied, rather than when a request waits for nothing else.
                self._from_disk = [
                    self._lease.source(block) in (kvtier.Tier.disk, kvtier.Tier.remote) for block in range(self._load.blocks)
                ]
            except kvtier.KvtierError:
                self._lost = True
        return self._lost or (self._load is not None and self._load.ended)

    def finish(self) -> tuple[int, int]:
        good = self._load.finish() if self._load is not None else 0
        self._lease.release()
        return good, sum(self._from_disk[:good])


class RankStore:
    def __init__(self, write: kvtier.WriteBack) -> None:
        self._write = write

    def ended(self) -> bool:
        return self._write.ended

    def wait(self) -> None:
        self._write.hurry()  # the engine needs the pages: what has no slot by now is dropped
        self._write.wait()

    def outcome(self) -> tuple[int, int]:
        return self._write.accepted, sum(self._write.dropped)
