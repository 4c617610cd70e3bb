"""A kvtierd with an HTTP listener on a free port and a directory of its own."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request

CONFIG = """\
socket = "{work}/kvtierd.sock"
[http]
listen = "127.0.0.1:0"
[device]
capacity = "{device}"
extent_size = "1MiB"
[host]
capacity = "{host}"
extent_size = "4MiB"
huge_pages = false
[disk]
directory = "{work}/disk"
capacity = "{disk}"
segment_size = "8MiB"
{more}
"""


class ServedDaemon:
    def __init__(self, program, scratch, device="4MiB", host="32MiB", disk="256MiB", more="", env=None):
        # The disk tier wants a real file system, which /tmp may not be.
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="kvtier-", dir=pathlib.Path(scratch).resolve()))
        self.socket = self.work / "kvtierd.sock"
        config = self.work / "kvtierd.toml"
        config.write_text(CONFIG.format(work=self.work, device=device, host=host, disk=disk, more=more))
        self.log = self.work / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([program, "--config", config], stderr=log, env={**os.environ, **(env or {})})
        port = self.wait(lambda: re.search(r"http: listening on 127\.0\.0\.1:(\d+)", self.log.read_text()))
        self.url = f"http://127.0.0.1:{port[1]}"
        self.wait(self.ready)

    def wait(self, condition, seconds=60):
        """The first value of `condition` that is true."""
        until = time.monotonic() + seconds
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > until or self.process.poll() is not None:
                raise TimeoutError(f"kvtierd did not come so far:\n{self.log.read_text()}")
            time.sleep(0.1)

    def ready(self):
        try:
            return self.get("/readyz") == "ready\n"
        except OSError:
            return False

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=20) as reply:
            return reply.read().decode()

    def status(self):
        return json.loads(self.get("/status"))

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        shutil.rmtree(self.work, ignore_errors=True)
