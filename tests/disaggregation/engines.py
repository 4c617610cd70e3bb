"""A kvtierd, engines that share it, and the proxy in front of them: real processes on the loopback."""
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """\
socket = "{work}/s"
[host]
capacity = "192MiB"
extent_size = "16MiB"
huge_pages = false
[http]
listen = ""
"""


def text(number, lines):
    return " ".join(f"Line {i} of text {number}: to mount disk {i}, edit file {number * i}." for i in range(lines))


def redis(test):
    """The URL of a Redis of the test's own, on a unix socket."""
    if shutil.which("redis-server") is None:
        test.skipTest("there is no redis-server: scripts/bootstrap.sh installs it")
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    path = Path(folder.name) / "redis.sock"
    server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir",
                               folder.name], stdout=subprocess.DEVNULL)

    def end():
        server.kill()
        server.wait(timeout=60)
    test.addCleanup(end)
    until(path.exists, "redis-server listens")
    return f"redis+unix://{path}"


def until(holds, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"it never came to be that {what}"
        time.sleep(0.01)
    return found


class Served:
    """Something that listens."""

    def __init__(self, test, command):
        self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
        test.addCleanup(self.end)
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found, f"{command[0]} said {line!r}"
        self.port = int(found.group(1))
        self.url = f"http://127.0.0.1:{self.port}"

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=60)
        self.process.stdout.close()

    def request(self, path, body=None, timeout=300):
        """(status, JSON or text)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body),
                               {"Content-Type": "application/json"})
            reply = connection.getresponse()
            answer = reply.read().decode()
            return reply.status, json.loads(answer) if answer.startswith("{") else answer
        finally:
            connection.close()

    def complete(self, prompt, tokens=24, **more):
        body = {"model": "docs-4m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}
        return self.request("/v1/completions", body)

    def events(self, path, body):
        """Of a stream, as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        try:
            for line in reply:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:]) if line.strip() != b"data: [DONE]" else "[DONE]"
        finally:
            connection.close()

    def metric(self, name):
        return float(re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", self.request("/metrics")[1], re.M).group(1))


class Host:
    """`programs` has kvtierd, engine, model and work. Hosts with one `remote` store share what is in it."""

    def __init__(self, test, programs, storage="fp8_e4m3", remote=None):
        self.test, self.programs, self.storage = test, programs, storage
        folder = tempfile.TemporaryDirectory(dir=programs.work)
        test.addCleanup(folder.cleanup)
        self.work = Path(folder.name)
        self.config = self.work / "kvtierd.toml"
        self.config.write_text(CONFIG.format(work=self.work) +
                               (f'[remote]\nurl = "{remote}"\nadmission = "all"\n' if remote else ""))
        self.start_daemon()

    def start_daemon(self):
        with open(self.work / "log", "a", encoding="utf-8") as log:
            self.daemon = subprocess.Popen([self.programs.kvtierd, "--config", self.config], stderr=log)
        self.test.addCleanup(self.end_daemon)
        until((self.work / "s").exists, "kvtierd listens")

    def end_daemon(self):
        if self.daemon.poll() is None:
            self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait(timeout=60)

    def engine(self, role, *options, storage=None, model=None):
        return Served(self.test, [self.programs.engine, "--threads", "1", "serve", "--model", model or self.programs.model,
                                  "--port", "0", "--socket", self.work / "s", "--storage-format", storage or self.storage,
                                  "--role", role, *options])

    def proxy(self, prefills, decodes, *options):
        command = [sys.executable, ROOT / "scripts" / "proxies" / "pd_proxy.py", "--port", "0", *options]
        for engine in prefills:
            command += ["--prefill", engine.url]
        for engine in decodes:
            command += ["--decode", engine.url]
        return Served(self.test, command)

    def alone(self, prompt, tokens=24, **more):
        """What one engine without a cache answers."""
        engine = Served(self.test, [self.programs.engine, "--threads", "1", "serve", "--model", self.programs.model, "--port",
                                    "0", "--no-cache", "--storage-format", self.storage])
        status, answer = engine.complete(prompt, tokens, **more)
        engine.end()
        assert status == 200, answer
        return answer["choices"][0]["text"]

    def other_model(self):
        """The same weights and another name."""
        folder = self.work / "other"
        folder.mkdir()
        for file in self.programs.model.iterdir():
            os.symlink(file.resolve(), folder / file.name)
        return folder
