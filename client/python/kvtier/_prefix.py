"""Sequences as a namespace sees them."""

from __future__ import annotations

from typing import Any

from . import _kvtier
from ._namespace import Namespace

#: Token ids: a sequence, or an array of one dimension, of integers (a list, NumPy, torch, a buffer).
Tokens = Any


class Prefix:
    """A sequence's whole blocks. It grows with its sequence and hashes no block twice; copy() it where one branches."""

    def __init__(self, ns: Namespace, tokens: Tokens = (), *, _native: _kvtier.Prefix | None = None) -> None:
        self._ns = ns
        self._native = _kvtier.Prefix(ns._native) if _native is None else _native
        if _native is None and len(tokens) > 0:
            self.append(tokens)

    @property
    def ns(self) -> Namespace:
        return self._ns

    def append(self, tokens: Tokens) -> Prefix:
        """Tokens behind those there are. Returns the prefix itself. Errors: InvalidError."""
        self._native.append(tokens)
        return self

    def append_digest(self, digest: bytes) -> Prefix:
        """The next block, by the engine's own digest of `ns.digest_bytes`. Errors: InvalidError."""
        self._native.append_digest(bytes(digest))
        return self

    def cover(self, first: int, end: int, extra: bytes) -> Prefix:
        """Tokens first .. end - 1 stand for more than themselves: `extra` becomes part of the blocks that have one.

        Before the first of those blocks is complete. Errors: InvalidError.
        """
        self._native.cover(first, end, bytes(extra))
        return self

    def expect_answer(self, tokens: int) -> Prefix:
        """So many tokens are to be generated behind it, as far as the engine can say; 0: not told.

        It goes with the blocks that are stored from then on, and says how likely they are to be used again. Returns the
        prefix itself.
        """
        self._native.expect_answer(tokens)
        return self

    def truncate(self, tokens: int) -> Prefix:
        """Takes what is behind the first `tokens` (of digests: blocks) away again."""
        self._native.truncate(tokens)
        return self

    def copy(self) -> Prefix:
        return Prefix(self._ns, _native=self._native.copy())

    __copy__ = copy

    @property
    def tokens(self) -> int:
        """How many were appended; of digests: blocks."""
        return self._native.tokens

    @property
    def blocks(self) -> int:
        """Whole blocks."""
        return self._native.blocks

    @property
    def blocks_matchable(self) -> int:
        """How many may come from a cache: never the one of the last token, whose logits must be computed."""
        return self._native.blocks_matchable

    @property
    def keys(self) -> list[bytes]:
        """The blocks' keys, 16 bytes each."""
        return self._native.keys

    def __repr__(self) -> str:
        return f"<kvtier.Prefix of {self.tokens} tokens, {self.blocks} blocks>"
