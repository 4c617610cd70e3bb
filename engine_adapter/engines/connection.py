"""What a start has to say of the daemon."""

from __future__ import annotations

import kvtier


def found(client: kvtier.Client, cache: kvtier.Cache, timeout_s: float, each: str) -> str:
    """Whether the daemon is there and takes this namespace, for a line in the log. `each`: what one block is called."""
    try:
        client.wait_connected(timeout_s)
        cache.wait_open(timeout_s)
        return f"is connected, {cache.ns.record_bytes / 1024:.0f} KiB a {each}"
    except (kvtier.UnavailableError, kvtier.DeadlineError) as error:
        return f"is not there, so that everything is computed until it is: {error}"
    except kvtier.KvtierError as error:
        return f"refuses, so that everything is computed: {error}"
