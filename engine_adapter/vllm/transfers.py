"""The worker's half: carries out what the scheduler's half ordered, and says what became of it.

Nothing here waits for the daemon: leases and copies are begun, and looked at again in each step. The one wait is for
copies in memory, before pages that are being read are given to others.

Invariants
- Every load that was ordered is reported as received once, whatever became of it, and every page that it did not fill
  is reported as failed, no later than that.
- Every request that was ordered to be stored is reported as sent once, after it has ended and nothing reads its pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .orders import Growth, Orders, Transfer


class Store(Protocol):
    """Blocks on their way from pages to the cache."""

    def ended(self) -> bool: ...
    def wait(self) -> None: ...
    def outcome(self) -> tuple[int, int]:
        """Blocks that are new in the cache, and blocks that were dropped. After ended()."""


class Load(Protocol):
    """Blocks on their way from the cache to pages."""

    def ended(self) -> bool: ...
    def finish(self) -> tuple[int, int]:
        """Leading blocks that came whole, and how many of them were on disk. After ended()."""


class Backend(Protocol):
    """One rank's cache and pages."""

    def make_prefix(self, covers: list[tuple[int, int, bytes]], answer: int) -> Any:
        """Without tokens; `answer` tokens are to be generated at most, where that is known."""

    def load(self, prefix: Any, first: int, pages: Sequence[int]) -> Load: ...
    def store(self, prefix: Any, first: int, pages: Sequence[int]) -> Store: ...


@dataclass(slots=True)
class Counts:
    """Since they were last taken."""

    loads: int = 0
    blocks_loaded: int = 0
    blocks_from_disk: int = 0
    blocks_failed: int = 0
    load_seconds: float = 0.0
    stores: int = 0
    blocks_stored: int = 0
    blocks_dropped: int = 0
    wait_seconds: float = 0.0  # that steps waited for copies out of pages that they were to write to
    faults: int = 0  # exceptions that were kept from the engine


@dataclass(slots=True)
class _Loading:
    transfer: Transfer
    load: Load | None  # None: it could not be begun
    began: float


@dataclass(slots=True)
class _Request:
    prefix: Any
    storing: list[tuple[Store, list[int]]] = field(default_factory=list)  # with the pages that it reads
    to_report: bool = False  # stores were ordered


