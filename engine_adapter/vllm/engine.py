"""What is read of vLLM's own objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

from .planner import Scheduled


def scheduled_in(output: Any) -> Iterator[Scheduled]:
    """The requests of a SchedulerOutput."""
    for new in output.scheduled_new_reqs:
        before = new.num_computed_tokens
        after = before + output.num_scheduled_tokens[new.req_id]
        yield Scheduled(new.req_id, new.block_ids[0], True, before, after)
    cached = output.scheduled_cached_reqs
    for i, request_id in enumerate(cached.req_ids):
        pages = cached.new_block_ids[i]
        before = cached.num_computed_tokens[i]
        after = before + output.num_scheduled_tokens[request_id]
        resumed = request_id in cached.resumed_req_ids
        yield Scheduled(request_id, None if pages is None else pages[0], resumed, before, after)


def attention_of(vllm_config: Any) -> str:
    """The attention backends of the model, whose bytes may differ from others'."""
    layers = get_layers_from_vllm_config(vllm_config, AttentionLayerBase)
    return ",".join(sorted({layer.get_attn_backend().get_name() for layer in layers.values()}))
