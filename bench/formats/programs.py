"""The project's programs as children: kvtierd, kvtier-engine and kvtierctl of one folder, on a socket of their own."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import urllib.request

PATIENCE_S = 60


class Failed(Exception):
    """A program did not do what it was asked, in its own words."""


class Programs:
    """Those in `folder`, with a model as `model` says on their command lines (--model DIR, or --random-weights SHAPE)."""

    def __init__(self, folder, model, device):
        self.folder, self.model, self.device = pathlib.Path(folder), model, device
        # A packed folder has shared libraries beside its programs.
        known = os.environ.get("LD_LIBRARY_PATH", "")
        self.environment = {**os.environ, "LD_LIBRARY_PATH": f"{self.folder}:{known}".rstrip(":")}
        for name in ("kvtier-engine", "kvtierd", "kvtierctl"):
            if not os.access(self.folder / name, os.X_OK):
                raise Failed(f"{self.folder} has no {name}: build it, or name the folder of the programs with --bin")

    def run(self, name, *arguments):
        done = subprocess.run([self.folder / name, *map(str, arguments)], capture_output=True, text=True, env=self.environment)
        if done.returncode:
            raise Failed(f"{name} {' '.join(map(str, arguments))} ended with {done.returncode}:\n{done.stderr or done.stdout}")
        return done.stdout

    def engine(self, command, *arguments):
        """What kvtier-engine prints as JSON."""
        return json.loads(self.run("kvtier-engine", command, *self.model, *arguments, "--json"))

    def generate(self, *arguments):
        return self.engine("generate", "--device", self.device, *arguments)["runs"]

    def tokenize(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(text)
            file.flush()
            return self.engine("tokenize", "--text-file", file.name)["ids"]


class Child:
    """A program that runs until the block is left."""

    def __init__(self, command, log, environment):
        self.log = log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(list(map(str, command)), stdout=file, stderr=file, env=environment)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def until(self, ready):
        give_up = time.monotonic() + PATIENCE_S
        while not ready():
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise Failed(f"{self.process.args[0]} did not come up:\n{self.log.read_text()}")
            time.sleep(0.02)


class Daemon(Child):
    """kvtierd with files in `work`. Sizes are texts such as "1GiB"; a tier whose size is empty is not there."""

    def __init__(self, programs, work, host="512MiB", disk="", device=""):
        self.programs, self.work, self.socket = programs, work, work / "kvtierd.sock"
        tiers = f'[host]\ncapacity = "{host}"\nextent_size = "64MiB"\n'
        if disk:
            tiers += f'[disk]\ndirectory = "{work}/disk"\ncapacity = "{disk}"\n'
        if device:
            tiers += f'[device]\nbackend = "cuda"\ncapacity = "{device}"\n'
        config = work / "kvtierd.toml"
        config.write_text(f'socket = "{self.socket}"\nlog_level = "warn"\n[http]\nlisten = ""\n{tiers}')
        super().__init__([programs.folder / "kvtierd", "--config", config], work / "kvtierd.log", programs.environment)
        self.until(self.answers)

    def answers(self):
        status = [self.programs.folder / "kvtierctl", "--socket", self.socket, "status", "--json"]
        return subprocess.run(status, capture_output=True, env=self.programs.environment).returncode == 0

    def drop(self, *tiers):
        self.programs.run("kvtierctl", "--socket", self.socket, "drop", *[word for tier in tiers for word in ("--tier", tier)])


class Server(Child):
    """`kvtier-engine serve` on any free port, in front of a daemon's socket."""

    def __init__(self, programs, work, *options):
        self.log = work / "serve.log"
        command = [programs.folder / "kvtier-engine", "serve", *programs.model, "--device", programs.device, "--port", 0,
                   "--served-name", "any", *options]
        super().__init__(command, self.log, programs.environment)
        self.until(self.found_port)

    def found_port(self):
        marks = [word for word in self.log.read_text().split() if word.startswith("http://")]
        self.url = marks[-1].rstrip("/.,") if marks else None
        return self.url is not None

    def complete(self, prompt, **fields):
        body = json.dumps({"model": "any", "prompt": prompt, "temperature": 0, **fields}).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.loads(answer.read())
