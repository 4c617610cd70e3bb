"""What a user may say of the backend, in SGLang's --hicache-storage-backend-extra-config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..engines.options import read_options


@dataclasses.dataclass(frozen=True)
class Options:
    socket: str = "/run/kvtier/kvtierd.sock"
    revision: str = ""  # of the weights; read from the model where it is not given
    tenant: str = dataclasses.field(default="", repr=False)  # a secret salt: whoever has it shares the cache
    load_timeout_s: float = 3.0  # of one call; what has not come by then is computed
    slot_wait_s: float = 1.0  # how long the pages of one call wait for room in a cache that still grows
    connect_timeout_s: float = 2.0  # at the start alone: to be told of a mistake rather than to wait

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Of the keys that begin with "kvtier.". Errors: Refusal, naming the key."""
        return read_options(cls, given, {"load_timeout_s": 0.001, "slot_wait_s": 0.0, "connect_timeout_s": 0.0})
