"""Prompts that one vLLM computes and another answers (docs/disaggregation.md), in the scheduler's connector.

The request says so in vLLM's own words, `kv_transfer_params`: with `do_remote_decode` this engine computes the prompt for
another, and its answer says what is, or soon will be, in the cache; with `do_remote_prefill` this engine answers, and
holds the request back until the other's blocks are there. What does not come is computed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

_LOOK_S = 0.005  # between two looks for one request: the engine asks in every step
_PRODUCER = "kv_producer"
logger = logging.getLogger("vllm.kvtier")


class _Awaited:
    """A request that is held back."""

    __slots__ = ("found", "since", "looked", "open")

    def __init__(self, now: float) -> None:
        self.found = 0  # tokens
        self.since = now  # when the last of them came
        self.looked = -math.inf
        self.open = now  # when the cache was last


class Handoffs:
    def __init__(
        self,
        role: str,
        namespace: str,
        block_tokens: int,
        clock: Callable[[], float],
        timeout_s: float,
        closed_s: float,
        is_open: Callable[[], bool],
    ) -> None:
        """
        role: vLLM's kv_role. A kv_producer computes prompts for others, whatever a request says.
        namespace: what must be equal for two engines to have the same blocks.
        timeout_s: how long a request is held back while no block comes; closed_s: and while there is no cache.
        """
        self._role = role
        self._namespace = namespace
        self._block_tokens = block_tokens
        self._clock = clock
        self._timeout_s = timeout_s
        self._closed_s = closed_s
        self._is_open = is_open
        self._awaited: dict[str, _Awaited | None] = {}  # None: not any more
        self.given_up = 0

    def holds_back(self, request: Any, look: Callable[[], int]) -> bool:
        """Whether the request is to wait for blocks. `look`: how many leading tokens of it are there."""
        wanted = self._wanted(request)
        name = request.request_id
        if wanted == 0 or (name in self._awaited and self._awaited[name] is None):
            return False
        now = self._clock()
        state = self._awaited.get(name)
        if state is None:
            state = self._awaited[name] = _Awaited(now)
        if now - state.looked < _LOOK_S:
            return True
        state.looked = now
        if self._is_open():
            state.open = now
        found = look()
        if found > state.found:
            state.found, state.since = found, now
        late = now - state.since >= self._timeout_s or now - state.open >= self._closed_s
        if found < wanted and not late:
            return True
        if found < wanted:
            self.given_up += 1
            logger.warning("kvtier: %d of %d tokens of %s came; the rest is computed", found, wanted, name)
        self._awaited[name] = None
        return False

    def ended(self, request: Any) -> dict[str, Any] | None:
        """Of a request that has ended: what its answer tells whoever asks the other engine."""
        self._awaited.pop(request.request_id, None)
        params = request.kv_transfer_params or {}
        if self._role != _PRODUCER and not params.get("do_remote_decode"):
            return None
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "kvtier_namespace": self._namespace,
            "kvtier_tokens": self._matchable(request),
        }

    def _wanted(self, request: Any) -> int:
        """Tokens that come from another engine; 0: none."""
        params = request.kv_transfer_params or {}
        if not params.get("do_remote_prefill") or self._role == _PRODUCER:
            return 0
        namespace = params.get("kvtier_namespace")
        if namespace and namespace != self._namespace:
            if request.request_id not in self._awaited:
                self._awaited[request.request_id] = None
                logger.warning(
                    "kvtier: %s was computed in namespace %s, this engine's is %s: both must have the same model, weights, "
                    "storage format and, with raw, the same pages. It is computed again",
                    request.request_id,
                    namespace,
                    self._namespace,
                )
            return 0
        tokens = params.get("kvtier_tokens")
        whole = self._matchable(request)
        return min(tokens, whole) if isinstance(tokens, int) else whole

    def _matchable(self, request: Any) -> int:
        tokens: int = request.num_prompt_tokens
        return (tokens - 1) // self._block_tokens * self._block_tokens
