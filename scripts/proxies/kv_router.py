#!/usr/bin/python3
"""An example of a router: sends each completion to the engine whose host has the longest part of the prompt cached.

  scripts/proxies/kv_router.py --port 8080 --tokenize "kvtier-engine tokenize --model DIR --text-file" \\
      --host a=http://10.0.0.1:8000,tcp://10.0.0.1:5557,tcp://10.0.0.1:5558 \\
      --host b=http://10.0.0.2:8000,tcp://10.0.0.2:5557,tcp://10.0.0.2:5558

Each host is NAME=ENGINE,EVENTS,REPLAY: an OpenAI server, and the endpoints of the kvtierd beside it ([events] with
`tokens = true`, docs/events.md). `--tokenize` is a command that prints the token ids of the file it is given, one a line;
prompts that are token ids need none. Where no host has a longer prefix than another, the one with the fewest requests under
way gets it. GET /hosts says what is known of each. Needs Debian's python3-zmq and python3-msgpack.
"""
import argparse
import collections
import http.client
import json
import shlex
import subprocess
import tempfile
import threading
import urllib.parse

import msgpack
import zmq

import openai_front

END = 2**64 - 1
REMEMBERED_MAX = 1_000_000  # blocks whose tokens are kept in mind, whether a host has them or not
REMOTE = "REMOTE"  # the medium of the store that hosts share


class Prefixes:
    """The blocks of one host as its events tell them. Owned by the thread that follows them, but for longest()."""

    def __init__(self, model):
        self.model = model
        self.lock = threading.Lock()
        self.media = {}  # block hash: the media that have it
        self.children = {}  # (parent hash, tokens): block hash
        # What a hash stands for. It outlives the block here: after a restart, a daemon does not know the tokens of what it
        # has on disk, but the hash is the same.
        self.meaning = collections.OrderedDict()
        self.block_tokens = 0

    def longest(self, tokens):
        """How many leading blocks of these tokens are there, in whatever tier."""
        with self.lock:
            parent, blocks, size = None, 0, self.block_tokens
            while size and (blocks + 1) * size <= len(tokens):
                parent = self.children.get((parent, tuple(tokens[blocks * size:(blocks + 1) * size])))
                if parent is None or parent not in self.media:
                    break
                blocks += 1
            return blocks

    def apply(self, event):
        with self.lock:
            if event["type"] == "AllBlocksCleared":
                self.media.clear()
            elif event["type"] == "BlockRemoved":
                for block in event["block_hashes"] if event["medium"] != REMOTE else []:
                    media = self.media.get(block, set())
                    media.discard(event["medium"])
                    if not media:
                        self.media.pop(block, None)
            elif event["type"] == "BlockStored" and self.is_ours(event.get("model", "")):
                self.store(event)

    def is_ours(self, model):
        return self.model is None or self.model == (model.rpartition("@")[0] or model)

    def store(self, event):
        if event["medium"] == REMOTE:  # every host can take it from there
            return
        size, tokens, parent = event["block_size"], event["token_ids"], event["parent_block_hash"]
        self.block_tokens = size
        for at, block in enumerate(event["block_hashes"]):
            self.media.setdefault(block, set()).add(event["medium"])
            if tokens:
                self.remember(block, (parent, tuple(tokens[at * size:(at + 1) * size])))
            parent = block

    def remember(self, block, meaning):
        self.meaning[block] = meaning
        self.meaning.move_to_end(block)
        self.children[meaning] = block
        if len(self.meaning) > REMEMBERED_MAX:
            self.children.pop(self.meaning.popitem(last=False)[1], None)


