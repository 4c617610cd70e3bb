"""What a user may say of the connector: `kv_connector_extra_config` of vLLM's --kv-transfer-config."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..engines.options import COMMON_LEAST, CommonOptions, Refusal, read_options

__all__ = ["STORAGE", "Options", "Refusal", "check_failure_policy"]

STORAGE = ("auto", "raw", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4")


@dataclasses.dataclass(frozen=True)
class Options(CommonOptions):
    storage: str = "raw"
    least_blocks: int = 1  # shorter matches are computed
    prefetch: bool = True  # ask for blocks on disk while a request queues
    handoff_timeout_s: float = 30.0  # how long a request waits for the next block of a prompt that another engine computes

    @classmethod
    def of(cls, given: dict[str, Any]) -> Options:
        """Of the keys that begin with "kvtier.". Errors: Refusal, naming the key."""
        options = read_options(cls, given, {**COMMON_LEAST, "least_blocks": 1, "handoff_timeout_s": 0.0})
        if options.storage not in STORAGE:
            raise Refusal(f"kvtier.storage is {options.storage!r}; it must be one of {', '.join(STORAGE)}")
        return dataclasses.replace(options, storage="raw") if options.storage == "auto" else options


def check_failure_policy(transfer_config: Any) -> None:
    """Errors: Refusal, where vLLM would end a request whose blocks could not be loaded."""
    policy = getattr(transfer_config, "kv_load_failure_policy", "recompute")
    if policy != "recompute":
        raise Refusal(
            f'kv_load_failure_policy is "{policy}", by which a block that could not be loaded ends its request with an '
            'error. Add "kv_load_failure_policy": "recompute" to --kv-transfer-config'
        )
