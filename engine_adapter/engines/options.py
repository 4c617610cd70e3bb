"""Options that users give an adapter in its engine's own configuration: keys that begin with "kvtier."."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

_PREFIX = "kvtier."
Options = TypeVar("Options")


class Refusal(ValueError):
    """Why this engine cannot use the cache, and what to do about it."""


@dataclasses.dataclass(frozen=True)
class CommonOptions:
    """What every adapter's options have."""

    socket: str = "/run/kvtier/kvtierd.sock"
    revision: str = ""  # of the weights; read from the model where it is not given
    tenant: str = dataclasses.field(default="", repr=False)  # a secret salt: whoever has it shares the cache
    load_timeout_s: float = 3.0  # what has not come by then is computed
    slot_wait_s: float = 1.0  # how long blocks wait for room in a cache that still grows
    connect_timeout_s: float = 2.0  # at the start alone: to be told of a mistake rather than to wait


# The least values of those that are numbers.
COMMON_LEAST = {"load_timeout_s": 0.001, "slot_wait_s": 0.0, "connect_timeout_s": 0.0}


def read_options(kind: type[Options], given: Mapping[str, Any], least: Mapping[str, float]) -> Options:
    """An instance of the dataclass `kind`, whose fields have defaults of the types that are taken.

    `least` has the least value of fields that are numbers. Keys without the prefix are others'. Errors: Refusal, naming
    the key.
    """
    known: dict[str, Any] = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in given.items():
        if not key.startswith(_PREFIX):
            continue
        name = key.removeprefix(_PREFIX)
        if name not in known:
            raise Refusal(f"{key} is no option; there are {', '.join(_PREFIX + n for n in known)}")
        values[name] = _checked(key, value, type(known[name].default))
    options = kind(**values)
    for name, value in least.items():
        if not getattr(options, name) >= value:  # nor is a NaN
            raise Refusal(f"{_PREFIX}{name} is {getattr(options, name)}; it must be at least {value}")
    return options


def _checked(key: str, value: Any, kind: type) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Refusal(f"{key} is {value!r}; it must be of type {kind.__name__}")
    return value
