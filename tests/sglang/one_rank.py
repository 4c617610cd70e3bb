"""One rank of two, in a process of its own: conformance_test.py runs two, which agree by SGLang's own reductions.

    one_rank.py RANK SOCKET RENDEZVOUS mha|mla

Prints what it found, what came, and whether that is what it stored.
"""
import sys

import torch
from engine_driver import PAGE, WAIT, Engine, mha_pool, mla_pool

RANK, SOCKET, RENDEZVOUS, KIND = int(sys.argv[1]), *sys.argv[2:]


def main():
    torch.distributed.init_process_group("gloo", f"file://{RENDEZVOUS}", rank=RANK, world_size=2)
    extra = {"kvtier.socket": SOCKET, "kvtier.revision": KIND, "interface_v1": 1}
    extra |= {f"kvtier.{name}": WAIT for name in ("connect_timeout_s", "load_timeout_s", "slot_wait_s")}
    pool = (mha_pool if KIND == "mha" else mla_pool)("page_first", 64)
    engine = Engine(extra, pool, tp_rank=RANK, tp_size=2, tp_group=torch.distributed.group.WORLD)
    tokens = list(range(6 * PAGE))
    indices = pool.alloc(len(tokens))
    engine.fill(indices, RANK if KIND == "mha" else 0)
    # Rank 1 has lost the last two pages.
    kept = len(tokens) - 2 * PAGE * RANK
    engine.back_up(indices[:kept], tokens[:kept], engine.hashes(tokens)[: kept // PAGE])
    engine.storage._link.client.flush(WAIT)
    torch.distributed.barrier()
    found, came, at = engine.prefetch(tokens)
    same = all(torch.equal(a, b) for a, b in zip(engine.pages(at), engine.pages(indices[:came]), strict=True))
    print(found // PAGE, came // PAGE, same, engine.storage.counts.stores, flush=True)
    torch.distributed.barrier()
    engine.close()


if __name__ == "__main__":
    main()
