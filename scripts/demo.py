#!/usr/bin/env python3
"""Runs the demo (scripts/demo.sh builds first): one document, one question, six ways to its first token."""
import argparse
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "engine_adapter" / "models" / "docs-4m"
DOCUMENT = ROOT / "scripts" / "demo-document.txt"
BLOCK_TOKENS = 16
RANDOM_TOKENS = 4096
SPEED_UP_WANTED = 10

CONFIG = """\
socket = "{work}/kvtierd.sock"

[device]
capacity = "64MiB"
extent_size = "16MiB"

[host]
capacity = "256MiB"
extent_size = "64MiB"

[disk]
directory = "{work}/disk"
capacity = "1GiB"
segment_size = "64MiB"
"""


class Daemon:
    """kvtierd as a child process on its own socket and directory."""

    def __init__(self, programs, work, config=CONFIG):
        self.program, self.ctl, self.work, self.process = programs / "kvtierd", programs / "kvtierctl", work, None
        self.socket = work / "kvtierd.sock"
        self.config = work / "kvtierd.toml"
        self.config.write_text(config.format(work=work))

    def start(self):
        log = open(self.work / "kvtierd.log", "ab")
        self.process = subprocess.Popen([self.program, "--config", self.config], stderr=log)
        deadline = time.monotonic() + 30
        while subprocess.run([self.ctl, "--socket", self.socket, "status", "--json"],
                             capture_output=True).returncode:
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"kvtierd did not come up:\n{(self.work / 'kvtierd.log').read_text()}")
            time.sleep(0.02)

    def stop(self, how):
        self.process.send_signal(how)
        self.process.wait(timeout=60)


def generate(engine, question, socket, *flags):
    """The runs of one engine process, as kvtier-engine reports them; `question` is what names model and prompt."""
    command = [engine, "generate", *question, "--socket", socket, "--max-tokens", "48", "--json", "--flush", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"kvtier-engine failed ({done.returncode}):\n{done.stderr}")
    return json.loads(done.stdout)["runs"]


def tokens_in(engine, model, text):
    """How many tokens the document has."""
    done = subprocess.run([engine, "tokenize", "--model", model, "--text-file", text, "--json"],
                          capture_output=True, text=True, check=True)
    return len(json.loads(done.stdout)["ids"])


def row(name, run):
    return {"name": name, "prompt_tokens": run["prompt_tokens"], "reused_tokens": run["reused_tokens"],
            "source": run["source"], "first_token_ms": round(run["first_token_ms"], 3),
            "answer_sha256": run["answer_sha256"]}


def all_runs(daemon, engine, question):
    daemon.start()
    first, again = generate(engine, question, daemon.socket, "--repeat", "2")
    yield row("computed", first), first["answer"]
    yield row("same engine again", again), None
    yield row("new engine process", generate(engine, question, daemon.socket)[0]), None
    subprocess.run([daemon.ctl, "--socket", daemon.socket, "drop", "--tier", "device", "--tier", "host"],
                   check=True, capture_output=True)
    yield row("device and host tiers emptied (from disk)",
              generate(engine, question, daemon.socket)[0]), None
    for name, how in (("daemon restarted", signal.SIGTERM), ("daemon killed with SIGKILL", signal.SIGKILL)):
        daemon.stop(how)
        daemon.start()
        yield row(name, generate(engine, question, daemon.socket)[0]), None


def failures(runs, document_tokens):
    """What was promised and did not hold, in words."""
    computed, cached = runs[0], runs[1:]
    if computed["reused_tokens"]:
        yield "the computed run reused tokens"
    if document_tokens < 4000:
        yield f"the document has only {document_tokens} tokens"
    for run in cached:
        if run["answer_sha256"] != computed["answer_sha256"]:
            yield f"{run['name']}: another answer"
        if run["reused_tokens"] < document_tokens // BLOCK_TOKENS * BLOCK_TOKENS:
            yield f"{run['name']}: only {run['reused_tokens']} of {document_tokens} tokens reused"
        if run["first_token_ms"] * SPEED_UP_WANTED > computed["first_token_ms"]:
            yield f"{run['name']}: first token less than {SPEED_UP_WANTED} times sooner"
    wanted = ["none", "device", "device", "disk", "disk", "disk"]
    for run, source in zip(runs, wanted):
        if run["source"] != source:
            yield f"{run['name']}: came from {run['source']}, not {source}"


def print_table(runs, document_tokens):
    print(f"\nThe document has {document_tokens} tokens. First token of the same answer, six ways:\n")
    print(f"{'run':<44}{'prompt':>8}{'reused':>8}  {'from':<8}{'first token':>12}{'sooner':>9}  answer")
    for run in runs:
        ratio = runs[0]["first_token_ms"] / run["first_token_ms"]
        print(f"{run['name']:<44}{run['prompt_tokens']:>8}{run['reused_tokens']:>8}  {run['source']:<8}"
              f"{run['first_token_ms']:>9.1f} ms{ratio:>8.1f}x  {run['answer_sha256'][:12]}")


def report(wrong, *written):
    """Says what did not hold. Returns the exit status."""
    for what in wrong:
        print(f"NOT HELD: {what}", file=sys.stderr)
    print(f"\n{' and '.join(map(str, written))} written; " + ("everything held." if not wrong else "see above."))
    return 1 if wrong else 0


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--build", type=pathlib.Path, required=True, help="CMake's binary directory")
    arguments.add_argument("--out", type=pathlib.Path, required=True, help="where the JSON goes")
    arguments.add_argument("--random-weights", metavar="SHAPE", help="not the bundled model but weights drawn for a shape "
                           "(tiny-mla has latent attention), with a prompt of random tokens")
    arguments.epilog = "Other options go to kvtier-engine generate: --storage-format int4, --sinks 4 --window 2044."
    arguments, of_engine = arguments.parse_known_args()
    build = arguments.build.resolve()
    engine = build / "bin" / "kvtier-engine"

    # The disk tier wants a real file system, which /tmp may not be.
    work = pathlib.Path(tempfile.mkdtemp(prefix="demo-", dir=build))
    daemon = Daemon(build / "bin", work)
    try:
        if arguments.random_weights:
            document_tokens = RANDOM_TOKENS
            question = ["--random-weights", arguments.random_weights, "--prompt-length", str(RANDOM_TOKENS + 1)]
        else:
            document_tokens = tokens_in(engine, MODEL, DOCUMENT)
            asked = (ROOT / "scripts" / "demo-questions.txt").read_text().splitlines()[0]
            prompt = work / "prompt.txt"
            prompt.write_text(f"{DOCUMENT.read_text()}\n\nQuestion: {asked}\nAnswer:")
            question = ["--model", MODEL, "--prompt-file", prompt]
        question += of_engine
        rows = []
        for run, answer in all_runs(daemon, engine, question):
            rows.append(run)
            if answer is not None and not arguments.random_weights:
                print(f"\nQuestion: {asked}\nAnswer of the bundled 4M-parameter model:{answer}")
        arguments.out.write_text(json.dumps({"document_tokens": document_tokens, "runs": rows}, indent=2) + "\n")
        print_table(rows, document_tokens)
        wrong = list(failures(rows, document_tokens))
        return report(wrong, arguments.out)
    finally:
        if daemon.process and daemon.process.poll() is None:
            daemon.stop(signal.SIGTERM)
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
