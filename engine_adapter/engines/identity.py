"""Whose KV it is, as far as engines say it alike."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import kvtier

# Of a model's configuration: what two copies of one model may have different.
_OF_A_COPY = ("_name_or_path", "transformers_version")


def model_name(name: str, revision: str) -> str:
    """`name`: of the model, or its path."""
    return f"{pathlib.PurePath(name).name}@{revision}"


def config_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a model's configuration its KV may depend on."""
    return {name: value for name, value in config.items() if name not in _OF_A_COPY}


def digest_of(engine: str, facts: Mapping[str, Any]) -> str:
    """Of all that the KV of the same weights depends on in this kind of engine."""
    return f"{engine}:" + hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def raw_shapes(sizes: Sequence[int]) -> dict[str, Any]:
    """Of a namespace whose blocks have parts of so many bytes each, stored as they are."""
    if len(set(sizes)) == 1:
        return dict(layers=len(sizes), format="raw", raw_bytes=sizes[0])
    return dict(layer_shapes=tuple(kvtier.LayerShape(format="raw", raw_bytes=size) for size in sizes))
