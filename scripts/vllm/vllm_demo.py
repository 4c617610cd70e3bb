#!/usr/bin/env python3
"""vLLM answers one question about one document six ways, with kvtier as its cache, and once without it.

scripts/vllm-demo.sh installs what it needs. Held: the same tokens as vLLM without the connector; the document's blocks
from the cache and not from vLLM's own; the first token sooner. The result has the schema of scripts/demo.py.
"""
import argparse
import hashlib
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from demo import Daemon, print_table, report  # noqa: E402
from vllm_engine import BUNDLED as MODEL, Engine  # noqa: E402

BLOCK_TOKENS = 128  # of vLLM on the CPU
# Where a CPU has no instructions for bfloat16, float32 is quicker.
ENGINE = {"max_model_len": 8192, "dtype": "float32"}
CONFIG = """\
socket = "{work}/kvtierd.sock"

[host]
capacity = "512MiB"
extent_size = "64MiB"

[disk]
directory = "{work}/disk"
capacity = "1GiB"
segment_size = "64MiB"
"""
NOT_NEEDED = ("torch", "torchvision", "torchaudio", "torchcodec", "triton")


def requirements(wheel):
    """What the wheel requires, but for PyTorch, of which its plain build is taken."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().split("\n\n")[0].splitlines()
    torch = ""
    for line in lines:
        if not line.startswith("Requires-Dist:") or "extra ==" in line:
            continue
        wanted = line.removeprefix("Requires-Dist:").strip()
        package = re.split(r"[ ;<>=!~\[(]", wanted)[0].lower()
        if package == "torch":
            torch = re.search(r"==\s*([0-9]+(?:\.[0-9]+)*)", wanted)[1]  # on every platform
        elif package not in NOT_NEEDED:
            print(wanted)
    print(f"torch=={torch}")


def prompt_and_document():
    document = (ROOT / "scripts" / "demo-document.txt").read_text()
    question = (ROOT / "scripts" / "demo-questions.txt").read_text().splitlines()[0]
    return f"{document}\n\nQuestion: {question}\nAnswer:", document


class Cache(Daemon):
    """kvtierd, and kvtierctl."""

    def tell(self, *command):
        command = [self.ctl, "--socket", self.socket, *command]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def tier(self, tier):
        """What kvtierctl says of it."""
        return next(t for t in json.loads(self.tell("status", "--json"))["tiers"] if t["tier"] == tier)

    def blocks(self, tier):
        return self.tier(tier)["blocks"]

    def insertions(self, tier):
        """Blocks that have come into it, those that have gone since among them."""
        return self.tier(tier)["insertions"]

    def record_bytes(self, tier):
        """Of a tier's blocks, which are all alike."""
        of = self.tier(tier)
        return of["used_bytes"] // of["blocks"]

    def wait_until_durable(self, blocks):
        """An engine that stands does not wait for its stores to be committed; whoever stops the daemon does."""
        self.wait(lambda: self.blocks("host") >= blocks, f"fewer than {blocks} blocks were stored")
        self.tell("flush")

    def leave_on_disk_alone(self):
        """What is flushed and not leased is gone from memory; what is on its way there is waited for."""
        def gone():
            self.tell("drop", "--tier", "host")
            return self.blocks("host") == 0
        self.wait(gone, "blocks stayed in memory")

    def start_again(self, how, meanwhile=lambda: None):
        """Returns when the engine that is there has found it again."""
        self.stop(how)
        meanwhile()
        self.start()
        self.wait(lambda: self.engine_sessions() == 2, "the engine did not connect again")

    def engine_sessions(self):
        """Those of its scheduler and its worker that have opened their namespace."""
        sessions = json.loads(self.tell("sessions", "--json"))["sessions"]
        return sum(session["name"].startswith("vllm") and session["namespaces"] > 0 for session in sessions)

    def wait(self, condition, otherwise, seconds=60):
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(otherwise)
            time.sleep(0.1)


