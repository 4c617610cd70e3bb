"""Uses every class as a program with strict types does; mypy reads it, nobody runs it."""

import asyncio
import logging

import numpy as np

import kvtier


def store(client: kvtier.Client, arrays: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]) -> int:
    shape = kvtier.LayerShape(kv_heads=1, head_dim_k=8, head_dim_v=8, format="int8")
    ns = kvtier.Namespace(model="m", block_tokens=4, layer_shapes=[shape, shape])
    pool: kvtier.Pool = kvtier.Pool.from_tensors(ns, arrays, dims="kv block token head dim")
    with client.open(ns) as cache:
        prefix: kvtier.Prefix = cache.prefix([1, 2, 3]).append(np.arange(3)).cover(8, 9, b"image")
        cache.hint(prefix, kvtier.HintKind.keep, tier=kvtier.Tier.host, priority=1, keep_for=1.5)
        found: kvtier.Match = cache.match(prefix)
        tier: kvtier.Tier = kvtier.Tier.host
        with cache.lease(prefix, found.blocks, timeout=0.5) as lease:
            if lease.blocks > 0:
                tier = lease.source(0)
            load: kvtier.Load = lease.load(pool, range(lease.wait(timeout=1.0)))
            good: int = load.finish()
            faults: list[int] = [fault.block for fault in load.faults]
        write: kvtier.WriteBack = cache.write_back(prefix, good, pool, range(good, prefix.blocks))
        write.wait(timeout=1.0)
        with cache.begin_store(prefix, 0, pool, range(1), slot_wait=0.1) as store:
            store.layer(0)
            dropped: kvtier.Drops = store.commit().dropped
        logging.debug("%d", dropped.no_slot)
        logging.info("%s %s %d", tier.name, faults, found.per_tier.host)
    stats: kvtier.Stats = client.stats()
    return write.accepted + stats.misses


async def load_later(lease: kvtier.Lease, pool: kvtier.Pool) -> int:
    ready: int = await lease.ready(timeout=1.0)
    return await lease.load(pool, range(ready))


def main() -> None:
    try:
        with kvtier.Client("/run/kvtier/kvtierd.sock") as client:
            print(store(client, []))
    except kvtier.DeadlineError as error:
        print(error.code, error)
    asyncio.run(asyncio.sleep(0))
