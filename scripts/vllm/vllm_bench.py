#!/usr/bin/env python3
"""How soon vLLM's first token comes on a GPU: computed, from vLLM's own cache, from its own CPU offloading, and from kvtier.

  scripts/vllm/vllm_bench.py --build DIR --out FILE [--modes plain native raw fp8_e4m3 int4] [--rest raw fp8_cache ...]

Needs vLLM and this package where it runs, and CMake's binary directory with kvtierd and kvtierctl. The model has the shape
of Llama-3.1-8B and random weights, or is --model DIR; times are wall times of generate(), medians of the rounds. Writes rows
as the other benches do. Of each mode, whose engine is a process of its own:

  computed      a prompt that nobody has; its limit is vLLM's without a connector
  own_cache     the same again, whether it was computed or loaded before
  host          the same, when vLLM's own cache has been emptied
  above         by how much later that is than own_cache
  disk          the same, when kvtier's memory has been emptied too
  disk_rate     of its records, by how much later that is than own_cache; its limit is the rate of the same files when they are
                read with as many threads and nothing else
  logits        of the first token's likeliest five, those with the same bits from host as from vLLM's own cache
  answering     16 prompts at once, 64 tokens of answer each; its limit is the same when nothing is stored, in turns; the
                sum of the medians of each step
  together      16 prompts at once whose beginnings are in host memory; their limit is the same prompts computed

Then, untimed, what else must hold (--rest): `processes` the engine in a process of its own, `ranks` two of them (tensor parallel),
`graphs` with CUDA graphs, `fp8_cache` an FP8 KV cache stored raw, `preempted` a pool that is too small, `served` vllm serve.
"""
import argparse
import concurrent.futures
import contextlib
import json
import mmap
import os
import pathlib
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback

from vllm_demo import ROOT, Cache, report
from vllm_engine import Engine, Server

SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 128000, "eos_token_id": 128001,
}
# What is stored last is loaded: the default policy lets some of it go where the tier is full.
CONFIG = """\
socket = "{work}/kvtierd.sock"

[cache]
policy = "lru"

[host]
capacity = "CAPACITY"
extent_size = "1GiB"
"""
DISK = """
[disk]
directory = "{work}/disk"
capacity = "CAPACITY"
"""
REST = ("processes", "ranks", "graphs", "fp8_cache", "preempted", "served")
AT_ONCE = 16
READ_BYTES = 1 << 20
READ_THREADS = 32


