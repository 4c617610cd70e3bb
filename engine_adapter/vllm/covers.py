"""What a request's KV depends on besides its tokens, as bytes that cover those of its blocks that depend on it."""

from __future__ import annotations

import hashlib
import pathlib
from typing import Any

from ..engines.weights import folder_digest

Covers = list[tuple[int, int, bytes]]


def _digest(*parts: object) -> bytes:
    # Each with its length, so that no two lists of parts are one text.
    digest = hashlib.sha256()
    for part in parts:
        text = str(part).encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.digest()


def adapter_identity(adapter: Any) -> tuple[str, str]:
    """Name and, of a local adapter, digest of a LoRA request; else its path."""
    path = str(getattr(adapter, "lora_path", ""))
    return str(adapter.lora_name), folder_digest(path) if path and pathlib.Path(path).is_dir() else path


def covers_of(request: Any, tokens_max: int) -> Covers:
    """First token, token behind the last, bytes. An adapter and a salt cover all blocks; an image those that have one
    of its tokens."""
    covers: Covers = []
    if (adapter := getattr(request, "lora_request", None)) is not None:
        covers.append((0, tokens_max, b"lora" + _digest(*adapter_identity(adapter))))
    if salt := getattr(request, "cache_salt", None):
        covers.append((0, tokens_max, b"salt" + _digest(salt)))
    for feature in getattr(request, "mm_features", None) or ():
        place = feature.mm_position
        at = (place.offset, place.offset + place.length)
        identity = getattr(feature, "identifier", None) or getattr(feature, "mm_hash", None)
        covers.append((*at, b"mm" + _digest(feature.modality, identity, *at)))
    return covers


def is_cacheable(request: Any) -> bool:
    """Whether its tokens are all ids, and stay what they are: embeddings that a user gives are none, and a request
    whose input goes on streaming takes tokens back."""
    return (
        getattr(request, "prompt_embeds", None) is None
        and request.prompt_token_ids is not None
        and not getattr(request, "resumable", False)
    )
