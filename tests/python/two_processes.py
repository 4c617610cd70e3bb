"""Run it twice: the first process stores, the second loads what the first stored.   two_processes.py SOCKET [BLOCKS]"""
import sys

import numpy as np

import kvtier

try:
    from torch import from_numpy as tensor
except ImportError:  # the same with NumPy alone
    tensor = np.asarray
LAYERS, HEADS, TOKENS, DIM, BLOCKS = 8, 4, 16, 64, int(sys.argv[2]) if len(sys.argv) > 2 else 32
ns = kvtier.Namespace(model="example@1", layers=LAYERS, kv_heads=HEADS, head_dim_k=DIM, head_dim_v=DIM, format="f32")
shape, numbers = (2, BLOCKS, TOKENS, HEADS, DIM), np.random.default_rng(1)
computed = [tensor(numbers.standard_normal(shape, np.float32)) for _ in range(LAYERS)]  # what a prefill would give
pages = [tensor(np.zeros(shape, np.float32)) for _ in range(LAYERS)]
pool = kvtier.Pool.from_tensors(ns, pages, dims="kv block token head dim")
with kvtier.Client(sys.argv[1], slot_wait=10.0) as client, client.open(ns) as cache:
    client.wait_connected(timeout=10.0)
    prefix = cache.prefix(range(BLOCKS * TOKENS + 1))
    with cache.lease(prefix, timeout=10.0) as lease:
        found = lease.load(pool, range(lease.wait(timeout=10.0))).finish()
    equal = all(bool((mine[:, :found] == right[:, :found]).all()) for mine, right in zip(pages, computed))
    for mine, right in zip(pages, computed):
        mine[:, found:] = right[:, found:]
    print(f"found {found} of {BLOCKS} blocks, equal: {equal}", flush=True)
    with cache.write_back(prefix, found, pool, range(found, BLOCKS)) as write:
        write.wait()
    client.flush(timeout=10.0)
