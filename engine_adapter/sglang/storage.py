"""kvtier's storage backend for SGLang's hierarchical cache: `module_path` "kvtier.sglang", `class_name` "KvtierStorage".

SGLang makes one in each rank. Its threads ask what is there, read pages into the host's pools before a prompt is
computed, and write pages out of them. With `interface_v1` pages are copied between the pools and kvtierd's memory;
without it SGLang hands each page over as a tensor, which is one copy more.

An exception in one of those threads would cost SGLang more than a page. None leaves this file: what fails is a miss, a
line in the log, and a number. Only what cannot be cached at all ends the start, and says what to change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolTransferResult

import kvtier

from ..engines.faults import FaultLog, harmless
from ..engines.options import Refusal
from .cache import Link, PageCache, Place
from .engine import running_engine
from .identity import KV, computed_with, model_of, namespace_of, rank_of
from .metrics import Metrics, storage_metrics
from .options import Options
from .pages import HostPages, host_pages
from .stats import Counts, Statistics

logger = logging.getLogger(__name__)


def _none_of(keys: Sequence[str], *_: Any, **__: Any) -> list[bool]:
    return [False] * len(keys)


def _none_of_any(transfers: Iterable[Any], *_: Any, **__: Any) -> dict[str, list[bool]]:
    return {transfer.name: [False] * len(transfer.keys or ()) for transfer in transfers}


def _indices(numbers: Iterable[int]) -> torch.Tensor:
    return torch.tensor(list(numbers), dtype=torch.int64)


class KvtierStorage(HiCacheStorage):
    def __init__(self, storage_config: Any, _: Any = None) -> None:
        given = storage_config.extra_config or {}
        self._options = Options.of(given)
        self._config = storage_config
        if getattr(storage_config, "dcp_size", 1) > 1:
            raise Refusal("decode context parallelism spreads a page over ranks, and that is not cached here")
        self._by_tensor = not given.get("interface_v1", 0)
        self._engine = running_engine()
        self._model = model_of(self._engine, storage_config, self._options)
        if self._engine.unread:
            logger.warning(
                "kvtier: how this engine computes KV cannot be read (%s): kvtier.revision stands for all of it",
                self._engine.unread,
            )
        self._positions = computed_with(self._engine)
        self._statistics = Statistics()
        self._fault_log = FaultLog(logger)
        rank, ranks = rank_of(storage_config, KV, same_kind=True)
        self._rank = f"rank {rank} of {ranks}" if ranks else "what every rank holds"
        self._metrics = Metrics(storage_config) if storage_config.enable_storage_metrics else None
        self._link = Link(self._options, f"sglang {rank}", self._statistics)
        self._pools: dict[str, tuple[HostPages, kvtier.Pool, PageCache]] = {}
        self._unknown: dict[str, Refusal] = {}  # pools beside KV that cannot be cached
        self._pages: PageCache | None = None  # KV's, as calls without a pool mean it

    @property
    def counts(self) -> Counts:
        return self._statistics.counts()

    def _fault(self, where: str, fault: Exception) -> None:
        self._statistics.fault()
        self._fault_log.say(where, fault)

    # ---- the pools

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Errors: Refusal, where this engine's KV cannot be cached."""
        super().register_mem_pool_host(mem_pool_host)
        pages = host_pages(mem_pool_host, _indices)
        if self._by_tensor:
            self._pages = PageCache(self._link, self._namespace(pages, [pages.page_bytes], "kv as one tensor"))
        else:
            self._pages = self._open(KV, pages)
        logger.info(
            "kvtier: %s, %s, %d pages of %d tokens, %s, %s; kvtierd at %s %s",
            self._rank,
            self._model,
            pages.count,
            pages.page_size,
            pages.layout,
            "as tensors (interface_v1 is not set)" if self._by_tensor else "in place",
            self._options.socket,
            self._pages.found(),
        )

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(host_pool_name)
        if name == KV:
            return  # register_mem_pool_host() has it
        try:
            pages = host_pages(host_pool, _indices)
            self._open(name, pages)
            logger.info("kvtier: %s beside it, %d pages of %d, %s", name, pages.count, pages.page_size, pages.layout)
        except Refusal as refusal:
            # While SGLang attaches, on_host_pools_registered() refuses; of a pool that comes later nothing is found.
            self._unknown[name] = refusal
            logger.warning("kvtier: %s is not cached: %s", name, refusal)

    def on_host_pools_registered(self) -> None:
        """Errors: Refusal."""
        if self._unknown:
            reasons = "; ".join(f"{name}: {refusal}" for name, refusal in self._unknown.items())
            raise Refusal(f"this model keeps more than KV, and not all of it can be cached: {reasons}")

    def _open(self, name: str, pages: HostPages) -> PageCache:
        ns = self._namespace(pages, [piece.size for piece in pages.pieces], name)
        try:
            pool = pages.pool(ns)
        except kvtier.InvalidError as error:
            raise Refusal(f"pages of this engine cannot be cached: {error}") from error
        cache = PageCache(self._link, ns)
        self._pools[name] = (pages, pool, cache)
        return cache

    def _namespace(self, pages: HostPages, sizes: list[int], name: str) -> kvtier.Namespace:
        layout = f"sglang {self._engine.version} {name}, {pages.layout}"
        rank = rank_of(self._config, name, same_kind=pages.kind is type(self.mem_pool_host))
        return namespace_of(sizes, pages.page_size, layout, rank, self._model, self._positions, self._options)

    # ---- pages in the pools

    @harmless(lambda *_, **__: 0)
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        return self._pages.leading(keys) if self._pages is not None else 0

    @harmless(_none_of)
    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._move(KV, keys, host_indices, PageCache.load)

    @harmless(_none_of)
    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._move(KV, keys, host_indices, PageCache.store)

    @harmless(lambda *_, **__: PoolTransferResult.empty())
    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        pages = self.batch_exists(keys)
        found: dict[Any, int] = {KV: pages} if pages else {}
        restorable = list(range(1, pages + 1))
        for transfer in pool_transfers or ():
            lengths = self._restorable(transfer, keys[:pages])
            if lengths is None:
                continue  # it says nothing of how much KV can be used
            if lengths:
                found[transfer.name] = max(lengths)
            restorable = [length for length in restorable if length in lengths]
        return PoolTransferResult(restorable[-1] if restorable else 0, found, restorable)

    @harmless(_none_of_any)
    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        return {transfer.name: self._transfer(transfer, PageCache.load) for transfer in transfers}

    @harmless(_none_of_any)
    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        return {transfer.name: self._transfer(transfer, PageCache.store) for transfer in transfers}

    def _restorable(self, transfer: Any, keys: Sequence[str]) -> set[int] | None:
        """The numbers of leading pages with which this pool has what it needs; None: it is not asked."""
        if transfer.hit_policy not in (PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES):
            return None
        entry = self._pools.get(str(transfer.name))
        if entry is None:
            return set()
        if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
            return set(range(1, entry[2].leading(keys) + 1))
        window = max(1, len(transfer.keys or ()))
        lengths, run = set(), 0
        for pages, key in enumerate(keys, 1):
            run = run + 1 if entry[2].present(key) else 0
            if run >= min(window, pages):
                lengths.add(pages)
        return lengths

    def _transfer(
        self, transfer: Any, move: Callable[[PageCache, Sequence[str], Sequence[Place]], list[bool]]
    ) -> list[bool]:
        keys = list(transfer.keys or ())
        try:
            return self._move(str(transfer.name), keys, transfer.host_indices, move)
        except Exception as fault:
            self._fault(f"a transfer of {transfer.name}", fault)  # which costs the others nothing
            return [False] * len(keys)

    def _move(
        self,
        name: str,
        keys: Sequence[str],
        indices: Any,
        move: Callable[[PageCache, Sequence[str], Sequence[Place]], list[bool]],
    ) -> list[bool]:
        if not keys:
            return []
        if name not in self._pools:
            raise ValueError(f"the pool {name} is not cached")
        pages, pool, cache = self._pools[name]
        return move(cache, keys, [(pool, number) for number in pages.numbers(indices, len(keys))])

    # ---- pages as tensors

    @harmless(lambda *_, **__: False)
    def exists(self, key: str) -> bool:
        return self._pages is not None and self._pages.present(key)

    @harmless(lambda *_, **__: None)
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        return self.batch_get([key], [target_location])[0]

    @harmless(lambda keys, *_, **__: [None] * len(keys))
    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        """Into the tensors given; None for the first page that is not there and for all behind it."""
        places = [self._place(tensor) for tensor in target_locations or ()]
        good = self._tensors().load(keys, places)
        return [tensor if come else None for tensor, come in zip(target_locations, good)]

    @harmless(lambda *_, **__: False)
    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    @harmless(lambda *_, **__: False)
    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        return all(self._tensors().store(keys, [self._place(tensor.contiguous()) for tensor in values]))

    def _tensors(self) -> PageCache:
        if self._pages is None or not self._by_tensor:
            raise ValueError("pages are read and written in place (interface_v1), and not as tensors")
        return self._pages

    def _place(self, tensor: torch.Tensor) -> Place:
        """A tensor as a pool of one page. It is written to in place, so it lies without gaps."""
        if not tensor.is_contiguous():
            raise ValueError(f"a page's tensor has the strides {tensor.stride()}")
        return kvtier.Pool.from_tensors(self._tensors().ns, [tensor.view(torch.uint8).view(1, -1)], "block byte"), 0

    # ---- the rest

    def clear(self) -> None:
        logger.warning(
            "kvtier: the cache is kvtierd's and others may use it, so that SGLang clears nothing: kvtierctl drop does"
        )

    @harmless(lambda: None)
    def get_stats(self) -> Any:
        if self._metrics is not None:
            self._metrics.add(self.counts)
        return storage_metrics(*self._statistics.taken())

    @harmless(lambda: None)
    def close(self) -> None:
        self._link.client.close()
        logger.info("kvtier: %s has ended: %s", self._rank, self.counts)
