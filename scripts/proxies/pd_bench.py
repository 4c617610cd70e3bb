#!/usr/bin/env python3
"""What prompts that arrive cost answers under way: together in one engine, and with the prompts computed by another.

  scripts/proxies/pd_bench.py --build build/release --out result.json

Starts a kvtierd, engines and scripts/proxies/pd_proxy.py on this machine. Some answers are under way all the time; of them the time
from token to token is taken, as a client sees it, with no arrivals and while prompts of --prompt tokens arrive, one behind
the other. Engines that are apart have a core each (the first two that this process may use); one engine alone has the core of
the one that answers, and, in a run of its own, both. The clients and the proxy are on the core of the engine for prompts, before
which they go where this process may say so. Prints rows as kvtier's benchmarks do.
"""
import argparse
import contextlib
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """\
socket = "{work}/s"
[host]
capacity = "{capacity}"
extent_size = "64MiB"
huge_pages = false
[http]
listen = ""
"""


class Started:
    def __init__(self, command, cores, nice=0):
        self.process = subprocess.Popen(["taskset", "-c", ",".join(map(str, cores)), *map(str, command)],
                                        stdout=subprocess.PIPE, text=True,
                                        preexec_fn=lambda: os.setpriority(os.PRIO_PROCESS, 0, nice))
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        if not found:
            raise SystemExit(f"{command[0]} did not start")
        self.port = int(found.group(1))

    def end(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


def metrics(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {name: float(value) for name, value in re.findall(r"^([\w:]+)\{[^,}]*\} (\S+)$", text, re.M)}


def tokens_of(port, prompt, count, on_token):
    """Streams one answer and tells when each token came."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    body = {"model": "model", "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            if b'"error"' in line:
                raise SystemExit(line.decode())
            if on_token(time.monotonic()) is False:
                break
    connection.close()


class Answers:
    """Answers under way, each behind the last, until end()."""

    def __init__(self, port, count, random_prompt):
        self.between, self.over = [], threading.Event()
        self.threads = [threading.Thread(target=self.follow, args=(port, random_prompt), daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def follow(self, port, random_prompt):
        while not self.over.is_set():
            last = None

            def token(now):
                nonlocal last
                if last is not None:
                    self.between.append((last, now - last))
                last = now
                return not self.over.is_set()
            tokens_of(port, random_prompt(512), 600, token)

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def within(self, begin, end):
        return sorted(took for at, took in self.between if begin <= at and at + took <= end)


def at(sorted_values, part):
    return sorted_values[min(int(part * len(sorted_values)), len(sorted_values) - 1)]


def measure(port, arguments, source):
    """(inter-token times without arrivals and with them, first-token times of the arrivals), in seconds."""
    def random_prompt(length):
        return [source.randrange(16, 2000) for _ in range(length)]

    # Once before: the proxy learns what the engine for prompts stores, and memory is taken.
    tokens_of(port, random_prompt(arguments.prompt), 2, lambda now: True)
    answers = Answers(port, arguments.answers, random_prompt)
    time.sleep(2)
    begin = time.monotonic()
    time.sleep(arguments.seconds)
    quiet = answers.within(begin, time.monotonic())
    begin, firsts = time.monotonic(), []
    while len(firsts) < arguments.arrivals:
        asked = time.monotonic()

        def first(now):
            firsts.append(now - asked)
            return False
        tokens_of(port, random_prompt(arguments.prompt), 2, first)
    busy = answers.within(begin, time.monotonic())
    answers.end()
    return quiet, busy, sorted(firsts)


def run(arguments, work, layout, cores, source):
    folder = work / "model"
    serve = [arguments.build / "bin/kvtier-engine", "--threads"]
    options = ["--model", folder, "--served-name", "model", "--port", "0", "--socket", work / "s", "--pool-tokens",
               str(6 * arguments.prompt), "--chunk-tokens-beside-answers", str(arguments.beside)]
    if layout == "together":
        engines = [Started([*serve, str(len(cores)), "serve", *options], cores)]
        port = engines[0].port
    else:
        engines = [Started([*serve, "1", "serve", *options, "--role", role], [core])
                   for role, core in zip(("prefill", "decode"), cores)]
        proxy = [sys.executable, ROOT / "scripts/proxies/pd_proxy.py", "--port", "0", "--prefill", f"http://127.0.0.1:{engines[0].port}",
                 "--decode", f"http://127.0.0.1:{engines[1].port}", *(["--behind"] if layout == "behind" else [])]
        engines.append(Started(proxy, cores[:1], nice=os.getpriority(os.PRIO_PROCESS, 0)))
        port = engines[2].port
    try:
        quiet, busy, firsts = measure(port, arguments, source)
        if layout != "together":
            seen = metrics(engines[1].port)
            if seen["kvtier_engine_handoffs_given_up_total"] or seen["kvtier_engine_handoffs_total"] <= arguments.arrivals:
                raise SystemExit(f"prompts were not handed over: {seen}")
        return quiet, busy, firsts
    finally:
        for engine in reversed(engines):
            engine.end()


def rows_of(layout, quiet, busy, firsts):
    name = layout.replace(" ", "_")

    def row(what, value, unit, limit=None):
        return {"name": f"{name}.{what}", "value": value, "unit": unit, "limit": limit, "ratio": value / limit if limit else None}
    return [*(row(f"inter_token_{title}.{when}", 1e3 * at(values, part), "ms", limit)
              for title, part in (("p50", 0.5), ("p99", 0.99))
              for when, values, limit in (("quiet", quiet, None), ("arrivals", busy, 1e3 * at(quiet, part)))),
            row("first_token_p50", 1e3 * at(firsts, 0.5), "ms"),
            row("tokens_seen", len(quiet) + len(busy), "tokens")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True, help="where bin/kvtierd and bin/kvtier-engine are")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", type=Path, default=ROOT / "engine_adapter/models/docs-4m")
    parser.add_argument("--prompt", type=int, default=8192, help="tokens of a prompt that arrives")
    parser.add_argument("--arrivals", type=int, default=5)
    parser.add_argument("--answers", type=int, default=4, help="that are under way")
    parser.add_argument("--seconds", type=float, default=10, help="that are looked at without arrivals")
    parser.add_argument("--beside", type=int, default=512, help="--chunk-tokens-beside-answers of the engines")
    parser.add_argument("--layouts", default="apart,behind,together on one core,together on two cores")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("pd_bench: two cores are needed")
    os.sched_setaffinity(0, cores[:1])
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    source = random.Random(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        model = work / "model"
        model.mkdir()
        for file in arguments.model.iterdir():
            if file.name != "config.json":
                os.symlink(file.resolve(), model / file.name)
        config = json.loads((arguments.model / "config.json").read_text())
        # Room for the answer behind a prompt of that length.
        config["max_position_embeddings"] = max(config["max_position_embeddings"], 2 * arguments.prompt)
        (model / "config.json").write_text(json.dumps(config))
        for layout in arguments.layouts.split(","):
            (work / "kvtierd.toml").write_text(CONFIG.format(work=work, capacity="1GiB"))
            with open(work / "log", "a", encoding="utf-8") as log:
                daemon = subprocess.Popen(["taskset", "-c", ",".join(map(str, cores)), arguments.build / "bin/kvtierd",
                                           "--config", work / "kvtierd.toml"], stderr=log)
            while not (work / "s").exists():
                time.sleep(0.05)
            try:
                kind = layout.split()[0]
                used = cores[1:] if layout == "together on one core" else cores
                rows += rows_of(layout, *run(arguments, work, kind, used, source))
            finally:
                daemon.kill()
                daemon.wait()
                (work / "s").unlink(missing_ok=True)
            for row in rows[-6:]:
                print(row, file=sys.stderr)
    text = json.dumps(rows, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
