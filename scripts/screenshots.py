#!/usr/bin/env python3
"""Traffic for a few minutes, then pictures of the status page (scripts/screenshots.sh)."""
import argparse
import fcntl
import html
import os
import pathlib
import pty
import random
import re
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.parse

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


COLUMNS, ROWS = 118, 36
COLOURS = {"1": "font-weight:bold", "31": "color:#f66", "32": "color:#6d6", "33": "color:#dc6"}


def top_as_page(command):
    """What `kvtierctl top` draws on a terminal after a few intervals, as a data: URL."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, start_new_session=True)
    os.close(theirs)
    timer = threading.Timer(6, lambda: os.write(ours, b"q"))
    timer.start()
    drawn = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not piece:
            break
        drawn += piece
    if process.wait() != 0:
        sys.exit("screenshots: kvtierctl top failed")
    # Frames begin in the corner and end by erasing what is below.
    frame = drawn.decode().split("\x1b[H")[-1].split("\x1b[J")[0].replace("\x1b[K", "").replace("\r", "")
    text = html.escape(frame)
    text = re.sub(r"\x1b\[(\d+)m", lambda m: "</span>" if m[1] == "0" else f"<span style='{COLOURS[m[1]]}'>", text)
    body = f"<pre style='margin:0;padding:12px;background:#181818;color:#ddd;font:14px monospace'>{text}</pre>"
    return "data:text/html;charset=utf-8," + urllib.parse.quote(f"<html><body style='margin:0'>{body}</body></html>")


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
            page = top_as_page([programs / "kvtierctl", "--socket", daemon.socket, "top"])
            browser.look(1040, 640)
            browser.open(page)
            browser.wait_for("document.querySelector('pre') !== null")
            browser.screenshot(arguments.out / "top.png")
        finally:
            last.kill()
            last.wait()
    finally:
        if browser:
            browser.close()
        daemon.close()


if __name__ == "__main__":
    main()
