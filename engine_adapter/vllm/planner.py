"""The scheduler's half: what is loaded and what is stored.

It knows requests, tokens and page numbers, and neither vLLM nor the daemon: `match` says how many leading blocks of a
prefix every rank has, from shared memory and without waiting. One decision for all ranks is made here; each worker then
loads and stores for its own.

Invariants
- A request is loaded for at most once at a time, and never again after a load of its that failed.
- A block is ordered to be stored at most once in a request's life: with the step that computes its last token, and only
  when all its tokens are known (with asynchronous scheduling the newest are not).
- Whoever has been ordered to store anything has its pages kept until the workers have said that nothing reads them.
  What a preemption gives to others is told as `fresh`, before they write to it.
- After a load of which nothing came in time nobody is looked up for a while: a daemon that stands still, with a
  directory that can be read, must not keep every request waiting.
- A request that ends while it is loaded for is freed by the end of the load, and reported by nothing else: vLLM has
  forgotten it by then.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from .orders import Growth, Orders, Transfer

Covers = list[tuple[int, int, bytes]]


class Scheduled(NamedTuple):
    """A request in a step."""

    request_id: str
    pages: Sequence[int] | None  # that are new; None: none
    all_pages: bool  # these are all that it has: the first time, and after a preemption
    before: int  # tokens that are computed before the step
    after: int  # and after it


class Request(Protocol):
    """What is asked of vLLM's Request."""

    request_id: str

    @property
    def all_token_ids(self) -> Sequence[int]: ...


class Prefix(Protocol):
    """What is asked of a prefix: kvtier.Prefix, or a test's."""

    tokens: int
    blocks: int
    blocks_matchable: int

    def append(self, tokens: Sequence[int]) -> None: ...


class _Live:
    """A request that has not ended."""

    __slots__ = (
        "request",
        "prefix",
        "covers",
        "told",
        "pages",
        "asked_at",
        "stored",
        "loading",
        "landed",
        "stores",
        "loadable",
        "ordered_at",
        "looked_up",
    )

    def __init__(self, request: Request, prefix: Any, covers: Covers):
        self.request = request
        self.prefix = (
            prefix  # None: it has no place in the cache: what covers it cannot be said, or its pages are not known
        )
        self.covers = covers
        self.told = 0  # tokens that the workers know
        self.pages: list[int] = []
        self.asked_at = 0  # blocks that were computed when it was last looked up
        self.stored = 0  # leading blocks that are cached or ordered to be
        self.loading: Transfer | None = None  # the last load, until the request computes
        self.landed = False  # the workers have said that it is over
        self.stores = False
        self.loadable = True  # no load of its has failed
        self.ordered_at = 0.0  # when the last load was
        self.looked_up = False  # what other hosts have of it was asked for


