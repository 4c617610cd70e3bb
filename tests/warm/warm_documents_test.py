#!/usr/bin/env python3
"""`kvtier-warm` through `kvtier-engine serve` into kvtierd, interrupted and gone on with.

    warm_documents_test.py --warm bin/kvtier-warm --engine bin/kvtier-engine --daemon bin/kvtierd --model DIR
"""

import argparse
import http.client
import http.server
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

KEY = "a-key-of-the-test"
PREFIX = "You answer questions about the following page of the manual, and about nothing else.\n\n"
DOCUMENTS = 12


def text_of(i):
    return " ".join(f"Section {i}.{j}: to mount disk number {i * 100 + j}, the administrator edits line {j} of the file." for j in range(24))


def computed_in(lines):
    """The documents that a run says it had computed."""
    return {found.group(1) for line in lines if (found := re.match(r"\d+/\d+ (.+): \d+ of \d+ tokens computed", line))}


class Served(unittest.TestCase):
    REMOTE = ""  # of the daemon's configuration

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.docs = self.root / "docs"
        self.docs.mkdir()
        for i in range(DOCUMENTS):
            (self.docs / f"page{i:02}.md").write_text(text_of(i))
        (self.root / "prefix.txt").write_text(PREFIX)
        (self.root / "key").write_text(KEY + "\n")
        self.socket = self.root / "kvtierd.sock"
        config = self.root / "kvtierd.toml"
        config.write_text(f'socket = "{self.socket}"\n[host]\ncapacity = "256MiB"\n[http]\nlisten = ""\n{self.REMOTE}')
        self.daemon = subprocess.Popen([ARGUMENTS.daemon, "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.start_engine()

    def tearDown(self):
        self.stop_engine()
        self.daemon.send_signal(signal.SIGTERM)
        self.daemon.wait(timeout=60)
        self.folder.cleanup()

    def start_engine(self):
        self.engine = subprocess.Popen(
            [ARGUMENTS.engine, "--threads", "1", "serve", "--model", ARGUMENTS.model, "--port", "0", "--socket", self.socket,
             "--pool-tokens", "32768", "--deadline-ms", "30000", "--load-policy", "load", "--api-key-file", self.root / "key"], stdout=subprocess.PIPE, text=True)
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)", self.engine.stdout.readline()).group(1))

    def stop_engine(self):
        self.engine.send_signal(signal.SIGTERM)
        self.assertEqual(self.engine.wait(timeout=60), 0)
        self.engine.stdout.close()

    def command(self, *arguments, key=True, port=None):
        key_file = ["--api-key-file", self.root / "key"] if key else []
        return [ARGUMENTS.warm, "--endpoint", f"http://127.0.0.1:{port or self.port}", *key_file, *arguments]

    def warm(self, *arguments, **options):
        done = subprocess.run(self.command("--json", *arguments, **options), capture_output=True, text=True, timeout=300)
        return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr

    def cached_and_prompt_tokens(self, prompt, salt=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = {"model": "docs-4m", "prompt": prompt, "max_tokens": 1, **({"cache_salt": salt} if salt else {})}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Authorization": "Bearer " + KEY})
        usage = json.loads(connection.getresponse().read())["usage"]
        connection.close()
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    def assert_questions_are_cached(self, *arguments, prefix="", salt=None):
        """In an engine that has computed none of it; a question adds to the document."""
        for _ in range(5):
            self.stop_engine()
            self.start_engine()
            short = []
            for i in range(DOCUMENTS):
                cached, tokens = self.cached_and_prompt_tokens(prefix + text_of(i), salt)
                again, longer = self.cached_and_prompt_tokens(prefix + text_of(i) + "\n\nQuestion: which line is it?", salt)
                self.assertGreater(longer, tokens)
                if cached < tokens - 16 or again < cached - 16:
                    short.append((i, cached, tokens, again))
            if not short:
                return
            # An engine that is ended does not offer again what found no slot in time: the same command makes up for it.
            self.assertEqual(self.warm(*arguments)[0], 0)
        self.fail(f"documents that are never cached whole: {short}")


class WarmTest(Served):
    def test_every_documents_next_request_is_cached_behind_its_prefix_and_for_its_tenant_alone(self):
        manifest = self.root / "warm.toml"
        manifest.write_text("prefix_file = 'prefix.txt'\nsalt = 'team-a'\n[[documents]]\npath = 'docs'\n")
        code, summary, errors = self.warm("--manifest", manifest)
        self.assertEqual((code, summary["warmed"], summary["cached"], summary["failures"]), (0, DOCUMENTS, 0, []), errors)
        self.assertIn(f"{DOCUMENTS}/{DOCUMENTS} ", errors)
        code, summary, _ = self.warm("--manifest", manifest)
        self.assertEqual((code, summary["warmed"], summary["cached"]), (0, 0, DOCUMENTS))
        self.assertEqual(self.cached_and_prompt_tokens(PREFIX + text_of(0), "team-b")[0], 0)
        self.assert_questions_are_cached("--manifest", manifest, prefix=PREFIX, salt="team-a")

    def interrupt(self, number):
        """Ends a run after its third document; which it had done, by its own lines."""
        process = subprocess.Popen(self.command("--parallel", "1", self.docs), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        lines = [process.stderr.readline() for _ in range(3)]
        process.send_signal(number)
        lines += process.stderr.readlines()
        process.stderr.close()
        return process.wait(timeout=60), computed_in(lines), "".join(lines)

    def test_after_sigint_the_same_command_goes_on(self):
        code, done, lines = self.interrupt(signal.SIGINT)
        self.assertEqual(code, 130, lines)
        self.assertIn("the same command goes on", lines)
        self.assert_the_rest_is_warmed(done)

    def test_after_sigkill_the_same_command_goes_on(self):
        code, done, _ = self.interrupt(signal.SIGKILL)
        self.assertEqual(code, -signal.SIGKILL)
        self.assert_the_rest_is_warmed(done)

    def assert_the_rest_is_warmed(self, done):
        self.assertGreaterEqual(len(done), 3)
        self.assertLess(len(done), DOCUMENTS)
        code, summary, errors = self.warm(self.docs)
        self.assertEqual((code, summary["remaining"]), (0, 0), errors)
        self.assertEqual(computed_in(errors.splitlines()) & done, set(), "computed twice")
        # The one under way at the end may have been computed whole too.
        self.assertIn(summary["cached"], (len(done), len(done) + 1))
        self.assertEqual(summary["warmed"] + summary["cached"], DOCUMENTS)
        self.assert_questions_are_cached(self.docs)

    def test_a_document_that_cannot_be_warmed_is_named_and_the_others_are(self):
        (self.docs / "page99.md").write_text("word " * 9000)
        (self.docs / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
        code, summary, errors = self.warm(self.docs)
        self.assertEqual((code, summary["warmed"], summary["left_out"]), (6, DOCUMENTS, 1), errors)
        self.assertEqual([Path(f["path"]).name for f in summary["failures"]], ["page99.md"])
        self.assertIn("status 400", summary["failures"][0]["why"])
        self.assertIn("left out: ", errors)
        code, summary, _ = self.warm(self.docs / "picture.png")
        self.assertEqual((code, len(summary["failures"])), (6, 1))

    def test_a_dry_run_tells_the_bytes_that_the_cache_then_takes(self):
        (self.docs / "page99.md").write_text("word " * 9000)
        done = subprocess.run([ARGUMENTS.warm, "--dry-run", "--json", "--tokenizer", ARGUMENTS.model, self.docs], capture_output=True, text=True)
        planned = json.loads(done.stdout)
        self.assertEqual((done.returncode, planned["documents"], len(planned["failures"])), (6, DOCUMENTS, 1))
        (self.docs / "page99.md").unlink()
        self.assertEqual(planned["text_bytes"], sum(len(text_of(i)) for i in range(DOCUMENTS)))
        code, summary, _ = self.warm(self.docs)
        self.assertEqual((code, summary["prompt_tokens"]), (0, planned["tokens"]))
        self.assertEqual(planned["kv_bytes"] % 28672, 0)  # a record of the model in FP8
        plain = subprocess.run([ARGUMENTS.warm, "--dry-run", self.docs], capture_output=True, text=True)
        self.assertEqual(plain.returncode, 0)
        self.assertIn(f"{DOCUMENTS} documents, ", plain.stdout)

    def test_a_terminal_gets_a_bar(self):
        leader, follower = pty.openpty()
        process = subprocess.Popen(self.command(self.docs), stdout=subprocess.DEVNULL, stderr=follower)
        os.close(follower)
        shown = b""
        try:
            while piece := os.read(leader, 4096):
                shown += piece
        except OSError:
            pass  # the other side is closed
        os.close(leader)
        self.assertEqual(process.wait(timeout=60), 0)
        self.assertRegex(shown.decode(), r"\r\x1b\[K\[[#-]{20}\] \d+ %  \d+/12")
        self.assertNotIn("tokens computed", shown.decode())

    def test_errors_name_the_place_and_the_mend(self):
        code, _, errors = self.warm(self.docs, key=False)
        self.assertEqual(code, 1)
        self.assertIn("--api-key-file", errors)
        code, _, errors = self.warm("--model", "other", self.docs)
        self.assertEqual(code, 1)
        self.assertIn("--model", errors)
        code, summary, errors = self.warm(self.docs, port=1)
        self.assertEqual((code, summary["remaining"]), (1, DOCUMENTS))
        self.assertIn("http://127.0.0.1:1/v1", errors)
        for arguments in ([self.root / "nowhere"], ["--salt", b"\xff", self.docs], ["--parallel", "0", self.docs], []):
            self.assertEqual(self.warm(*arguments)[0], 2)
        self.assertEqual(subprocess.run([ARGUMENTS.warm, self.docs], capture_output=True).returncode, 2)


class OtherServer(http.server.BaseHTTPRequestHandler):
    """A server that is busy at first and does not tell what it had cached."""

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        self.answer(200, {"data": [{"id": name} for name in self.server.models]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Authorization"], body))
        if self.server.busy:
            self.server.busy -= 1
            self.answer(503, {"error": {"message": "warming up"}})
        else:
            self.answer(200, {"usage": {"prompt_tokens": 40}})

    def log_message(self, *_):
        pass


class OtherServerTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.page = Path(self.folder.name, "page.md")
        self.page.write_text("The page.")
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), OtherServer)
        self.server.models, self.server.busy, self.server.asked = ["one"], 0, []
        threading.Thread(target=self.server.serve_forever).start()

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()
        self.folder.cleanup()

    def warm(self, *arguments):
        return subprocess.run([ARGUMENTS.warm, "--endpoint", f"http://127.0.0.1:{self.server.server_port}/v1/", *arguments, self.page],
                              capture_output=True, text=True, timeout=120)

    def test_a_busy_server_is_asked_again_and_nothing_counts_as_found(self):
        self.server.busy = 2
        done = self.warm()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.server.asked), 3)
        self.assertIn("1 warmed, 0 were cached", done.stdout)
        self.assertIn("--enable-prompt-tokens-details", done.stdout)

    def test_what_is_sent_is_the_prompt_and_nothing_that_others_do_not_know(self):
        prefix = Path(self.folder.name, "prefix.txt")
        prefix.write_text("Before. ")
        key = Path(self.folder.name, "key")
        key.write_text("secret\nnot the key")
        self.assertEqual(self.warm("--prefix-file", prefix, "--api-key-file", key).returncode, 0)
        self.assertEqual(self.warm("--salt", "team-a").returncode, 0)
        plain = {"model": "one", "prompt": "Before. The page.", "max_tokens": 1, "temperature": 0}
        salted = {**plain, "prompt": "The page.", "cache_salt": "team-a"}
        self.assertEqual(self.server.asked, [("/v1/completions", "Bearer secret", plain), ("/v1/completions", None, salted)])

    def test_a_server_with_several_models_wants_a_name(self):
        self.server.models = ["one", "two"]
        done = self.warm()
        self.assertEqual(done.returncode, 1)
        self.assertIn("give --model, one of those served: one, two", done.stderr)
        self.assertEqual(self.warm("--model", "two").returncode, 0)
        self.assertEqual(self.server.asked[0][2]["model"], "two")


class RemoteTest(Served):
    """What a run has warmed goes to the store that other hosts share, where nothing else does."""

    def setUp(self):
        if shutil.which("redis-server") is None:
            self.skipTest("there is no redis-server: scripts/bootstrap.sh installs it")
        self.store = tempfile.TemporaryDirectory()
        self.addCleanup(self.store.cleanup)
        path = Path(self.store.name) / "redis.sock"
        self.redis = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no",
                                       "--dir", self.store.name], stdout=subprocess.DEVNULL)
        self.addCleanup(self.redis.wait)
        self.addCleanup(self.redis.kill)
        while not path.exists():
            time.sleep(0.01)
        self.REMOTE = f'[remote]\nurl = "redis+unix://{path}"\nadmission = "warm"\n'
        super().setUp()

    def values(self):
        said = subprocess.run(["redis-cli", "-s", Path(self.store.name) / "redis.sock", "dbsize"], capture_output=True, text=True,
                              check=True)
        return int(said.stdout)

    def test_what_was_warmed_is_in_the_remote_tier(self):
        # An engine that has rested: what it is asked next is new all the same.
        time.sleep(5)
        code, summary, log = self.warm("--remote", "--socket", self.socket, self.docs / "page00.md")
        self.assertEqual(code, 0, log)
        blocks = summary["prompt_tokens"] // 16
        self.assertEqual(summary["remote"], {"blocks": blocks, "left": 0})
        self.assertEqual(self.values(), blocks)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("warm", "engine", "daemon", "model"):
        parser.add_argument("--" + name, type=Path, required=True)
    ARGUMENTS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
