#!/usr/bin/env python3
"""The connector's two halves under random schedules of a model of vLLM's scheduler.

The model does what vLLM does to a connector: it allocates pages, finds prefixes in its own cache, chunks prompts, runs
out of pages and preempts, resumes, aborts, looks up twice, schedules a step before the last one's tokens are known, and
gives pages to others as soon as it may. The cache loses blocks between lookup and load, brings loads late, in part or
not at all, and drops stores, on one of two ranks and not on the other; its daemon is stopped and goes on, is killed,
and starts again with or without what it had. Calls of both halves raise now and then.

Held in every step of every schedule: no token is computed on a page that does not hold what it should; no page is
written while a store reads it or a load fills it; what a store put into the cache is what its key says. In the end
every request has its answer, every page is free, and nobody is remembered.

  schedules_test.py [--seeds N] [--first SEED]
"""
import argparse
import collections
import dataclasses
import sys

from scheduler_model import Scheduler


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=1)
    options = parser.parse_args()
    sums = collections.Counter()
    for seed in range(options.first, options.first + options.seeds):
        try:
            scheduler = Scheduler(seed).run(30)
        except Exception:
            print(f"seed {seed}", file=sys.stderr)
            raise
        for worker in scheduler.workers:
            sums.update(dataclasses.asdict(worker.counts))
        sums.update(schedules=1, requests=scheduler.done, all_faults=scheduler.faults, unreadable=scheduler.unreadable,
                    preempted=scheduler.preempted, ranks_2=len(scheduler.workers) == 2)
    print(
        "{schedules} schedules, {ranks_2} of two ranks; {requests} requests, {preempted} preemptions; blocks: "
        "{blocks_loaded} loaded, {blocks_failed} failed to, {blocks_stored} stored, {blocks_dropped} dropped; "
        "{all_faults} exceptions, {unreadable} of them over a whole step".format_map(sums)
    )
    for what, least in (("blocks_loaded", 1), ("blocks_failed", 1 / 4), ("blocks_stored", 1), ("preempted", 1 / 4)):
        assert sums[what] >= options.seeds * least, f"too few {what}"
    assert options.seeds < 100 or sums["unreadable"] > 10, "no step was unreadable"


if __name__ == "__main__":
    main()
