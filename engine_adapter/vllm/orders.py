"""What the scheduler's half of the connector orders of the workers, a step at a time.

Pickled with vLLM's scheduler output, so it is small: tokens are told once, and pages by number.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Transfer:
    """Blocks `first`, `first` + 1, ... of a request, one for each of its pages."""

    request: str
    first: int
    pages: list[int]

    @property
    def end(self) -> int:
        return self.first + len(self.pages)


@dataclass(slots=True)
class Growth:
    """What a worker does not know of a request's tokens yet."""

    known: int  # tokens the worker has been told before
    tokens: bytes  # u32 each, behind those
    covers: list[tuple[int, int, bytes]] = field(default_factory=list)  # first, end, bytes; told with the first tokens
    answer: int = 0  # tokens that are generated at most; 0: not known. Told with the first tokens too


@dataclass(slots=True)
class Orders:
    growth: dict[str, Growth] = field(default_factory=dict)
    loads: list[Transfer] = field(default_factory=list)
    stores: list[Transfer] = field(default_factory=list)
    fresh: list[int] | None = None  # pages that requests were given anew, which this step writes to; None: any may be
    forgotten: set[str] = field(default_factory=set)  # requests that have ended
    silent: set[str] = field(
        default_factory=set
    )  # of those, whose pages go when their load is over, and with nothing else
