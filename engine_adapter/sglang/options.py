"""What a user may say of the backend, in SGLang's --hicache-storage-backend-extra-config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..engines.options import COMMON_LEAST, CommonOptions, read_options


@dataclasses.dataclass(frozen=True)
class Options(CommonOptions):
    """`load_timeout_s` and `slot_wait_s` are of one call."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Of the keys that begin with "kvtier.". Errors: Refusal, naming the key."""
        return read_options(cls, given, COMMON_LEAST)
