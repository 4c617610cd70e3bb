"""kvtier's connector for vLLM: `kv_connector="KvtierConnector"`, `kv_connector_module_path="kvtier.vllm"`.

vLLM makes one in its scheduler and one in each worker. The scheduler's looks prompts up and decides (planner.py); a
worker's copies (transfers.py). A worker tells the scheduler's its namespace in vLLM's handshake, so that nobody has to
guess how another process lays out its pages.

An exception in a callback of a worker would end the engine. None leaves this file: what fails is a miss, a line in the
log, and a number in the metrics. Only a mistake in the configuration ends the start, and says what to change.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.logger import init_logger

from ..engines.faults import FaultLog, harmless
from .covers import covers_of, is_cacheable
from .engine import attention_of, scheduled_in
from .handoff import Handoffs
from .identity import describe
from .lookup import Lookup, fields_of
from .options import Options, check_failure_policy
from .orders import Orders
from .planner import Planner
from .rank import RankBackend
from .stats import KvtierPromMetrics, KvtierStats
from .transfers import Transfers

if TYPE_CHECKING:
    import torch

logger = init_logger("vllm.kvtier")
_PAUSE_IN_TIMEOUTS = 10


@dataclass
class StepMetadata(KVConnectorMetadata):
    orders: Orders


@dataclass
class RankMetadata(KVConnectorHandshakeMetadata):
    namespace: dict[str, Any]  # as lookup.fields_of() has it


class KvtierConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        check_failure_policy(transfer)
        self._options = Options.of(transfer.kv_connector_extra_config or {})
        self._config = vllm_config
        self._caches_config = kv_cache_config
        self._fault_log = FaultLog(logger)
        # Of the scheduler.
        self._lookup: Lookup | None = None
        self._planner: Planner | None = None
        self._handoffs: Handoffs | None = None
        # Of a worker.
        self._backend: RankBackend | None = None
        self._transfers: Transfers | None = None
        self._namespace: dict[str, Any] | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # what is dropped is a miss

    @property
    def prefer_cross_layer_blocks(self) -> bool:
        return False

    def _fault(self, where: str, fault: Exception) -> None:
        if self._transfers is not None:
            self._transfers.counts.faults += 1
        self._fault_log.say(where, fault)

    # ---- a worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        rank = describe(self._config, self._caches_config, kv_caches, attention_of(self._config), self._options)
        self._backend = RankBackend(rank, self._options)
        self._transfers = Transfers(self._backend, time.monotonic, self._fault_log.say)
        self._namespace = fields_of(rank.ns)
        of = f"rank {rank.ns.rank} of {rank.ns.ranks}" if rank.ns.ranks else "what every rank holds"
        logger.info(
            "kvtier: %s, %d layers, blocks of %d tokens, stored %s; kvtierd at %s %s",
            of,
            rank.ns.layers,
            rank.ns.block_tokens,
            rank.description,
            self._options.socket,
            self._backend.found(),
        )

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return RankMetadata(self._namespace) if self._namespace is not None else None

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._spare(connector_metadata)  # before any work of the step: start_load_kv may come behind it

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        self._spare(kv_connector_metadata)

    @harmless(lambda *_, **__: None)
    def _spare(self, metadata: Any) -> None:
        if isinstance(metadata, StepMetadata) and self._transfers is not None:
            fresh, metadata.orders.fresh = metadata.orders.fresh, []
            self._transfers.spare(fresh)

    @harmless(lambda *_, **__: None)
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        # May come more than once in a step, and before or behind the step's work.
        if (orders := self._orders()) is not None and self._transfers is not None:
            self._transfers.learn(orders)
            loads, orders.loads, orders.growth = orders.loads, [], {}
            self._transfers.begin_loads(loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        return  # loads are between steps

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        return  # blocks are stored behind the step, all layers in one copy

    @harmless(lambda *_, **__: None)
    def wait_for_save(self) -> None:
        if (orders := self._orders()) is not None and self._transfers is not None:
            self.start_load_kv(None)
            stores, orders.stores = orders.stores, []
            self._transfers.begin_stores(stores)

    @harmless(lambda *_, **__: (None, None))
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        if self._transfers is None:
            return None, None
        self.start_load_kv(None)
        orders = self._orders() or Orders()
        sent, received = self._transfers.results(finished_req_ids, orders.forgotten, orders.silent)
        return sent or None, received or None

    @harmless(lambda *_, **__: set())
    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._transfers.take_failed_pages() if self._transfers is not None else set()

    @harmless(lambda *_, **__: None)
    def get_kv_connector_stats(self) -> KvtierStats | None:
        if self._transfers is None or self._backend is None:
            return None
        return KvtierStats.taken(self._transfers.counts, self._backend.record_bytes)

    @harmless(lambda *_, **__: None)
    def shutdown(self) -> None:
        if self._transfers is not None:
            self._transfers.shut_down()
        if self._backend is not None:
            self._backend.close()
        if self._lookup is not None:
            self._lookup.close()

    def _orders(self) -> Orders | None:
        metadata = self._connector_metadata
        return metadata.orders if isinstance(metadata, StepMetadata) else None

    # ---- the scheduler

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        ranks = [m.namespace for _, m in sorted(metadata.items()) if isinstance(m, RankMetadata)]
        if not ranks:
            return
        self._lookup = lookup = Lookup(ranks, self._options)
        tokens_max = 1 << 30
        self._planner = Planner(
            lookup.block_tokens,
            make_prefix=lookup.prefix,
            match=lookup.match,
            look_up=lookup.look_up,
            covers_of=lambda request: covers_of(request, tokens_max),
            prefetch=lookup.prefetch,
            least_blocks=self._options.least_blocks,
            clock=time.monotonic,
            late_after_s=0.9 * self._options.load_timeout_s,
            pause_s=_PAUSE_IN_TIMEOUTS * self._options.load_timeout_s,
            on_fault=self._fault,
        )
        self._handoffs = Handoffs(
            self._config.kv_transfer_config.kv_role,
            lookup.namespace,
            lookup.block_tokens,
            time.monotonic,
            self._options.handoff_timeout_s,
            self._options.load_timeout_s,
            lookup.is_open,
        )
        logger.info("kvtier: the scheduler looks up %d namespace(s) of %s", lookup.ranks, lookup.model)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        self.set_xfer_handshake_metadata(dict(enumerate(m for _, m in sorted(metadata.items()))))

    @harmless(lambda *_, **__: None)
    def on_new_request(self, request: Any) -> None:
        if self._planner is not None and self._options.prefetch and is_cacheable(request):
            self._planner.arrived(request)

    @harmless(lambda *_, **__: (0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if self._planner is None or self._handoffs is None or not is_cacheable(request):
            return 0, False
        planner = self._planner
        if self._handoffs.holds_back(
            request, lambda: num_computed_tokens + planner.loadable_tokens(request, num_computed_tokens)
        ):
            return None, False
        tokens = planner.loadable_tokens(request, num_computed_tokens)
        return tokens, tokens > 0

    @harmless(lambda *_, **__: None)
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self._planner is not None and num_external_tokens > 0:
            self._planner.admitted(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        if self._planner is None:
            return StepMetadata(Orders())
        return StepMetadata(self._planner.orders(scheduled_in(scheduler_output)))

    @harmless(lambda *_, **__: None)
    def update_connector_output(self, connector_output: Any) -> None:
        if self._planner is None:
            return
        if connector_output.invalid_block_ids:
            self._planner.failed_pages(set(connector_output.invalid_block_ids))
        self._planner.landed(connector_output.finished_recving or ())

    @harmless(lambda *_, **__: (False, None))
    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        if self._planner is None or self._handoffs is None:
            return False, None
        return self._planner.ended(request), self._handoffs.ended(request)

    # ---- metrics

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvtierStats:
        return KvtierStats(data=data) if data else KvtierStats()

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> KvtierPromMetrics:
        return KvtierPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
