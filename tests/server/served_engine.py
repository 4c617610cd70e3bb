"""One `kvtier-engine serve` under test, and the official `openai` client in a virtual environment of the tests' own."""

import argparse
import http.client
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
import venv
from pathlib import Path

SKIPPED = 77
# What an answer may take: a context that is full, computed by a build that counts or checks what it does.
ANSWER_S = 600
KEY = "a-key-of-the-test"
TEMPLATE = """{% for m in messages %}{{ m.role }}: {{ m.content }}
{% if m.role == 'broken' %}{{ m.content + 1 }}{% endif %}{% if m.role == 'tool' and not m.name %}{{ raise_exception('no tools here') }}{% endif %}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
PROMPT = "To mount a disk, the administrator edits the file /etc/fstab. The fields of each line of this file are"


def parsed():
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__.splitlines()[0])
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--daemon", type=Path, help="kvtierd, for the tests with a cache")
    return parser.parse_known_args()


ARGUMENTS, REST = parsed()


def use_client(work):
    """The path of a virtual environment with the client; None where it cannot be installed."""
    environment = work / "venv"
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    found = subprocess.run([python, "-c", "import openai"], capture_output=True)
    if found.returncode != 0:
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", "openai"], capture_output=True, text=True)
        if done.returncode != 0:
            print("skipped: the openai package cannot be installed:", done.stderr.strip()[-300:])
            return None
    return python


def openai_module():
    """The client. Where it is missing the program starts anew in an interpreter that has it, or ends as skipped."""
    try:
        return importlib.import_module("openai")
    except ImportError:
        interpreter = use_client(ARGUMENTS.work)
        if interpreter is None:
            sys.exit(SKIPPED)
        os.execv(interpreter, [str(interpreter), *sys.argv])


openai = openai_module()  # before anything is started, which a new interpreter would know nothing of


class Server:
    """One `kvtier-engine serve` with a model that has a chat template."""

    def __init__(self, *options, cache=("--no-cache",)):
        self.folder = tempfile.TemporaryDirectory()
        model = Path(self.folder.name, "docs")  # the name is part of the namespace
        model.mkdir()
        for file in ARGUMENTS.model.iterdir():
            os.symlink(file.resolve(), model / file.name)
        Path(model, "chat_template.jinja").write_text(TEMPLATE)
        key = Path(self.folder.name, "key")
        key.write_text(KEY + "\n")
        self.process = subprocess.Popen(
            [ARGUMENTS.engine, "--threads", "2", "serve", "--model", model, "--port", "0",
             *cache, "--storage-format", "f32", "--api-key-file", key, *options],
            stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)", line).group(1))

    def client(self):
        return openai.OpenAI(api_key=KEY, base_url=f"http://127.0.0.1:{self.port}/v1", max_retries=0, timeout=ANSWER_S)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        self.process.stdout.close()
        self.folder.cleanup()
        return status

    def sent(self, head, body=b"", half_close=False):
        """All bytes that come back for the bytes of one request, whose connection is then closed."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_S) as connection:
            connection.sendall(head.replace("\n", "\r\n").encode() + body)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            answer = b""
            while more := connection.recv(1 << 16):
                answer += more
            return answer

    def raw(self, method, path, body=None, key=KEY, headers=None):
        """(status, JSON or text) of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        connection.request(method, path, body, {"Authorization": "Bearer " + key, **(headers or {})})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, json.loads(text) if text.startswith("{") else text

    def metric(self, name):
        found = re.search(rf"^{re.escape(name)}{{[^}}]*}} (\S+)$", self.raw("GET", "/metrics")[1], re.M)
        return float(found.group(1))


class ServedTest(unittest.TestCase):
    """With one server for all of its tests."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.client = cls.server.client()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def complete(self, prompt=PROMPT, **options):
        return self.client.completions.create(model="docs", prompt=prompt, **{"max_tokens": 16, "temperature": 0, **options})


def main():
    unittest.main(argv=[sys.argv[0], *REST], verbosity=2)