def read_rate(folder, count):
    """Bytes a second of the first `count` bytes of a store's segments, past the page cache."""
    pieces = [(file, at) for file in sorted(folder.rglob("*.seg")) for at in range(0, file.stat().st_size, READ_BYTES)]
    pieces = pieces[:count // READ_BYTES]
    open_files = {file: os.open(file, os.O_RDONLY | os.O_DIRECT) for file, _ in pieces}
    buffers = threading.local()

    def read(piece):
        file, at = piece
        if not hasattr(buffers, "mine"):
            buffers.mine = mmap.mmap(-1, READ_BYTES)  # aligned as the device wants it
        return os.preadv(open_files[file], [buffers.mine], at)

    try:
        with concurrent.futures.ThreadPoolExecutor(READ_THREADS) as readers:
            began = time.monotonic()
            read_bytes = sum(readers.map(read, pieces))
            return read_bytes / (time.monotonic() - began)
    finally:
        for descriptor in open_files.values():
            os.close(descriptor)


def typical(turns):
    """Milliseconds of a turn whose every step takes as long as that step does in the median: what disturbs one of them is in
    none of it."""
    return 1000 * sum(statistics.median(steps) for steps in zip(*turns))


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="vllm-bench-", dir=arguments.dir))
        self.random = random.Random(7)
        self.rows = []
        self.wrong = []
        self.model = arguments.model
        if self.model is None:
            self.model = self.work / "llama-3.1-8b"
            self.model.mkdir()
            (self.model / "config.json").write_text(json.dumps(SHAPE))

    def row(self, name, value, unit, limit=None):
        self.rows.append({"name": f"vllm.{name}", "value": value, "unit": unit, "limit": limit})
        self.arguments.out.write_text("[\n" + ",\n".join("  " + json.dumps(row) for row in self.rows) + "\n]\n")

    def tokens(self, count):
        return [self.random.randrange(100, self.arguments.vocabulary) for _ in range(count)]

    def limit(self, name):
        return next((row["value"] for row in self.rows if row["name"] == f"vllm.{name}"), None)

    @contextlib.contextmanager
    def cache(self, name, host=None):
        work = self.work / name
        work.mkdir()
        config = CONFIG.replace("CAPACITY", host or self.arguments.host)
        config += DISK.replace("CAPACITY", self.arguments.disk) if self.arguments.disk != "0" else ""
        cache = Cache(self.arguments.build.resolve() / "bin", work, config)
        cache.start()
        try:
            yield cache
        finally:
            cache.stop(signal.SIGTERM)
            shutil.copy(work / "kvtierd.log", self.arguments.out.with_name(f"kvtierd-{name}.log"))
            shutil.rmtree(work)

    def engine(self, name, cache=None, transfer=None, connector=None, **how):
        log = open(self.arguments.out.with_name(f"vllm-{name}.log"), "w")
        longest = max(*self.arguments.prompt_tokens, 2 * self.arguments.at_once_tokens)
        how = {"max_model_len": longest + 1024, "dtype": self.arguments.dtype,
               "gpu_memory_utilization": 0.5, "max_num_batched_tokens": 8192, "max_num_seqs": AT_ONCE, **how}
        return Engine(log, self.model, cache and cache.socket, connector, transfer, self.arguments.model is None, **how)

    def guarded(self, what, name):
        """What fails in one leaves the others to be measured."""
        try:
            what(name)
        except Exception as failure:
            traceback.print_exc()
            self.wrong.append(f"{name}: {type(failure).__name__}: {failure}")

    def print_table(self):
        width = max(len(row["name"]) for row in self.rows) if self.rows else 0
        for row in self.rows:
            limit = f" {row['limit']:11.2f} {row['value'] / row['limit']:7.3f}" if row["limit"] else ""
            print(f"{row['name']:{width}} {row['value']:11.2f} {row['unit']:8}{limit}")

    # ---- the modes

    def mode(self, mode):
        with contextlib.ExitStack() as stack:
            cache = transfer = connector = None
            if mode == "native":
                transfer = {"kv_connector": "OffloadingConnector",
                            "kv_connector_extra_config": {"cpu_bytes_to_use": self.arguments.native_gib << 30}}
            elif mode != "plain":
                cache = stack.enter_context(self.cache(mode))
                # What is on disk is to be loaded from there.
                connector = {"kvtier.storage": mode, "kvtier.prefetch": False, "kvtier.load_timeout_s": 30,
                             "kvtier.slot_wait_s": 30}
            began = time.monotonic()
            engine = stack.enter_context(self.engine(mode, cache, transfer, connector))
            print(f"{mode}: the engine started in {time.monotonic() - began:.0f} s", flush=True)
            for tokens in (512, *self.arguments.prompt_tokens):
                self.first_tokens(engine, mode, cache, tokens, 1, warm_up=True)
            longest = max(self.arguments.prompt_tokens)
            for tokens in self.arguments.prompt_tokens:
                # Short ones are soon computed, and differ more.
                rounds = min(4 * self.arguments.rounds, self.arguments.rounds * longest // tokens)
                self.first_tokens(engine, mode, cache, tokens, rounds)
            self.at_once(engine, mode, cache)

    def blocks(self, tokens):
        """Of a prompt, that can be loaded: all but the last token's."""
        return (tokens - 1) // self.arguments.block_tokens

    def wait_until_stored(self, cache, blocks):
        if cache:
            cache.wait(lambda: cache.insertions("host") >= blocks, f"fewer than {blocks} blocks were stored")

    def first_tokens(self, engine, mode, cache, tokens, rounds, warm_up=False):
        seen = {}

        def ask(name, prompt, **how):
            said = engine.ask([prompt], max_tokens=1, logprobs=5, **how)
            seen.setdefault(name, []).append(1000 * said["seconds"])
            return said["answers"][0]["logprobs"], said["counted"]

        same = asked = 0
        for last in range(rounds - 1, -1, -1):
            prompt = self.tokens(tokens)
            if cache and not last:
                cache.tell("flush")  # behind a long queue of writes, what is asked for from disk would be left out
            before = cache.insertions("host") if cache else 0
            ask("computed", prompt)
            _, counted = ask("own_cache", prompt)
            self.expect(counted, "own", tokens, f"{mode}, {tokens} tokens from vLLM's own cache")
            if mode == "plain":
                continue
            if cache:
                self.wait_until_stored(cache, before + self.blocks(tokens))
            for _ in range(2):
                logits, counted = ask("host", prompt, forget=True)
                self.expect(counted, "external", tokens, f"{mode}, {tokens} tokens from host")
                own, _ = ask("own_cache", prompt)
                same += sum(own[0].get(token) == value for token, value in logits[0].items())
                asked += len(logits[0])
            if cache and self.arguments.disk != "0" and not last and not warm_up:
                cache.tell("flush")
                bytes_read = self.blocks(tokens) * cache.record_bytes("disk")
                cache.leave_on_disk_alone()
                _, counted = ask("disk", prompt, forget=True)
                self.expect(counted, "external", tokens, f"{mode}, {tokens} tokens from disk")
        if warm_up:
            return
        medians = {name: statistics.median(times) for name, times in seen.items()}
        for name, value in medians.items():
            limit = self.limit(f"plain.{tokens}.computed") if name == "computed" else None
            self.row(f"{mode}.{tokens}.{name}", value, "ms", limit)
        if "host" in medians:
            self.row(f"{mode}.{tokens}.above", medians["host"] - medians["own_cache"], "ms")
            self.row(f"{mode}.{tokens}.logits", same, "equal", asked)
        if "disk" in medians:
            rate = bytes_read / (medians["disk"] - medians["own_cache"]) / 1e6
            self.row(f"{mode}.{tokens}.disk_rate", rate, "GB/s", read_rate(cache.work / "disk", bytes_read) / 1e9)

    def expect(self, counted, what, tokens, where, prompts=1):
        least = prompts * self.blocks(tokens) * self.arguments.block_tokens
        if counted.get(what, 0) < least:
            self.wrong.append(f"{where}: {counted.get(what, 0):.0f} of {least} found, {counted}")
        if counted.get("faults") or counted.get("failed"):
            self.wrong.append(f"{where}: {counted}")

    def at_once(self, engine, mode, cache):
        tokens = self.arguments.at_once_tokens
        answering = {True: [], False: []}
        for number in range(2 * self.arguments.turns if cache else self.arguments.turns):
            stores = not cache or number % 2 == 0
            said = engine.ask([self.tokens(tokens) for _ in range(AT_ONCE)], max_tokens=64, stores=stores)
            answering[stores].append(said["steps"])
        self.row(f"{mode}.answering", typical(answering[True]), "ms", typical(answering[False]) if cache else None)
        prompts = [self.tokens(2 * tokens) for _ in range(AT_ONCE)]
        before = cache.insertions("host") if cache else 0
        computed = engine.ask(prompts, max_tokens=1)
        if cache:
            self.wait_until_stored(cache, before + AT_ONCE * self.blocks(2 * tokens))
        if mode != "plain":
            loaded = engine.ask(prompts, max_tokens=1, forget=True)
            self.expect(loaded["counted"], "external", 2 * tokens, f"{mode}, together", AT_ONCE)
            self.row(f"{mode}.together", 1000 * loaded["seconds"], "ms", 1000 * computed["seconds"])

    # ---- what else must hold

    def rest(self, name):
        """How many of the prompts came from the cache and how many answers were those that were computed."""
        tokens, how = self.arguments.at_once_tokens, {"gpu_memory_utilization": 0.3}
        connector = {"kvtier.storage": "raw", "kvtier.load_timeout_s": 30, "kvtier.slot_wait_s": 30}
        with self.cache(name, host="6GiB") as cache:
            if name == "served":
                return self.served(cache)
            if name == "graphs":
                how |= {"enforce_eager": False, "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}}
            elif name == "fp8_cache":
                how |= {"kv_cache_dtype": "fp8"}
            elif name == "preempted":
                # Room for three of the prompts with their answers.
                how |= {"num_gpu_blocks_override": 3 * (tokens + 128) // self.arguments.block_tokens,
                        "max_model_len": 2 * tokens}
            elif name == "ranks":
                how |= {"tensor_parallel_size": 2}
            environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"} if name == "processes" else None
            with self.engine(name, cache, connector=connector, environment=environment, **how) as engine:
                prompts = [self.tokens(tokens) for _ in range(8)]
                # One after the other, so that the same is computed with the same.
                computed = [engine.ask([prompt], max_tokens=32) for prompt in prompts]
                self.wait_until_stored(cache, 8 * self.blocks(tokens))
                if name == "preempted":
                    loaded = engine.ask(prompts, max_tokens=128, forget=True)
                    answers = loaded["answers"]
                    counted = loaded["counted"]
                    if not counted.get("preemptions"):
                        self.wrong.append("preempted: nothing was")
                    whole = sum(len(answer["ids"]) == 128 for answer in answers)
                    self.row(f"{name}.whole_answers", whole, "answers", 8)
                    self.row(f"{name}.preemptions", counted.get("preemptions", 0), "times")
                else:
                    said = [engine.ask([prompt], max_tokens=32, forget=True) for prompt in prompts]
                    counted = {key: sum(one["counted"].get(key, 0) for one in said) for key in said[0]["counted"]}
                    again = [engine.ask([prompt], max_tokens=32) for prompt in prompts]
                    same = sum(a["answers"][0]["ids"] == b["answers"][0]["ids"] for a, b in zip(said, again))
                    self.row(f"{name}.answers_as_from_own_cache", same, "answers", 8)
                    same = sum(a["answers"][0]["ids"] == b["answers"][0]["ids"] for a, b in zip(said, computed))
                    self.row(f"{name}.answers_as_computed", same, "answers", 8)
                least = 8 * self.blocks(tokens) * self.arguments.block_tokens
                self.row(f"{name}.tokens_from_cache", counted.get("external", 0), "tokens", least)
                for bad in ("faults", "failed", "dropped"):
                    if counted.get(bad):
                        self.wrong.append(f"{name}: {bad} {counted[bad]:.0f}")

    def served(self, cache):
        """vllm serve over HTTP with the bundled model, its engine in a process of its own."""
        with Server(self.arguments.out.with_name("vllm-served.log"), cache.socket, "--gpu-memory-utilization", "0.05") as server:
            cache.wait(server.is_up, "vllm serve did not come up", seconds=300)
            prompt = (ROOT / "scripts" / "demo-document.txt").read_text()[:4000]
            first = server.complete(prompt)
            blocks = self.blocks(first["usage"]["prompt_tokens"])
            self.wait_until_stored(cache, blocks)
            server.ask("/reset_prefix_cache", {})
            again = server.complete(prompt)
            self.row("served.answers_as_computed", int(first["choices"][0]["text"] == again["choices"][0]["text"]), "answers", 1)
            self.row("served.blocks_loaded", server.counted("kvtier_blocks_loaded_total"), "blocks", blocks)
            self.row("served.faults", server.counted("kvtier_faults_total"), "times")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=__doc__.split("\n", 2)[2],
                                        formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--build", type=pathlib.Path, required=True, help="CMake's binary directory")
    arguments.add_argument("--out", type=pathlib.Path, required=True, help="where the rows go, and logs beside them")
    arguments.add_argument("--dir", type=pathlib.Path, help="where sockets and the disk tier go; default: the system's")
    arguments.add_argument("--modes", nargs="*", default=["plain", "native", "raw", "fp8_e4m3", "int4"])
    arguments.add_argument("--rest", nargs="*", choices=REST, default=list(REST))
    arguments.add_argument("--model", type=pathlib.Path, help="with weights, and not the shape of Llama-3.1-8B")
    arguments.add_argument("--vocabulary", type=int, default=120000, help="tokens are drawn from the first so many")
    arguments.add_argument("--prompt-tokens", type=int, nargs="+", default=[8192, 32768])
    arguments.add_argument("--at-once-tokens", type=int, default=2048, help="of each of 16 prompts at once")
    arguments.add_argument("--block-tokens", type=int, default=16, help="as vLLM has them on this device")
    arguments.add_argument("--dtype", default="bfloat16")
    arguments.add_argument("--rounds", type=int, default=3, help="of the longest prompt; of shorter ones more")
    arguments.add_argument("--turns", type=int, default=6, help="with stores and without, of 16 prompts at once")
    arguments.add_argument("--host", default="64GiB", help="kvtier's memory")
    arguments.add_argument("--disk", default="16GiB", help="kvtier's disk tier; 0: none")
    arguments.add_argument("--native-gib", type=int, default=32, help="memory of vLLM's own CPU offloading")
    arguments = arguments.parse_args()
    arguments.out = arguments.out.resolve()
    bench = Bench(arguments)
    try:
        for mode in arguments.modes:
            bench.guarded(bench.mode, mode)
        for name in arguments.rest:
            bench.guarded(bench.rest, name)
    finally:
        shutil.rmtree(bench.work, ignore_errors=True)
    bench.print_table()
    return report(bench.wrong, arguments.out)


if __name__ == "__main__":
    sys.exit(main())
