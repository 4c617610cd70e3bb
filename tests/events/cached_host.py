"""One host as it is in production: a kvtierd that publishes events, and an engine beside it."""
import http.client
import json
import re
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

CONFIG = """\
socket = "{work}/s"
[host]
capacity = "8MiB"
extent_size = "1MiB"
huge_pages = false
[disk]
directory = "{work}/disk"
capacity = "96MiB"
segment_size = "1MiB"
[http]
listen = ""
[events]
endpoint = "{events}"
replay_endpoint = "{replay}"
tokens = true
"""


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [made.getsockname()[1] for made in sockets]
    for made in sockets:
        made.close()
    return ports


def prompt(number, lines=12):
    return " ".join(f"Line {i} of text {number}: to mount disk {i}, edit file {number * i}." for i in range(lines))


def until(holds, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"it never came to be that {what}"
        time.sleep(0.1)


def ask(port, text):
    """The answer of an OpenAI server, and the headers that came with it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    body = {"model": "docs-4m", "prompt": text, "max_tokens": 1, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    answer = json.loads(reply.read())
    connection.close()
    assert reply.status == 200, answer
    return answer, reply.headers


def cached_tokens(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


class Processes:
    """What a test has started, and ends."""

    def __init__(self, test):
        self.test = test

    def start(self, command, **more):
        process = subprocess.Popen(command, **more)
        self.test.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.wait(timeout=60)
        if process.stdout:
            process.stdout.close()


class CachedHost(Processes):
    """`programs` has kvtierd, kvtierctl, engine, model and work, a folder on a real file system. `network`: the host's own,
    if it has one."""

    def __init__(self, test, programs, network=None):
        super().__init__(test)
        self.programs = programs
        self.address = network.address if network else "127.0.0.1"
        self.inside = network.inside if network else []
        folder = tempfile.TemporaryDirectory(dir=programs.work)
        test.addCleanup(folder.cleanup)
        self.work = Path(folder.name)
        self.events, self.replay = (f"tcp://{self.address}:{port}" for port in free_ports(2))
        self.config = self.work / "kvtierd.toml"
        self.config.write_text(CONFIG.format(work=self.work, events=self.events, replay=self.replay))
        self.start_daemon()
        self.start_engine()

    def start_daemon(self):
        self.daemon = self.start([*self.inside, self.programs.kvtierd, "--config", self.config])
        until(lambda: self.ctl("status") is not None, "kvtierd answers")

    def kill_daemon(self):
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait(timeout=60)

    def start_engine(self):
        """One without pages of its own that it could use again, in place of the last."""
        self.engine = self.start(
            [*self.inside, self.programs.engine, "--threads", "1", "serve", "--model", self.programs.model, "--host",
             self.address, "--port", "0", "--socket", self.work / "s"], stdout=subprocess.PIPE, text=True)
        self.engine_port = int(re.search(r"http://[0-9.]+:(\d+)", self.engine.stdout.readline()).group(1))

    def ctl(self, *command):
        asked = subprocess.run([self.programs.kvtierctl, "--socket", self.work / "s", *command, "--json"],
                               capture_output=True, text=True)
        return json.loads(asked.stdout) if asked.returncode == 0 else None

    def blocks(self):
        return self.ctl("ls", "--limit", "100000")["blocks"]
