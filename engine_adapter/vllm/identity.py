"""Whose KV it is: the namespace of one rank of one vLLM engine, and its pages as a pool.

Everything that must be equal for the bytes of two engines to be of use to one another is in the namespace: the weights,
the configuration they are computed with, the rank, and how a block's bytes are laid out. What differs from request to
request (an adapter, a salt, images) covers its blocks instead (covers.py).
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import torch
import vllm

import kvtier

from ..engines.identity import config_facts, digest_of, model_name, raw_shapes
from ..engines.weights import revision_of
from .options import Options, Refusal
from .pages import Layer, layer_of, number_dims, raw_dims

# The longest proof of what a request's blocks depend on besides their tokens.
EXTRA_BYTES_MAX = 1024
# Drafts of these need no KV of a model's own, of which the newest token's would be missing.
_DRAFTS_WITHOUT_KV = ("ngram", "ngram_gpu", "suffix")


@dataclasses.dataclass(frozen=True)
class Rank:
    """One rank's namespace and pages."""

    ns: kvtier.Namespace
    pool: kvtier.Pool
    description: str  # of its pages, for a line in the log


def describe(
    vllm_config: Any, caches_config: Any, kv_caches: dict[str, torch.Tensor], attention: str, options: Options
) -> Rank:
    """attention: the names of its backends. Errors: Refusal, where what this engine does cannot be cached."""
    group = _one_group(caches_config)
    _check_engine(vllm_config)
    layers: dict[int, Layer] = {}  # by address: layers may share one tensor
    tensors: list[torch.Tensor] = []
    for name in group.layer_names:
        tensor = kv_caches[name]
        if tensor.data_ptr() not in layers:
            layers[tensor.data_ptr()] = layer_of(name, tensor, caches_config.num_blocks)
            tensors.append(tensor)
    spec = group.kv_cache_spec
    latent = type(spec).__name__ == "MLAAttentionSpec"
    common = _common(vllm_config, spec, len(layers), latent, options)
    if options.storage == "raw":
        return _raw(common, list(layers.values()), f"{attention} {spec.dtype} {vllm_config.cache_config.cache_dtype}")
    if tensors[0].device.type == "cpu":
        raise Refusal(
            f"kvtier.storage is {options.storage}, and vLLM's pages on the CPU are opaque: they can be stored raw"
        )
    ns = kvtier.Namespace(
        **common,
        layers=len(layers),
        kv_heads=1 if latent else spec.num_kv_heads,
        head_dim_k=spec.head_size,
        head_dim_v=0 if latent else spec.head_size,
        format=options.storage,  # type: ignore[arg-type]
    )
    dims = number_dims(tensors[0].shape, caches_config.num_blocks, latent)
    return Rank(
        ns, kvtier.Pool.from_tensors(ns, tensors, dims), f"as {options.storage}, pages '{dims}' of {spec.dtype}"
    )


def _one_group(caches_config: Any) -> Any:
    groups = caches_config.kv_cache_groups
    if len(groups) != 1:
        raise Refusal(
            f"this model has {len(groups)} groups of KV caches; one is cached here. Start vLLM with "
            "--disable-hybrid-kv-cache-manager"
        )
    kind = type(groups[0].kv_cache_spec).__name__
    if kind not in ("FullAttentionSpec", "MLAAttentionSpec"):
        raise Refusal(f"this model's KV cache is a {kind}; full attention and MLA are cached here")
    return groups[0]


def _check_engine(vllm_config: Any) -> None:
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        raise Refusal(
            "KV scales are calculated from each engine's first request (calculate_kv_scales), so that no two "
            "engines' KV are alike"
        )
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(vllm_config.parallel_config, name, 1) > 1:
            raise Refusal(
                f"{name} is {getattr(vllm_config.parallel_config, name)}: a block's tokens are spread over ranks, "
                "and that is not cached here"
            )
    drafts = getattr(vllm_config, "speculative_config", None)
    if drafts is not None and drafts.method not in _DRAFTS_WITHOUT_KV:
        raise Refusal(
            f"the speculative method is {drafts.method}, whose draft model has KV of its own: that is not cached here"
        )


def _common(vllm_config: Any, spec: Any, layers: int, latent: bool, options: Options) -> dict[str, Any]:
    """What a namespace has in every format."""
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    config = model.hf_config.to_dict() if hasattr(model.hf_config, "to_dict") else vars(model.hf_config)
    computed_with = {
        "config": config_facts(config),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "cache_dtype": str(cache.cache_dtype),
        "load_format": "dummy" if vllm_config.load_config.load_format == "dummy" else "weights",
    }
    ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    replicated = latent and parallel.pipeline_parallel_size == 1
    return dict(
        model=model_name(model.model, options.revision or revision_of(model)),
        tenant=options.tenant,
        block_tokens=spec.block_size,
        rank=0 if replicated else parallel.rank % ranks,
        ranks=0 if replicated else ranks,
        positions=digest_of("vllm", computed_with),
        extra_bytes_max=EXTRA_BYTES_MAX,
    )


def _raw(common: dict[str, Any], layers: list[Layer], kind: str) -> Rank:
    first = layers[0]
    shapes_seen = " ".join(dict.fromkeys(f"axes={layer.axes} sizes={layer.sizes}" for layer in layers))
    # A backend may lay its pages out anew in any version.
    layout = f"vllm {vllm.__version__} {kind} {shapes_seen}"
    if first.pages.device.type == "cpu":
        layout += f" {_instruction_set()}"
    ns = kvtier.Namespace(**common, **raw_shapes([layer.page_bytes for layer in layers]), page_layout=layout)
    pool = kvtier.Pool.from_tensors(ns, [layer.raw() for layer in layers], raw_dims(first))
    return Rank(ns, pool, f"raw, pages {first.sizes} of {kind}")


def _instruction_set() -> str:
    """On the CPU the inside of a page depends on it."""
    info = pathlib.Path("/proc/cpuinfo")
    amx = info.exists() and "amx_tile" in info.read_text(errors="replace")
    return str(torch.backends.cpu.get_cpu_capability()) + ("+amx" if amx else "")
