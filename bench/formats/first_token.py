"""Milliseconds to a prompt's first token: computed, from the engine's own pages and from each tier, by the length of the prefix and
the rows of a step. Medians. The prompt is random tokens; behind the prefix 16 more are computed."""
import json
import statistics

from programs import Daemon, Failed

TAIL = 16


def median(runs, source, prefix):
    """Of runs that took `prefix` tokens from `source`."""
    for run in runs:
        if run["source"] != source or run["reused_tokens"] < (prefix if source != "none" else 0):
            raise Failed(f"{run['reused_tokens']} tokens of a prefix of {prefix} came from {run['source']}, not from {source}")
    return statistics.median(run["first_token_ms"] for run in runs)


def on_cpu(programs, work, storage, prefix, chunk, rounds):
    """{source: ms}, by kvtier-engine generate. Each first run warms up."""
    command = ["--storage-format", storage, "--prompt-length", prefix + TAIL, "--chunk-tokens", chunk, "--max-tokens", 1]
    found = {"computed": median(programs.generate(*command, "--no-cache", "--repeat", rounds + 1)[1:], "none", prefix)}
    own = programs.generate(*command, "--no-cache", "--own-pages", "--repeat", rounds + 1)
    found["own_pages"] = median(own[1:], "own_pages", prefix)
    with Daemon(programs, work, host="1GiB", disk="2GiB") as daemon:
        command += ["--socket", daemon.socket, "--deadline-ms", 60000]
        programs.generate(*command, "--flush")
        found["host"] = median(programs.generate(*command, "--repeat", rounds + 1)[1:], "host", prefix)
        disk = []
        for _ in range(rounds + 1):
            daemon.drop("host")
            disk += programs.generate(*command)
        found["disk"] = median(disk[1:], "disk", prefix)
    return found


def on_gpu(programs, work, shape, storage, prefix, chunk, rounds):
    """The same by kvtier-gpu-engine-bench, which draws the weights once for all tiers."""
    said = programs.run("kvtier-gpu-engine-bench", "--part", "reuse", "--shape", shape, "--storage-format", storage, "--rounds", rounds,
                        "--prompt-tokens", prefix + TAIL, "--chunk-tokens", chunk, "--dir", work, "--json")
    rows = {row["name"]: row["value"] for row in json.loads(said[said.index("[\n"):])}
    names = {"computed": "computed", "own_pages": "own pages", "hbm": "device, in place", "host": "host", "disk": "disk"}
    return {name: rows[f"first token of {prefix + TAIL}, {called}"] for name, called in names.items()}
