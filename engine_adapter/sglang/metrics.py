"""What is counted, in SGLang's own metrics and beside them."""

from __future__ import annotations

import dataclasses
from typing import Any

from prometheus_client import Counter
from sglang.srt.observability.metrics_collector import StorageMetrics

from .stats import Counts

_COUNTERS = {
    "loads": "Calls that read pages",
    "pages_loaded": "Pages that were read whole",
    "pages_from_disk": "Of the pages read: those that were on disk",
    "pages_failed": "Pages that were to be read and were computed",
    "bytes_loaded": "Bytes of the records that were read",
    "load_seconds": "Time of all reads together, in seconds",
    "stores": "Calls that wrote pages",
    "pages_stored": "Pages that are new in the cache",
    "pages_dropped": "Pages that found no slot, or no daemon",
    "bytes_stored": "Bytes of the records that were written",
    "store_seconds": "Time of all writes together, in seconds",
    "faults": "Exceptions that were kept from the engine",
}
_LABELS = ("tp_rank", "dp_rank", "pp_rank", "attn_cp_rank")
_counters: dict[str, Counter] = {}  # of the process: a name is registered once, and a backend may be attached again


class Metrics:
    """Counters of one rank. For one thread at a time."""

    def __init__(self, config: Any) -> None:
        if not _counters:
            _counters.update(
                {name: Counter(f"sglang:kvtier_{name}", text, _LABELS) for name, text in _COUNTERS.items()}
            )
        values = [str(getattr(config, label, 0)) for label in _LABELS]
        self._counters = {name: counter.labels(*values) for name, counter in _counters.items()}
        self._told = Counts()

    def add(self, counts: Counts) -> None:
        """What came since the last time."""
        told = dataclasses.asdict(self._told)
        for name, value in dataclasses.asdict(counts).items():
            if value > told[name]:
                self._counters[name].inc(value - told[name])
        self._told = counts


def storage_metrics(
    loaded: list[int], load_bandwidth: list[float], stored: list[int], store_bandwidth: list[float]
) -> StorageMetrics:
    return StorageMetrics(
        prefetch_pgs=loaded, prefetch_bandwidth=load_bandwidth, backup_pgs=stored, backup_bandwidth=store_bandwidth
    )
