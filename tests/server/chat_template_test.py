#!/usr/bin/env python3
"""What `kvtier-engine serve` does with a chat template that cannot be used.

    chat_template_test.py --engine bin/kvtier-engine --model engine_adapter/models/docs-4m
"""

import argparse
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHAT = {"model": "docs", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
GOOD = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
BOMB = ("{% if messages | length > 6 %}{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% for j in 'ab' %}"
        "{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}{{ ns.x | tojson }}{% endif %}a")


class ChatTemplateTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.model = Path(self.folder.name, "docs")
        self.model.mkdir()
        for file in ARGUMENTS.model.iterdir():
            os.symlink(file.resolve(), self.model / file.name)

    def command(self, *options):
        return [ARGUMENTS.engine, "--threads", "2", "serve", "--model", self.model, "--port", "0", "--no-cache",
                "--storage-format", "f32", *options]

    def serve(self, template, *options):
        """The server's port, and what it has said meanwhile."""
        Path(self.model, "chat_template.jinja").write_text(template)
        said = Path(self.folder.name, "said")
        with said.open("w") as errors:
            process = subprocess.Popen(self.command(*options), stdout=subprocess.PIPE, stderr=errors, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait, timeout=60)
        self.addCleanup(process.send_signal, signal.SIGTERM)
        line = process.stdout.readline()
        return int(re.search(r"http://127\.0\.0\.1:(\d+)", line).group(1)), said.read_text()

    def post(self, port, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        answer = response.status, json.loads(response.read())
        connection.close()
        return answer

    def test_one_that_cannot_be_used_is_told_at_the_start_and_leaves_completions_alone(self):
        for template, line in (("\n{% frobnicate %}", "line 2: the tag 'frobnicate'"),
                               ("\n\n{{ messages[0].content + 1 }}", "line 3: '+' between")):
            with self.subTest(template=template):
                port, said = self.serve(template)
                self.assertIn("chat_template.jinja, " + line, said)
                self.assertIn("--chat-template FILE", said)
                status, answer = self.post(port, "/v1/chat/completions", CHAT)
                self.assertEqual(status, 400)
                self.assertIn("chat_template.jinja, " + line, answer["error"]["message"])
                self.assertIn("--chat-template FILE", answer["error"]["message"])
                self.assertNotIn(self.folder.name, answer["error"]["message"])
                status, _ = self.post(port, "/v1/completions", {"model": "docs", "prompt": "hi", "max_tokens": 2})
                self.assertEqual(status, 200)

    def test_another_file_takes_its_place_and_must_be_right(self):
        other = Path(self.folder.name, "other.jinja")
        other.write_text(GOOD)
        port, said = self.serve("{% frobnicate %}", "--chat-template", other)
        self.assertEqual(said.count("frobnicate"), 0)
        self.assertEqual(self.post(port, "/v1/chat/completions", CHAT)[0], 200)
        other.write_text("\n{{ 1 + }}")
        done = subprocess.run(self.command("--chat-template", other), capture_output=True, text=True, timeout=120)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("other.jinja, line 2", done.stderr)

    def test_a_bomb_is_refused_and_the_server_goes_on(self):
        port, _ = self.serve(BOMB)
        status, answer = self.post(port, "/v1/chat/completions", {**CHAT, "messages": CHAT["messages"] * 7})
        self.assertEqual(status, 400)
        self.assertIn("nested too deeply", answer["error"]["message"])
        self.assertEqual(self.post(port, "/v1/chat/completions", CHAT)[0], 200)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    ARGUMENTS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
