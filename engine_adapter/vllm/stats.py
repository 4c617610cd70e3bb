"""What kvtier did for this engine, in vLLM's log and metrics."""

from __future__ import annotations

import dataclasses
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from .transfers import Counts

_COUNTERS = {
    "loads": "Loads of requests' blocks",
    "blocks_loaded": "Blocks loaded",
    "blocks_from_disk": "Of the blocks loaded: those that were on disk",
    "blocks_failed": "Blocks that were to be loaded and were computed",
    "bytes_loaded": "Bytes of the records that were loaded",
    "load_seconds": "Time of all loads together, in seconds",
    "stores": "Stores begun",
    "blocks_stored": "Blocks that are new in the cache",
    "blocks_dropped": "Blocks that found no slot, or no daemon",
    "bytes_stored": "Bytes of the records that were stored",
    "wait_seconds": "Time that steps waited for copies out of pages that they were to write to, in seconds",
    "faults": "Exceptions that were kept from the engine",
}


class KvtierStats(KVConnectorStats):
    """Sums of an interval, over all ranks."""

    @classmethod
    def taken(cls, counts: Counts, record_bytes: int) -> KvtierStats | None:
        """What `counts` has, which begins anew; none where nothing happened."""
        data: dict[str, Any] = dataclasses.asdict(counts)
        for field in dataclasses.fields(counts):
            setattr(counts, field.name, field.default)
        data["bytes_loaded"] = data["blocks_loaded"] * record_bytes
        data["bytes_stored"] = data["blocks_stored"] * record_bytes
        stats = cls(data=data)
        return None if stats.is_empty() else stats

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        return {name: round(self.data.get(name, 0), 3) for name in _COUNTERS}

    def is_empty(self) -> bool:
        return not any(self.data.values())


class KvtierPromMetrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._of_engine = {
            name: self._per_engine(
                self._counter_cls(name=f"vllm:kvtier_{name}", documentation=text, labelnames=labelnames)
            )
            for name, text in _COUNTERS.items()
        }

    def _per_engine(self, counter: Any) -> dict[int, Any]:
        return {engine: counter.labels(*values) for engine, values in self.per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, of_engine in self._of_engine.items():
            if value := transfer_stats_data.get(name, 0):
                of_engine[engine_idx].inc(value)