class Transfers:
    def __init__(
        self, backend: Backend, clock: Callable[[], float], on_fault: Callable[[str, Exception], None]
    ) -> None:
        """on_fault: told of exceptions where they cost a load or a store and nothing else."""
        self._backend = backend
        self._clock = clock
        self._on_fault = on_fault
        self._requests: dict[str, _Request] = {}
        self._ending: set[str] = set()  # have ended, and their pages may still be read
        self._loading: list[_Loading] = []
        self._received: set[str] = set()
        self._failed: set[int] = set()
        self.counts = Counts()

    def __len__(self) -> int:
        """Requests of which anything is known, or loaded."""
        return len(self._requests.keys() | {loading.transfer.request for loading in self._loading})

    # ---- a step, in this order

    def spare(self, fresh: Iterable[int] | None) -> None:
        """These pages (None: any) are written to next: returns when no store reads them."""
        pages = None if fresh is None else set(fresh)
        for request in self._requests.values():
            for store, read in request.storing:
                if (pages is None or not pages.isdisjoint(read)) and not store.ended():
                    began = self._clock()
                    store.wait()
                    self.counts.wait_seconds += self._clock() - began

    def learn(self, orders: Orders) -> None:
        for request_id, growth in orders.growth.items():
            try:
                self._learn(request_id, growth)
            except Exception as fault:
                # Without its tokens it can neither be loaded nor stored.
                self._fault(f"tokens of {request_id}", fault)
                self._requests.setdefault(request_id, _Request(None)).prefix = None
        for store in orders.stores:
            self._requests.setdefault(store.request, _Request(None)).to_report = True

    def begin_loads(self, loads: Iterable[Transfer]) -> None:
        for transfer in loads:
            load = None
            try:
                prefix = self._prefix(transfer)
                if prefix is not None:
                    load = self._backend.load(prefix, transfer.first, transfer.pages)
            except Exception as fault:
                self._fault(f"a load of {transfer.request}", fault)
            self._loading.append(_Loading(transfer, load, self._clock()))

    def begin_stores(self, stores: Iterable[Transfer]) -> None:
        """After the step's work is on its stream."""
        for transfer in stores:
            try:
                prefix = self._prefix(transfer)
                if prefix is None:
                    continue
                store = self._backend.store(prefix, transfer.first, transfer.pages)
                self._requests[transfer.request].storing.append((store, transfer.pages))
                self.counts.stores += 1
            except Exception as fault:
                self._fault(f"a store of {transfer.request}", fault)

    def results(
        self, ended: Iterable[str], forgotten: Iterable[str] = (), silent: Iterable[str] = ()
    ) -> tuple[set[str], set[str]]:
        """Requests whose pages nothing reads any more, of those that have ended in this step or before, but for the
        silent; and requests whose loads are over."""
        self._look_at_loads()
        self._look_at_stores()
        for request_id in silent:
            if request_id in self._requests:
                self._requests[request_id].to_report = False
        for request_id in (*ended, *forgotten):
            if request_id in self._requests:
                self._ending.add(request_id)
        sent = set()
        for request_id in list(self._ending):
            request = self._requests[request_id]
            if request.storing or any(loading.transfer.request == request_id for loading in self._loading):
                continue
            if request.to_report:
                sent.add(request_id)
            self._ending.discard(request_id)
            del self._requests[request_id]
        received, self._received = self._received, set()
        return sent, received

    def take_failed_pages(self) -> set[int]:
        """Pages that loads did not fill; after results(), in the same step."""
        failed, self._failed = self._failed, set()
        return failed

    # ---- the end

    def shut_down(self) -> None:
        """Returns when nothing reads or writes pages."""
        for request in self._requests.values():
            for store, _ in request.storing:
                store.wait()
        for loading in self._loading:
            if loading.load is not None:
                loading.load.finish()
        self._requests.clear()
        self._loading.clear()

    # ----

    def _learn(self, request_id: str, growth: Growth) -> None:
        request = self._requests.get(request_id)
        if request is None:
            request = self._requests[request_id] = _Request(self._backend.make_prefix(growth.covers, growth.answer))
        if request.prefix is None:
            if growth.known != 0:
                return
            request.prefix = self._backend.make_prefix(growth.covers, growth.answer)
        if request.prefix.tokens != growth.known:
            raise ValueError(f"{request.prefix.tokens} tokens are known, and {growth.known} were said to be")
        request.prefix.append(memoryview(growth.tokens).cast("I"))

    def _prefix(self, transfer: Transfer) -> Any:
        """None: not all of its tokens are known."""
        request = self._requests.get(transfer.request)
        if request is None or request.prefix is None or request.prefix.blocks < transfer.end:
            return None
        return request.prefix

    def _look_at_loads(self) -> None:
        still = []
        for loading in self._loading:
            good = from_disk = 0
            try:
                if loading.load is not None:
                    if not loading.load.ended():
                        still.append(loading)
                        continue
                    good, from_disk = loading.load.finish()
            except Exception as fault:
                self._fault(f"a load of {loading.transfer.request}", fault)
                good = from_disk = 0
            pages = loading.transfer.pages
            self._failed.update(pages[good:])
            self._received.add(loading.transfer.request)
            self.counts.loads += 1
            self.counts.blocks_loaded += good
            self.counts.blocks_from_disk += from_disk
            self.counts.blocks_failed += len(pages) - good
            self.counts.load_seconds += self._clock() - loading.began
        self._loading = still

    def _look_at_stores(self) -> None:
        for request in self._requests.values():
            still = []
            for store, pages in request.storing:
                if not store.ended():
                    still.append((store, pages))
                    continue
                stored, dropped = store.outcome()
                self.counts.blocks_stored += stored
                self.counts.blocks_dropped += dropped
            request.storing = still

    def _fault(self, what: str, fault: Exception) -> None:
        self.counts.faults += 1
        self._on_fault(what, fault)