class Planner:
    def __init__(
        self,
        block_tokens: int,
        make_prefix: Callable[[Covers], Any | None],
        match: Callable[[Any], int],
        covers_of: Callable[[Any], Covers] = lambda request: [],
        look_up: Callable[[Any], int] | None = None,
        prefetch: Callable[[Any], None] = lambda prefix: None,
        least_blocks: int = 1,
        clock: Callable[[], float] = lambda: 0.0,
        late_after_s: float = math.inf,
        pause_s: float = 0.0,
        on_fault: Callable[[str, Exception], None] = lambda what, fault: None,
    ) -> None:
        """
        block_tokens: tokens of a block, which is one page.
        make_prefix: an empty prefix with these covers; None where they cannot be covered.
        match: how many leading blocks all ranks have; 0 while any of them cannot be asked.
        look_up: the same, and may ask further; once a request. None: match.
        covers_of: what a request's KV depends on besides its tokens.
        prefetch: told of prefixes of requests that have come and may queue.
        least_blocks: fewer than so many are computed instead.
        late_after_s, pause_s: after a load that took so long and brought nothing there are no lookups for pause_s.
        """
        self._block_tokens = block_tokens
        self._make_prefix = make_prefix
        self._match = match
        self._look_up = match if look_up is None else look_up
        self._covers_of = covers_of
        self._prefetch = prefetch
        self._least_blocks = max(least_blocks, 1)
        self._clock = clock
        self._late_after_s = late_after_s
        self._pause_s = pause_s
        self._on_fault = on_fault
        self._paused_until = -math.inf
        self._live: dict[str, _Live] = {}
        self._loads: list[Transfer] = []
        self._forgotten: set[str] = set()
        self._silent: set[str] = set()

    def __len__(self) -> int:
        return len(self._live)

    # ---- from a request's arrival to its admission

    def arrived(self, request: Request) -> None:
        """A request has come. What it finds on disk is asked for while it still queues."""
        live = self._of(request)
        if live.prefix is not None:
            self._grow(live)
            self._prefetch(live.prefix)

    def loadable_tokens(self, request: Request, computed: int) -> int:
        """Tokens behind the first `computed` that can be loaded: whole blocks, never the last token. Asked any number
        of times before admitted()."""
        live = self._of(request)
        if live.prefix is None or not live.loadable or live.loading is not None or computed % self._block_tokens:
            return 0
        self._grow(live)
        live.asked_at = computed // self._block_tokens
        if self._clock() < self._paused_until:
            return 0
        ask = self._match if live.looked_up else self._look_up
        live.looked_up = True
        blocks = min(ask(live.prefix), live.prefix.blocks_matchable) - live.asked_at
        return blocks * self._block_tokens if blocks >= self._least_blocks else 0

    def admitted(self, request: Request, pages: Sequence[int], tokens_to_load: int) -> None:
        """`pages`, all of a request's, were allocated; those behind what is computed are to be loaded into. With no
        tokens to load nothing is; so it is asked a second time after a load."""
        live = self._live.get(request.request_id)
        if live is None or live.prefix is None or tokens_to_load == 0:
            return
        blocks = tokens_to_load // self._block_tokens
        live.pages = list(pages)
        live.loading = Transfer(request.request_id, live.asked_at, live.pages[live.asked_at : live.asked_at + blocks])
        live.landed = False
        live.ordered_at = self._clock()
        live.stored = max(live.stored, live.loading.end)
        self._loads.append(live.loading)

    # ---- a step

    def orders(self, scheduled: Iterable[Scheduled]) -> Orders:
        """What the workers do with this step. Never raises."""
        orders = Orders(loads=self._loads, forgotten=self._forgotten, silent=self._silent)
        self._loads, self._forgotten, self._silent = [], set(), set()
        try:
            self._fill(orders, scheduled)
        except Exception as fault:
            # Loads must go out, for their requests wait. Which pages are written to is not known: any may be. Nor is
            # which pages the step's requests have now, so that nothing of them is loaded or stored any more.
            orders.stores, orders.fresh = [], None
            for live in self._live.values():
                live.prefix = None
            self._on_fault("the orders of a step", fault)
        return orders

    def _fill(self, orders: Orders, scheduled: Iterable[Scheduled]) -> None:
        fresh: list[int] = []
        for load in orders.loads:
            fresh += load.pages
        for request_id, pages, all_pages, before, after in scheduled:
            if pages is not None:
                # Of all pages those with what is computed are only read.
                fresh += pages[before // self._block_tokens :] if all_pages else pages
            live = self._live.get(request_id)
            if live is None or live.prefix is None:
                continue
            live.loading = None  # who computes is not waiting for a load any more
            if pages is not None:
                live.pages = list(pages) if all_pages else live.pages + list(pages)
            self._grow(live)
            end = min(after, live.prefix.tokens) // self._block_tokens
            if live.stored < end <= len(live.pages):
                orders.stores.append(Transfer(request_id, live.stored, live.pages[live.stored : end]))
        for load in orders.loads:
            # With the token behind it, for the block of a prefix's last token is never loaded.
            self._tell(orders, load, load.end * self._block_tokens + 1)
        for store in orders.stores:
            self._tell(orders, store, store.end * self._block_tokens)
        for store in orders.stores:
            self._live[store.request].stored, self._live[store.request].stores = store.end, True
        orders.fresh = fresh

    # ---- what becomes of them

    def landed(self, request_ids: Iterable[str]) -> None:
        """Loads are over, well or not."""
        for request_id in request_ids:
            if (live := self._live.get(request_id)) is not None:
                live.landed = True

    def failed_pages(self, pages: set[int]) -> None:
        """Pages that their loads did not fill: their blocks are computed now, and offered to the cache again."""
        now = self._clock()
        for live in self._live.values():
            load = live.loading
            if load is None or pages.isdisjoint(load.pages):
                continue
            live.loadable = False
            live.stored = min(live.stored, load.first)
            if load.pages[0] in pages and now - live.ordered_at >= self._late_after_s:
                self._paused_until = now + self._pause_s

    def ended(self, request: Request) -> bool:
        """A request has ended, or was aborted. Whether the workers may still read its pages, and will say when they
        do not."""
        live = self._live.pop(request.request_id, None)
        if live is None:
            return False
        if live.told > 0:
            self._forgotten.add(request.request_id)
        if live.loading is not None and not live.landed:
            self._silent.add(request.request_id)
        return live.stores

    # ----

    def _of(self, request: Request) -> _Live:
        live = self._live.get(request.request_id)
        if live is None:
            covers = self._covers_of(request)
            live = self._live[request.request_id] = _Live(request, self._make_prefix(covers), covers)
        return live

    def _grow(self, live: _Live) -> None:
        known = live.prefix.tokens
        tokens = live.request.all_token_ids
        if len(tokens) > known:
            live.prefix.append(tokens[known:])

    def _tell(self, orders: Orders, transfer: Transfer, end: int) -> None:
        """The workers know its request's tokens up to `end` after it."""
        live = self._live.get(transfer.request)
        if live is None:
            return
        growth = orders.growth.get(transfer.request)
        if growth is None:
            growth = Growth(live.told, b"")
            if live.told == 0:
                growth.covers, growth.answer = live.covers, getattr(live.request, "max_tokens", 0) or 0
            orders.growth[transfer.request] = growth
        if end > live.told:
            growth.tokens += array("I", live.request.all_token_ids[live.told : end]).tobytes()
            live.told = end
