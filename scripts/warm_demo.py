#!/usr/bin/env python3
"""Runs the demo of kvtier-warm (scripts/warm-demo.sh builds first): a documentation tree is warmed, with the tool
ended twice in the middle, and every document's first token then comes from the cache."""
import argparse
import http.client
import json
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from demo import BLOCK_TOKENS, ROOT, Daemon, tokens_in

MODEL = ROOT / "engine_adapter" / "models" / "docs-4m"
# CMake is needed to build this, so its manual is at hand everywhere, and nothing has to be downloaded. Shorter pages
# say too little to be worth a question; computing the longest would take most of the time.
PACKAGE = "cmake-data"
PAGE_BYTES = range(1 << 10, 8 << 10)
DOCUMENTS_WANTED = 200
PREFIX = "The following is a page of CMake's manual.\n\n"
QUESTION = "\n\nQuestion: What is this page about?\nAnswer:"
PARALLEL = 4
CHUNK_TOKENS = 512
COMPUTED_EVERY = 8  # so many documents are one that is asked without a cache, too
SPEED_UP_WANTED = 5

CONFIG = """\
socket = "{work}/kvtierd.sock"

[host]
capacity = "256MiB"
extent_size = "64MiB"

[disk]
directory = "{work}/disk"
capacity = "2GiB"
segment_size = "64MiB"

[http]
listen = ""
"""


def pages_of_package():
    listed = subprocess.run(["dpkg", "-L", PACKAGE], capture_output=True, text=True, check=True).stdout.split("\n")
    pages = [pathlib.Path(path) for path in listed if "/Help/" in path and path.endswith(".rst")]
    return sorted(page for page in pages if page.is_file() and page.stat().st_size in PAGE_BYTES)