def row(name, said):
    answer, counted = said["answers"][0], said["counted"]
    loaded = counted.get("loaded", 0)
    source = "none" if not loaded else "disk" if counted["from_disk"] else "host"
    # Found by vLLM's count, and come by the connector's.
    reused = int(min(counted.get("external", 0), loaded * BLOCK_TOKENS))
    return {"name": name, "prompt_tokens": len(answer["prompt_ids"]), "reused_tokens": reused, "source": source,
            "first_token_ms": round(answer["first_token_ms"], 3),
            "answer_sha256": hashlib.sha256(json.dumps(answer["ids"]).encode()).hexdigest()}


def all_runs(cache, make, prompt):
    cache.start()
    with make() as engine:
        said = engine.ask([prompt])
        yield row("computed", said)
        cache.wait_until_durable(len(said["answers"][0]["prompt_ids"]) // BLOCK_TOKENS)
        yield row("same engine again", engine.ask([prompt], forget=True))
    with make() as engine:
        yield row("new engine process", engine.ask([prompt]))
        cache.leave_on_disk_alone()
        yield row("host tier emptied (from disk)", engine.ask([prompt], forget=True))
        for name, how in (("daemon restarted", signal.SIGTERM), ("daemon killed with SIGKILL", signal.SIGKILL)):
            cache.start_again(how)
            yield row(name, engine.ask([prompt], forget=True))


def failures(runs, plain, document_tokens):
    """What was promised and did not hold, in words."""
    for run in runs:
        if run["answer_sha256"] != plain["answer_sha256"]:
            yield f"{run['name']}: other tokens than vLLM without the connector"
    if document_tokens < 4000:
        yield f"the document has only {document_tokens} tokens"
    if runs[0]["reused_tokens"]:
        yield "the computed run reused tokens"
    for run in runs[1:]:
        if run["reused_tokens"] < document_tokens // BLOCK_TOKENS * BLOCK_TOKENS:
            yield f"{run['name']}: only {run['reused_tokens']} of {document_tokens} tokens came from the cache"
        if run["first_token_ms"] >= min(runs[0]["first_token_ms"], plain["first_token_ms"]):
            yield f"{run['name']}: the first token came no sooner"
    for run, source in zip(runs, ["none", "host", "host", "disk", "disk", "disk"]):
        if run["source"] != source:
            yield f"{run['name']}: came from {run['source']}, not {source}"


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--requirements", type=pathlib.Path, help="print what this wheel of vLLM requires, and end")
    arguments.add_argument("--build", type=pathlib.Path, help="CMake's binary directory")
    arguments.add_argument("--out", type=pathlib.Path, help="where the JSON goes")
    arguments = arguments.parse_args()
    if arguments.requirements:
        return requirements(arguments.requirements)
    prompt, document = prompt_and_document()
    build = arguments.build.resolve()
    # The disk tier wants a real file system, which /tmp may not be.
    work = pathlib.Path(tempfile.mkdtemp(prefix="vllm-demo-", dir=build))
    cache = Cache(build / "bin", work, CONFIG)
    log = open(arguments.out.with_suffix(".log"), "w")
    how = {**ENGINE, "max_num_batched_tokens": 2048}
    try:
        with Engine(log, MODEL, **how) as engine:
            plain = row("vLLM without the connector", engine.ask([prompt]))
            document_tokens = len(engine.ask([document], max_tokens=1)["answers"][0]["prompt_ids"])
        # Without prefetches, by which what was on disk is found in memory.
        connector = {"kvtier.prefetch": False}
        runs = list(all_runs(cache, lambda: Engine(log, MODEL, cache.socket, connector, **how), prompt))
        arguments.out.write_text(json.dumps({"document_tokens": document_tokens, "runs": runs}, indent=2) + "\n")
        print_table(runs, document_tokens)
        print(f"{plain['name']}: {plain['first_token_ms']:.1f} ms, answer {plain['answer_sha256'][:12]}")
        wrong = list(failures(runs, plain, document_tokens))
        return report(wrong, arguments.out, log.name)
    finally:
        if cache.process and cache.process.poll() is None:
            cache.stop(signal.SIGTERM)
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
