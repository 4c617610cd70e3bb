#!/usr/bin/env python3
"""Traffic for a few minutes, then pictures of the status page (scripts/screenshots.sh)."""
import argparse
import pathlib
import random
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "ops"))
import chromium  # noqa: E402
import served_daemon  # noqa: E402


def prompts():
    """Endless prompts that share a beginning as conversations do: a few documents, each with many questions."""
    paragraphs = (ROOT / "scripts" / "demo-document.txt").read_text().split("\n\n")
    questions = (ROOT / "scripts" / "demo-questions.txt").read_text().splitlines()
    chance = random.Random(1)
    documents = ["\n\n".join(paragraphs[i:] + paragraphs[:i]) for i in range(0, len(paragraphs), 3)]
    while True:
        document = documents[min(int(chance.expovariate(0.5)), len(documents) - 1)]
        yield document[:6000] + "\n\nQuestion: " + chance.choice(questions) + "\nAnswer:"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=int, required=True)
    arguments = parser.parse_args()
    if chromium.found() is None:
        sys.exit("screenshots: no Chromium: apt-get install chromium")
    programs = arguments.build / "bin"
    daemon = served_daemon.ServedDaemon(programs / "kvtierd", "/var/tmp", device="2MiB", host="8MiB", disk="64MiB")
    browser = None
    try:
        until = time.monotonic() + arguments.seconds
        for number, prompt in enumerate(prompts()):
            if time.monotonic() > until:
                break
            file = daemon.work / "prompt.txt"
            file.write_text(prompt)
            # Two formats, as two engines with different settings have.
            form = "bf16" if number % 5 == 4 else "fp8_e4m3"
            subprocess.run([programs / "kvtier-engine", "generate", "--model",
                            ROOT / "engine_adapter" / "models" / "docs-4m", "--socket", daemon.socket,
                            "--prompt-file", file, "--max-tokens", "8", "--flush", "--storage-format", form],
                           check=True, capture_output=True)
        last = subprocess.Popen([programs / "kvtier-engine", "generate", "--model",
                                 ROOT / "engine_adapter" / "models" / "docs-4m", "--socket", daemon.socket,
                                 "--prompt-file", file, "--max-tokens", "400", "--repeat", "50"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            daemon.wait(lambda: daemon.status()["sessions_open"] > 0)
            browser = chromium.Chromium()
            for name, dark in (("status-light", False), ("status-dark", True)):
                browser.look(1280, 900, dark)
                browser.open(daemon.url + "/")
                browser.wait_for("document.body && document.body.dataset.shown > 0")
                arguments.out.mkdir(parents=True, exist_ok=True)
                browser.screenshot(arguments.out / f"{name}.png")
        finally:
            last.kill()
            last.wait()
    finally:
        if browser:
            browser.close()
        daemon.close()


if __name__ == "__main__":
    main()
