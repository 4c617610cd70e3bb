"""Whose KV it is: the namespace of one host pool of one rank of one SGLang engine.

Everything that must be equal for the bytes of two engines to be of use to one another is in the namespace. A page is
named by SGLang's own hash of it: SHA-256 over its tokens and its parent's hash, which begins with the request's cache
salt and what it is classified by, its adapter among that.
"""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import kvtier

from ..engines.identity import digest_of, model_name, raw_shapes
from ..engines.options import Refusal
from ..engines.weights import folder_digest, revision_of
from .options import Options

if TYPE_CHECKING:
    from .engine import Engine

DIGEST_BYTES = 32
KV = "kv"
# Pools beside KV that every tensor-parallel rank of a model with MLA holds alike.
_REPLICATED = ("indexer", "draft_indexer")


def model_of(engine: Engine, config: Any, options: Options) -> str:
    """Name and revision of the weights. Reads them once, where they are a local folder. Errors: Refusal."""
    revision = options.revision
    if not revision and engine.weights is not None:
        revision = revision_of(engine.weights)
    if not revision or revision == "unknown":
        why = f" ({engine.unread})" if engine.unread else ""
        raise Refusal(
            f'which weights this engine runs cannot be read{why}. Add "kvtier.revision" to '
            "--hicache-storage-backend-extra-config"
        )
    return model_name(engine.model or config.model_name or "model", revision)


def computed_with(engine: Engine) -> str:
    """A digest of all that KV of the same weights depends on."""
    facts = dict(engine.computed_with)
    # The pool of a speculative engine has its draft's layers too; scales are of a file.
    for name in ("speculative_draft_model_path", "quantization_param_path"):
        place = pathlib.Path(str(facts.get(name) or "/nowhere"))
        if place.is_dir():
            facts[name] = folder_digest(str(place))
        elif place.is_file():
            facts[name] = hashlib.sha256(place.read_bytes()).hexdigest()
    return digest_of("sglang", facts)


def rank_of(config: Any, pool: str, same_kind: bool) -> tuple[int, int]:
    """Number and count of the ranks that hold this pool's parts; 0 of 0 where every rank holds the same.

    `same_kind`: whether the pool is of the class that KV is in.
    """
    replicated = bool(config.is_mla_model) and (same_kind or pool in _REPLICATED)
    parts = [(config.pp_rank, config.pp_size), (config.attn_cp_rank, config.attn_cp_size)]
    if not replicated:
        parts.append((config.tp_rank, config.tp_size))
    rank, ranks = 0, 1
    for number, count in parts:
        rank, ranks = rank * count + number, ranks * count
    return (0, 0) if replicated and ranks == 1 else (rank, ranks)


def namespace_of(
    sizes: Iterable[int],
    page_size: int,
    layout: str,
    rank: tuple[int, int],
    model: str,
    positions: str,
    options: Options,
) -> kvtier.Namespace:
    """sizes: of a page's pieces. Errors: Refusal."""
    try:
        return kvtier.Namespace(
            **raw_shapes(tuple(sizes)),
            model=model,
            tenant=options.tenant,
            block_tokens=page_size,
            rank=rank[0],
            ranks=rank[1],
            positions=positions,
            page_layout=layout,
            digest_bytes=DIGEST_BYTES,
        )
    except kvtier.InvalidError as error:
        raise Refusal(f"pages of this engine cannot be cached: {error}") from error
