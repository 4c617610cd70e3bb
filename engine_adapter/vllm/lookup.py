"""The scheduler's view of the cache: what every rank has of a prefix, decided once for all of them."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import kvtier

from .options import Options


# Of one that is stopped: others answer within the daemon's own [remote] lookup_timeout_ms.
_LOOK_UP_TIMEOUT_S = 0.05


def fields_of(ns: kvtier.Namespace) -> dict[str, Any]:
    """What Namespace() makes the same of, in another process."""
    return {field.name: getattr(ns, field.name) for field in dataclasses.fields(ns) if field.init}


class Prefixes:
    """One sequence, as each rank's namespace names it."""

    def __init__(self, each: list[kvtier.Prefix]) -> None:
        self.each = each

    @property
    def tokens(self) -> int:
        return self.each[0].tokens

    @property
    def blocks(self) -> int:
        return self.each[0].blocks

    @property
    def blocks_matchable(self) -> int:
        return self.each[0].blocks_matchable

    def append(self, tokens: Any) -> None:
        for prefix in self.each:
            prefix.append(tokens)


class Lookup:
    def __init__(self, namespaces: list[dict[str, Any]], options: Options) -> None:
        """namespaces: of all ranks, as fields_of() has them."""
        # Ranks that hold the same are one.
        spaces = list({ns.id: ns for ns in (kvtier.Namespace(**fields) for fields in namespaces)}.values())
        self.ranks = len(spaces)
        self.model = spaces[0].model
        self.block_tokens = spaces[0].block_tokens
        self._client = kvtier.Client(options.socket, name="vllm scheduler", read_only=True)
        self._caches = [self._client.open(ns) for ns in spaces]
        ids = [ns.id for ns in spaces]
        # By which two engines tell each other whether they have the same blocks.
        self.namespace = (ids[0] if len(ids) == 1 else hashlib.blake2b(b"".join(ids), digest_size=16).digest()).hex()

    def is_open(self) -> bool:
        return all(cache.error is None for cache in self._caches)

    def prefix(self, covers: list[tuple[int, int, bytes]]) -> Prefixes | None:
        """Of no tokens; None where a block may be covered by more than a proof has room for."""
        each = [cache.prefix() for cache in self._caches]
        try:
            for prefix in each:
                for first, end, extra in covers:
                    prefix.cover(first, end, extra)
        except kvtier.InvalidError:
            return None
        return Prefixes(each)

    def match(self, prefixes: Prefixes) -> int:
        """Leading blocks that all ranks have."""
        return min(cache.match(prefix).blocks for cache, prefix in zip(self._caches, prefixes.each))

    def look_up(self, prefixes: Prefixes) -> int:
        """match(), with what the daemon's remote tier has, where it has one: that is asked, for some milliseconds at most."""
        each = zip(self._caches, prefixes.each)
        return min(cache.look_up(prefix, timeout=_LOOK_UP_TIMEOUT_S).blocks for cache, prefix in each)

    def prefetch(self, prefixes: Prefixes) -> None:
        """From disk to memory, as long as the request queues. A hint: that it cannot be given costs nothing."""
        blocks = prefixes.blocks_matchable
        if blocks == 0:
            return
        for cache, prefix in zip(self._caches, prefixes.each):
            try:
                cache.hint(prefix, kvtier.HintKind.prefetch, blocks)
            except kvtier.KvtierError:
                return

    def close(self) -> None:
        for cache in self._caches:
            cache.close()
        self._client.close()
