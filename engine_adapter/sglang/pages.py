"""A host pool of SGLang as pages of pieces.

SGLang's pools say for their zero-copy interface where a page lies (`get_page_buffer_meta`): in every layout some runs of
bytes, one a layer and side, or one for all layers. A piece is such a run of every page: its place grows by one stride
from page to page, which is held here, so that a page is named by its number from then on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import kvtier
from kvtier._arrays import Array

from ..engines.options import Refusal

_SHAPE = ("layer_num", "start_layer", "end_layer", "head_num", "head_dim", "v_head_dim", "kv_cache_dim", "page_size")


@dataclasses.dataclass(frozen=True)
class Piece:
    base: int  # address of page 0's
    stride: int  # bytes from one page to the next
    size: int  # bytes


@dataclasses.dataclass(frozen=True)
class HostPages:
    pieces: tuple[Piece, ...]
    count: int
    page_size: int  # how many of the pool's indices name a page
    kind: type  # of the pool
    layout: str  # what a page's bytes are, for a namespace and a line in the log
    keep: tuple[object, ...]  # what keeps the memory alive

    @property
    def page_bytes(self) -> int:
        return sum(piece.size for piece in self.pieces)

    def pool(self, ns: kvtier.Namespace) -> kvtier.Pool:
        arrays = [
            Array(piece.base, (self.count, piece.size), (piece.stride, 1), "uint8", 1, None, self.keep)
            for piece in self.pieces
        ]
        return kvtier.Pool.from_tensors(ns, arrays, "block byte")

    def numbers(self, indices: Any, pages: int) -> list[int]:
        """The pages that the pool's `indices` name. Errors: ValueError, where they name no `pages` whole ones."""
        each = self.page_size
        tokens = [] if indices is None else indices.tolist()
        if len(tokens) != pages * each:
            raise ValueError(f"{len(tokens)} indices were given for {pages} pages of {each}")
        starts, ends = tokens[::each], tokens[each - 1 :: each]
        for start, end in zip(starts, ends):
            if start % each != 0 or end != start + each - 1 or not 0 <= start < self.count * each:
                raise ValueError(f"indices {start} .. {end} are no page of {each}, of which there are {self.count}")
        return [start // each for start in starts]


def host_pages(pool: Any, make_indices: Callable[[Iterable[int]], Any]) -> HostPages:
    """make_indices: an array of one dimension, as the pool takes it. Errors: Refusal, where pages cannot be named."""
    kind, layout = type(pool).__name__, str(getattr(pool, "layout", ""))
    if getattr(pool, "shared_allocation_domain", None) is not None or getattr(pool, "dcp_size", 1) > 1:
        raise Refusal(f"{kind}: its pages move, or are spread over ranks, and that is not cached here")
    page_size = int(pool.page_size)
    count = int(pool.size) // page_size
    if count < 2:
        raise Refusal(f"{kind} has {count} pages; give the host cache more memory (--hicache-size)")

    def runs(page: int) -> list[tuple[int, int]]:
        found = pool.get_page_buffer_meta(make_indices(range(page * page_size, (page + 1) * page_size)))
        return list(zip(*found, strict=True)) if found else []

    try:
        first, second = runs(0), runs(1)
        pieces = tuple(Piece(a, b - a, size) for (a, size), (b, _) in zip(first, second, strict=True))
        for page in {1, count // 2, count - 1}:
            if runs(page) != [(piece.base + page * piece.stride, piece.size) for piece in pieces]:
                raise ValueError(f"page {page} does not lie where pages 0 and 1 say")
    except Exception as reason:
        raise Refusal(
            f"{kind} with layout {layout} does not say where its pages lie ({type(reason).__name__}: {reason}); "
            "page_first and page_first_direct do for most models (--hicache-mem-layout)"
        ) from reason
    if not pieces:
        raise Refusal(f"{kind} holds no KV: this model's is in other pools, and that is not cached here")
    sizes = list(dict.fromkeys(piece.size for piece in pieces))
    shape = [f"{name}={getattr(pool, name)}" for name in _SHAPE if isinstance(getattr(pool, name, None), int)]
    text = f"{kind} {layout} {getattr(pool, 'dtype', '')} {' '.join(shape)}, {len(pieces)} pieces of {sizes} bytes"
    return HostPages(pieces, count, page_size, type(pool), text, (pool, getattr(pool, "kv_buffer", None)))
