"""Client of kvtierd, a tiered KV cache for LLM inference on one host.

In the order of use:

    client = kvtier.Client("/run/kvtier/kvtierd.sock")
    cache = client.open(ns)                                  # a kvtier.Namespace
    pool = kvtier.Pool.from_tensors(ns, tensors, "kv block token head dim")
    prefix = cache.prefix(tokens)
    with cache.lease(prefix, timeout=1.0) as lease:          # pins; starts disk reads
        ready = lease.wait(timeout=1.0)                      # leading blocks now in memory
        load = lease.load(pool, pages[:ready])               # checks proofs, copies layer by layer
        load.wait_layer(0)                                   # ... attend to layer 0 ...
        good = load.finish()                                 # leading blocks that held; compute the rest
    write = cache.write_back(prefix, good, pool, pages[good:])

docs/python.md is the manual.
"""

from ._client import Cache, Client, Match, Stats, TierCounts
from ._errors import (
    CorruptError,
    DeadlineError,
    InvalidError,
    IoError,
    KvtierError,
    MalformedError,
    NoSpaceError,
    NotFoundError,
    RefusedError,
    StaleError,
    UnavailableError,
    VersionError,
)
from ._handles import Drops, Fault, LayerStore, Lease, Load, WriteBack
from ._kvtier import HintKind, LeaseState, Tier, version, with_cuda
from ._namespace import LayerShape, Namespace, StorageFormat
from ._pool import Pool
from ._prefix import Prefix

__version__ = version()
#: Whether the library was built with its CUDA backend.
WITH_CUDA = with_cuda()

__all__ = [
    "WITH_CUDA",
    "Cache",
    "Client",
    "CorruptError",
    "DeadlineError",
    "Drops",
    "Fault",
    "HintKind",
    "InvalidError",
    "IoError",
    "KvtierError",
    "LayerShape",
    "LayerStore",
    "Lease",
    "LeaseState",
    "Load",
    "MalformedError",
    "Match",
    "Namespace",
    "NoSpaceError",
    "NotFoundError",
    "Pool",
    "Prefix",
    "RefusedError",
    "StaleError",
    "Stats",
    "StorageFormat",
    "Tier",
    "TierCounts",
    "UnavailableError",
    "VersionError",
    "WriteBack",
    "__version__",
]
