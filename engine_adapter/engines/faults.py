"""Exceptions that are kept from an engine: what fails is a miss, a line in the log, and a number."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])
_SAID_EVERY_S = 10.0


class FaultLog:
    """For any number of threads."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._numbers = itertools.count(1)
        self._said = 0.0

    def say(self, where: str, fault: Exception) -> None:
        """The first, and of those that follow one every ten seconds."""
        number = next(self._numbers)
        now = time.monotonic()
        if number == 1 or now - self._said > _SAID_EVERY_S:
            self._said = now
            self._logger.error(
                "kvtier: %s failed, which costs a hit or a store and no answer (fault %d): %s: %s",
                where,
                number,
                type(fault).__name__,
                fault,
            )
            self._logger.debug("kvtier: %s", where, exc_info=fault)


def harmless(default: Callable[..., Any]) -> Callable[[Method], Method]:
    """A method that returns default() of its arguments where it would have raised; the object's _fault() is told."""

    def wrap(method: Method) -> Method:
        @functools.wraps(method)
        def harmless_method(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception as fault:
                self._fault(method.__name__, fault)
                return default(*args, **kwargs)

        return cast(Method, harmless_method)

    return wrap