class Host:
    def __init__(self, text, model):
        self.name, _, places = text.partition("=")
        self.engine, self.events, self.replay = places.split(",")
        self.prefixes = Prefixes(model)
        self.under_way = 0
        self.last = None  # number of the last batch
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        context = zmq.Context.instance()
        live = context.socket(zmq.SUB)
        live.subscribe(b"")
        live.connect(self.events)
        while True:
            _, number, batch = live.recv_multipart()
            number = int.from_bytes(number, "big")
            if self.last is None or number > self.last + 1:
                self.catch_up(context)
            if self.last is None or number > self.last:
                self.take(number, batch)

    def catch_up(self, context):
        """Asks for what was missed; an answer that does not come is asked for again with the next batch."""
        with context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(self.replay)
            socket.send_multipart([b"", (0 if self.last is None else self.last + 1).to_bytes(8, "big")])
            while socket.poll(10_000):
                _, _, number, batch = socket.recv_multipart()
                if int.from_bytes(number, "big") == END:
                    return
                self.take(int.from_bytes(number, "big"), batch)

    def take(self, number, batch):
        for event in msgpack.unpackb(batch)[1]:
            self.prefixes.apply(event)
        self.last = number


class Router:
    def __init__(self, hosts, tokenize):
        self.hosts = hosts
        self.tokenize = tokenize
        self.lock = threading.Lock()

    def tokens_of(self, prompt):
        if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
            return prompt
        if not isinstance(prompt, str) or not self.tokenize:
            return []  # a list of prompts goes where there is room
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
            file.write(prompt)
            file.flush()
            done = subprocess.run([*self.tokenize, file.name], capture_output=True, text=True)
        return [int(token) for token in done.stdout.split()] if done.returncode == 0 else []

    def choose(self, tokens):
        """The host, which has one request more from now on, and how many blocks of the prompt it has."""
        with self.lock:
            found = [(host.prefixes.longest(tokens), -host.under_way, host) for host in self.hosts]
            most, _, host = max(found, key=lambda candidate: candidate[:2])
            host.under_way += 1
            # Hosts that are equally good take turns.
            self.hosts.remove(host)
            self.hosts.append(host)
            return host, most

    def done(self, host):
        with self.lock:
            host.under_way -= 1


class Handler(openai_front.Handler):
    router = None

    def do_GET(self):
        if self.path == "/hosts":
            return self.answer(200, {host.name: {"blocks": len(host.prefixes.media), "under_way": host.under_way,
                                                 "last": host.last} for host in self.router.hosts})
        return self.forward(self.router.hosts[0], None, 0)

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        if length > openai_front.BODY_BYTES_MAX:
            return self.answer(413, {"error": {"message": "the request is too large"}})
        body = self.rfile.read(length)
        try:
            prompt = json.loads(body).get("prompt")
        except (ValueError, AttributeError):
            prompt = None  # the engine says what is wrong with it
        host, blocks = self.router.choose(self.router.tokens_of(prompt))
        try:
            return self.forward(host, body, blocks)
        finally:
            self.router.done(host)

    def forward(self, host, body, blocks):
        to = urllib.parse.urlsplit(host.engine)
        connection = http.client.HTTPConnection(to.hostname, to.port, timeout=600)
        try:
            connection.request(self.command, self.path, body, self.kept_headers())
            reply = connection.getresponse()
        except OSError as error:
            connection.close()
            return self.answer(502, {"error": {"message": f"host {host.name}: {error}"}})
        # As it comes, so that a stream stays one; the end of the connection is the end of the answer.
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.headers.get("Content-Type", "application/json"))
        self.send_header("X-Kvtier-Host", host.name)
        self.send_header("X-Kvtier-Blocks", str(blocks))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while piece := reply.read1(65536):
            self.wfile.write(piece)
            self.wfile.flush()
        connection.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8080, help="where it listens, on the loopback; 0: any")
    parser.add_argument("--host", action="append", required=True, help="NAME=ENGINE,EVENTS,REPLAY; once for each host")
    parser.add_argument("--tokenize", type=shlex.split, help="a command that prints the token ids of a file")
    parser.add_argument("--model", help="follow the blocks of this model alone, by its name without the revision")
    arguments = parser.parse_args()
    Handler.router = Router([Host(text, arguments.model) for text in arguments.host], arguments.tokenize)
    server = openai_front.Server(("127.0.0.1", arguments.port), Handler)
    print(f"routing on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
