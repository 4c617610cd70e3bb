"""What is counted: sums of one rank since its start, and what SGLang's own metrics take in between."""

from __future__ import annotations

import collections
import dataclasses
import threading

_CALLS_KEPT = 1000  # of which SGLang's histograms have not heard yet


@dataclasses.dataclass
class Counts:
    loads: int = 0
    pages_loaded: int = 0
    pages_from_disk: int = 0
    pages_failed: int = 0  # were there when they were looked up, and were computed
    bytes_loaded: int = 0
    load_seconds: float = 0.0
    stores: int = 0
    pages_stored: int = 0  # new in the cache
    pages_dropped: int = 0  # found no room, or no daemon
    bytes_stored: int = 0
    store_seconds: float = 0.0
    faults: int = 0  # exceptions that were kept from the engine


class Calls:
    """Pages and GB/s of each call of one direction."""

    def __init__(self) -> None:
        self.pages: collections.deque[int] = collections.deque(maxlen=_CALLS_KEPT)
        self.bandwidth: collections.deque[float] = collections.deque(maxlen=_CALLS_KEPT)

    def add(self, pages: int, bytes_moved: int, seconds: float) -> None:
        if pages > 0:
            self.pages.append(pages)
            self.bandwidth.append(bytes_moved / max(seconds, 1e-9) / 1e9)

    def taken(self) -> tuple[list[int], list[float]]:
        pages, bandwidth = list(self.pages), list(self.bandwidth)
        self.pages.clear()
        self.bandwidth.clear()
        return pages, bandwidth


class Statistics:
    """For any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()
        self._loads = Calls()
        self._stores = Calls()

    def loaded(self, pages: int, from_disk: int, failed: int, bytes_loaded: int, seconds: float) -> None:
        with self._lock:
            self._counts.loads += 1
            self._counts.pages_loaded += pages
            self._counts.pages_from_disk += from_disk
            self._counts.pages_failed += failed
            self._counts.bytes_loaded += bytes_loaded
            self._counts.load_seconds += seconds
            self._loads.add(pages, bytes_loaded, seconds)

    def stored(self, pages: int, dropped: int, bytes_stored: int, seconds: float) -> None:
        with self._lock:
            self._counts.stores += 1
            self._counts.pages_stored += pages
            self._counts.pages_dropped += dropped
            self._counts.bytes_stored += bytes_stored
            self._counts.store_seconds += seconds
            self._stores.add(pages, bytes_stored, seconds)

    def fault(self) -> None:
        with self._lock:
            self._counts.faults += 1

    def counts(self) -> Counts:
        with self._lock:
            return dataclasses.replace(self._counts)

    def taken(self) -> tuple[list[int], list[float], list[int], list[float]]:
        """Pages and bandwidth of loads, and of stores, since they were last taken."""
        with self._lock:
            return (*self._loads.taken(), *self._stores.taken())