class Engine:
    """kvtier-engine serve as a child process."""

    def __init__(self, program, *flags):
        command = [program, "serve", "--model", MODEL, "--port", "0", "--chunk-tokens", str(CHUNK_TOKENS), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        serving = re.search(r"http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        if not serving:
            sys.exit("kvtier-engine did not come up")
        self.port = int(serving.group(1))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(timeout=60) != 0:
            sys.exit(f"kvtier-engine ended with {self.process.returncode}")

    def metric(self, name):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        return float(re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE).group(1))

    def ask(self, prompt):
        """Milliseconds to the first token, the answer, and usage."""
        body = {"model": "docs-4m", "prompt": prompt, "max_tokens": 8, "temperature": 0, "stream": True,
                "ignore_eos": True, "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        begun, first, text, usage = time.monotonic(), None, "", None
        connection.request("POST", "/v1/completions", json.dumps(body))
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            first = first or time.monotonic()
            event = json.loads(line[6:])
            if "error" in event:
                sys.exit(f"the engine: {event['error']['message']}")
            usage = event.get("usage") or usage
            text += "".join(choice["text"] for choice in event["choices"])
        connection.close()
        return (first - begun) * 1000, text, usage


class Run:
    """One run of kvtier-warm and what it said about each document, up to a signal after so many."""

    def __init__(self, command, signal_after=None):
        how, after = signal_after or (None, None)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.computed, self.cached, self.other = {}, set(), []
        for line in process.stderr:
            said = re.fullmatch(r"\d+/\d+ (.+): (?:was cached|(\d+) of \d+ tokens computed)\n", line)
            if not said:
                self.other.append(line)
            elif said.group(2):
                self.computed[said.group(1)] = int(said.group(2))
            else:
                self.cached.add(said.group(1))
            if how and len(self.computed) >= after:
                process.send_signal(how)
                how = None
        output = process.stdout.read()
        self.exit_code = process.wait(timeout=60)
        self.summary = json.loads(output) if output else None

    def row(self, name):
        rate = self.summary and round(self.summary["prompt_tokens"] / self.summary["elapsed_ms"] * 1000)
        return {"name": name, "exit_code": self.exit_code, "computed": len(self.computed), "cached": len(self.cached),
                "tokens_computed": sum(self.computed.values()), "tokens_per_s": rate,
                "seconds": self.summary and self.summary["elapsed_ms"] / 1000}


def all_runs(command, documents):
    third = documents // 3
    yield "interrupted by SIGINT", Run(command, (signal.SIGINT, third))
    yield "killed by SIGKILL", Run(command, (signal.SIGKILL, third))
    yield "to the end", Run(command)
    yield "once more", Run(command)


def wrong_with_runs(runs, documents, tokens, tokens_computed):
    """What was promised of the runs and did not hold, in words."""
    for (name, run), wanted in zip(runs, (130, -signal.SIGKILL, 0, 0)):
        if run.exit_code != wanted:
            yield f"{name}: exit code {run.exit_code}, not {wanted}: {''.join(run.other)}"
    done = set()
    for name, run in runs:
        for page in sorted(done & set(run.computed)):
            yield f"{name}: {page} had been warmed, and {run.computed[page]} of its tokens were computed again"
        done |= set(run.computed) | run.cached
    if len(done) != documents:
        yield f"{len(done)} of {documents} documents were warmed"
    # A document that is found has its last block computed; a request that is given up, a step at the most.
    again = sum(len(run.cached) for _, run in runs) * BLOCK_TOKENS + 2 * PARALLEL * CHUNK_TOKENS
    if tokens_computed > tokens + again:
        yield f"{tokens_computed:.0f} tokens were computed for {tokens} of text and {again} for what was interrupted"


def ask_all(pages, warm, cold):
    for i, page in enumerate(pages):
        prompt = PREFIX + page.read_text() + QUESTION
        ms, answer, usage = warm.ask(prompt)
        asked = {"page": str(page), "prompt_tokens": usage["prompt_tokens"],
                 "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"], "first_token_ms": round(ms, 3)}
        if i % COMPUTED_EVERY == 0:
            ms, computed_answer, _ = cold.ask(prompt)
            asked |= {"computed_first_token_ms": round(ms, 3), "same_answer": computed_answer == answer}
        yield asked


def wrong_with_answers(asked, question_tokens):
    for one in asked:
        # The document's last token may become another one together with what follows.
        if one["cached_tokens"] < one["prompt_tokens"] - question_tokens - 2 * BLOCK_TOKENS:
            yield f"{one['page']}: only {one['cached_tokens']} of {one['prompt_tokens']} tokens came from the cache"
        if not one.get("same_answer", True):
            yield f"{one['page']}: another answer than without a cache"


def print_tables(plan, rows, result):
    print(f"\n{plan['documents']} pages of CMake's manual ({PACKAGE}), {plan['tokens']} tokens, at most "
          f"{plan['kv_bytes'] / 2**20:.0f} MiB of KV\n")
    print(f"{'kvtier-warm':<24}{'computed':>9}{'cached':>8}{'tokens computed':>17}{'seconds':>9}{'tokens/s':>10}")
    for row in rows:
        print(f"{row['name']:<24}{row['computed']:>9}{row['cached']:>8}{row['tokens_computed']:>17}"
              f"{row['seconds'] or '-':>9}{row['tokens_per_s'] or '-':>10}")
    print(f"\n{'first token of a question':<44}{'questions':>10}{'p50':>10}{'p99':>10}{'cached':>9}")
    for row in result["first_token"]:
        print(f"{row['name']:<44}{row['questions']:>10}{row['p50_ms']:>7.1f} ms{row['p99_ms']:>7.1f} ms"
              f"{row['cached_share']:>9.1%}")
    print(f"\nThe same {result['compared']} questions: {result['sooner']:.1f} times sooner than computed.")


def row_of(name, times, cached, tokens):
    ranked = sorted(times)
    return {"name": name, "questions": len(times), "p50_ms": round(statistics.median(times), 3),
            "p99_ms": ranked[min(len(ranked) - 1, len(ranked) * 99 // 100)], "cached_share": cached / tokens}


def summarise(asked):
    both = [one for one in asked if "computed_first_token_ms" in one]
    warm = [one["first_token_ms"] for one in asked]
    cold = [one["computed_first_token_ms"] for one in both]
    tokens = sum(one["prompt_tokens"] for one in asked)
    return {"first_token": [row_of("computed (an engine without a cache)", cold, 0, tokens),
                            row_of("warmed (an engine that computed none of it)", warm,
                                   sum(one["cached_tokens"] for one in asked), tokens)],
            "compared": len(both), "sooner": sum(cold) / sum(one["first_token_ms"] for one in both)}


def demonstrate(build, work, children):
    """Everything that was seen, and what did not hold."""
    programs = build / "bin"
    engine, warm = programs / "kvtier-engine", programs / "kvtier-warm"
    pages = pages_of_package()
    manifest = work / "warm.json"
    manifest.write_text(json.dumps({"prefix": PREFIX, "documents": [{"path": str(page)} for page in pages]}))
    plan = json.loads(subprocess.run([warm, "--dry-run", "--json", "--manifest", manifest, "--tokenizer", MODEL],
                                     capture_output=True, check=True).stdout)
    daemon = Daemon(programs, work, CONFIG)
    children.append(lambda: daemon.stop(signal.SIGTERM))
    daemon.start()
    cached = ("--socket", daemon.socket, "--load-policy", "load", "--deadline-ms", "10000")
    first = Engine(engine, *cached)
    children.append(first.stop)
    command = [warm, "--json", "--endpoint", f"http://127.0.0.1:{first.port}", "--parallel", str(PARALLEL), "--manifest", manifest]
    runs = []
    for name, run in all_runs(command, len(pages)):
        runs.append((name, run))
        print(f"{name}: {len(run.computed)} documents computed, {len(run.cached)} found in the cache", flush=True)
    computed = first.metric("kvtier_engine_tokens_computed_total")
    children.pop()()

    second = Engine(engine, *cached)
    children.append(second.stop)
    cold = Engine(engine, "--no-cache", "--pool-tokens", "8192")
    children.append(cold.stop)
    asked = list(ask_all(pages, second, cold))
    wrong = list(wrong_with_runs(runs, len(pages), plan["tokens"], computed))
    question = work / "question.txt"
    question.write_text(QUESTION)
    wrong += wrong_with_answers(asked, tokens_in(engine, MODEL, question))
    result = summarise(asked)
    if len(pages) < DOCUMENTS_WANTED:
        wrong.append(f"{PACKAGE} has {len(pages)} fitting pages, not {DOCUMENTS_WANTED}")
    if result["sooner"] < SPEED_UP_WANTED:
        wrong.append(f"first tokens come {result['sooner']:.1f} times sooner, not {SPEED_UP_WANTED}")
    return {"plan": plan, "runs": [run.row(name) for name, run in runs], "tokens_computed": computed, **result,
            "questions": asked}, wrong


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--build", type=pathlib.Path, required=True, help="CMake's binary directory")
    arguments.add_argument("--out", type=pathlib.Path, required=True, help="where the JSON goes")
    arguments = arguments.parse_args()
    build = arguments.build.resolve()
    # The disk tier wants a real file system, which /tmp may not be.
    work = pathlib.Path(tempfile.mkdtemp(prefix="warm-demo-", dir=build))
    children = []
    try:
        seen, wrong = demonstrate(build, work, children)
        arguments.out.write_text(json.dumps(seen, indent=2) + "\n")
        print_tables(seen["plan"], seen["runs"], seen)
        for what in wrong:
            print(f"NOT HELD: {what}", file=sys.stderr)
        print(f"\n{arguments.out} written; " + ("everything held." if not wrong else "see above."))
        return 1 if wrong else 0
    finally:
        for stop in reversed(children):
            stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
