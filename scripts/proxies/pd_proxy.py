#!/usr/bin/python3
"""A proxy for engines of which some compute prompts and others answer (docs/disaggregation.md).

  scripts/proxies/pd_proxy.py --port 8080 --prefill http://127.0.0.1:8001 --decode http://127.0.0.1:8002

--prefill and --decode may be given several times; each request goes to the ones with the fewest under way. The engines are
`kvtier-engine serve --role prefill|decode`, or vLLM with kvtier's connector and kv_role kv_producer|kv_consumer, which share
a kvtierd or its remote tier. Clients see one OpenAI API.

The engine that answers is asked at once, and takes the prompt's blocks while the other still computes. Where no other can
compute the prompt, or it fails, the one that answers does. Short prompts, lists of prompts and whatever else goes to an
engine that answers alone. GET /status says what became of requests. Needs nothing but Python.
"""
import argparse
import contextlib
import http.client
import json
import socket
import threading
import time
import urllib.parse

import openai_front

ANSWER_S = 3600
CONNECT_S = 5
# The longest that the engine that answers is asked after the one that computes the prompt: from then on it waits itself, for
# as long as it was told to at its start.
BEHIND_S = 30
# For so long an engine that could not be reached is not asked first.
DOWN_S = 2.0
# A text has about one token for each so many characters.
CHARACTERS_A_TOKEN = 4
# What concerns the answer alone, and is not asked of the engine that computes the prompt.
OF_THE_ANSWER = ("stream", "stream_options", "n", "best_of", "use_beam_search", "length_penalty", "early_stopping", "logprobs",
                 "top_logprobs", "prompt_logprobs", "echo", "min_tokens", "stop", "max_tokens", "max_completion_tokens")
COMPUTE_FOR_ANOTHER = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
                       "remote_block_ids": None, "remote_host": None, "remote_port": None}


class Engine:
    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or not parts.port or parts.path not in ("", "/"):
            raise SystemExit(f"pd_proxy: {url} is not http://HOST:PORT")
        self.url, self.host, self.port = f"http://{parts.netloc}", parts.hostname, parts.port
        self.under_way = 0
        self.down_until = 0.0
        self.namespace = None  # in which it stores, as it said last

    @property
    def down(self):
        return time.monotonic() < self.down_until


class Call:
    """One request to one engine. Any thread may cut it off."""

    def __init__(self, engine, method, path, headers, body):
        self.engine = engine
        self.request = (method, path, body, headers)
        self.connection = http.client.HTTPConnection(engine.host, engine.port, timeout=CONNECT_S)
        self.lock = threading.Lock()
        self.cut = False

    def response(self):
        """Errors: OSError, http.client.HTTPException."""
        self.connection.connect()
        with self.lock:
            if self.cut:
                raise ConnectionAbortedError("not needed any more")
            self.connection.sock.settimeout(ANSWER_S)
            self.socket = self.connection.sock
        self.connection.request(*self.request)
        return self.connection.getresponse()

    def cut_off(self):
        with self.lock:
            self.cut = True
            if getattr(self, "socket", None) is not None:
                with contextlib.suppress(OSError):
                    self.socket.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.connection.close()


class Prefill(threading.Thread):
    """A prompt that an engine computes for another one. `on_end` is called on its thread."""

    def __init__(self, pool, engine, path, headers, body):
        super().__init__(daemon=True)
        self.pool, self.engine = pool, engine
        asked = {name: value for name, value in body.items() if name not in OF_THE_ANSWER}
        asked |= {"max_tokens": 1, "stream": False, "kv_transfer_params": COMPUTE_FOR_ANOTHER}
        self.call = Call(engine, "POST", path, headers, json.dumps(asked).encode())
        self.params = None  # kv_transfer_params of its answer; None: it failed
        self.over = threading.Event()
        self.on_end = lambda: None

    def run(self):
        try:
            reply = self.call.response()
            answer = reply.read()
            if reply.status == 200:
                params = json.loads(answer).get("kv_transfer_params")
                self.params = params if isinstance(params, dict) else None
            elif reply.status >= 500:
                self.pool.failed(self.engine)
            if self.params:
                self.engine.namespace = self.params.get("kvtier_namespace")
        except (OSError, http.client.HTTPException, ValueError):
            if not self.call.cut:
                self.pool.failed(self.engine)
        finally:
            self.call.close()
            self.pool.done(self.engine)
            self.over.set()
            self.on_end()

    @property
    def whole(self):
        """All of the prompt that another engine can take is in the cache."""
        return self.params is not None and not self.params.get("kvtier_missing_tokens")


class Pool:
    """Engines that do the same."""

    def __init__(self, urls):
        self.engines = [Engine(url) for url in urls]
        self.lock = threading.Lock()

    def take(self, even_down, but=()):
        """The engine with the fewest requests, which has one more from now on; None: there is none."""
        with self.lock:
            fit = [engine for engine in self.engines if engine not in but and (even_down or not engine.down)]
            if not fit:
                return None
            engine = min(fit, key=lambda one: (one.down, one.under_way))
            engine.under_way += 1
            # Those that are equally busy take turns.
            self.engines.remove(engine)
            self.engines.append(engine)
            return engine

    def done(self, engine):
        with self.lock:
            engine.under_way -= 1

    def failed(self, engine):
        engine.down_until = time.monotonic() + DOWN_S

    def state(self):
        with self.lock:
            return {engine.url: {"under_way": engine.under_way, "down": engine.down}
                    for engine in sorted(self.engines, key=lambda one: one.url)}


class Counts:
    NAMES = ("handed_over", "alone", "prefill_failed", "not_all_stored", "decode_failed", "moved")

    def __init__(self):
        self.lock = threading.Lock()
        self.values = dict.fromkeys(self.NAMES, 0)

    def add(self, name):
        with self.lock:
            self.values[name] += 1


def prompt_tokens(body):
    """About how many tokens the request's prompt has; 0 where it is none that can be handed over."""
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return len(prompt) // CHARACTERS_A_TOKEN
    if isinstance(prompt, list):
        return len(prompt) if all(isinstance(token, int) for token in prompt) else 0
    messages = body.get("messages")
    if not isinstance(messages, list):
        return 0
    return len(json.dumps(messages, ensure_ascii=False)) // CHARACTERS_A_TOKEN


class ClientGone(Exception):
    pass


class Handler(openai_front.Handler):
    disable_nagle_algorithm = True
    prefills = decodes = counts = None
    least_tokens = 0
    decode_first = True

    def do_GET(self):
        if self.path == "/status":
            return self.answer(200, {"requests": dict(self.counts.values), "prefill": self.prefills.state(),
                                     "decode": self.decodes.state()})
        return self.serve(b"", None)

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        if length > openai_front.BODY_BYTES_MAX:
            return self.fail(413, "the request is too large")
        raw = self.rfile.read(length)
        try:
            body = json.loads(raw)
        except ValueError:
            body = None  # the engine says what is wrong with it
        return self.serve(raw, body if isinstance(body, dict) else None)

    def serve(self, raw, body):
        prefill = self.begin_prefill(body)
        if body is not None and self.path.startswith("/v1/") and self.command == "POST":
            self.counts.add("handed_over" if prefill else "alone")
        try:
            self.serve_with(prefill, raw, body)
        except ClientGone:
            pass
        finally:
            if prefill:
                prefill.call.cut_off()

    def begin_prefill(self, body):
        """The prompt's computation by another engine than the one that answers; None where that one does all."""
        is_answer = self.path in ("/v1/completions", "/v1/chat/completions")
        if not is_answer or body is None or body.get("kv_transfer_params") or prompt_tokens(body) < self.least_tokens:
            return None
        engine = self.prefills.take(even_down=False)
        if engine is None:
            return None
        prefill = Prefill(self.prefills, engine, self.path, self.kept_headers(), body)
        prefill.start()
        return prefill

    def serve_with(self, prefill, raw, body):
        """Tries one engine after the other until one begins to answer."""
        tried = []
        handoff = None
        if prefill:
            # Which namespace the prompt comes in is known of the one without a salt, once it was told.
            known = prefill.engine.namespace if not body.get("cache_salt") else None
            if not self.decode_first or known is None:
                prefill.over.wait(BEHIND_S)
            handoff = {"do_remote_prefill": True, "do_remote_decode": False, "kvtier_namespace": known}
        while True:
            if prefill and prefill.over.is_set():
                handoff = prefill.params
                if handoff is None:
                    self.counts.add("prefill_failed")
                elif not prefill.whole:
                    self.counts.add("not_all_stored")
                prefill = None
            engine = self.decodes.take(even_down=True, but=tried)
            if engine is None:
                self.counts.add("decode_failed")
                return self.fail(502, f"no engine that answers could be reached: {', '.join(e.url for e in tried)}")
            try:
                sent = json.dumps(body | {"kv_transfer_params": handoff}).encode() if handoff else raw
                ended = self.answer_from(engine, sent, body or {}, prefill)
            finally:
                self.decodes.done(engine)
            if ended == "answered":
                return
            if ended == "unreachable":
                tried.append(engine)
            else:
                self.counts.add("moved")

    def answer_from(self, engine, sent, body, prefill):
        """Sends one engine's answer on. "unreachable": it gave none, and nothing was sent. "other prefix": nothing was sent,
        and it is to be asked again, for the blocks that it waits for do not come."""
        call = Call(engine, self.command, self.path, self.kept_headers(), sent)
        call.begun = False  # something of its answer has been sent on
        starting = threading.Lock()

        def prefill_ended():
            with starting:
                if not prefill.whole and not call.begun:
                    call.cut_off()

        if prefill:
            prefill.on_end = prefill_ended
            if prefill.over.is_set():
                prefill_ended()
        try:
            reply = call.response()
            is_stream = reply.headers.get("Content-Type", "").startswith("text/event-stream")
            if not is_stream:
                whole = reply.read()
                with starting:
                    if call.cut:
                        return "other prefix"
                    call.begun = True
                self.send_whole(reply, engine, whole)
                return "answered"
            # The first events of a chat come before its first token.
            openings = (body.get("n") or 1) if "messages" in body else 0
            held = b""
            while piece := reply.read1(65536):
                held += piece
                with starting:
                    if call.cut:
                        return "other prefix"
                    if not call.begun and prefill and not prefill.over.is_set() and held.count(b"\n\n") <= openings:
                        continue
                    first, call.begun = not call.begun, True
                if first:
                    self.begin_stream(reply, engine)
                self.send(held)
                held = b""
            if not call.begun:
                self.begin_stream(reply, engine)
            self.send(held)
            return "answered"
        except (OSError, http.client.HTTPException, ValueError) as error:
            if call.cut:
                return "other prefix"
            self.decodes.failed(engine)
            if not call.begun:
                return "unreachable"
            self.counts.add("decode_failed")
            text = f"the engine that answered, {engine.url}, is gone: {type(error).__name__}"
            self.send(b"data: " + json.dumps(error_of(502, text)).encode() + b"\n\n")
            return "answered"
        finally:
            call.close()

    def begin_stream(self, reply, engine):
        self.begin(reply.status, reply.headers.get("Content-Type"), engine)

    def send_whole(self, reply, engine, whole):
        self.begin(reply.status, reply.headers.get("Content-Type", "application/json"), engine, len(whole))
        self.send(whole)

    def begin(self, status, content_type, engine, length=None):
        try:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("X-Kvtier-Decode", engine.url)
            if length is not None:
                self.send_header("Content-Length", str(length))
            # Of a stream the end of the connection is the end.
            self.send_header("Connection", "close")
            self.close_connection = True
            self.end_headers()
        except OSError as error:
            raise ClientGone from error

    def send(self, data):
        try:
            self.wfile.write(data)
        except OSError as error:
            raise ClientGone from error

    def fail(self, status, message):
        self.answer(status, error_of(status, message))

    def answer(self, status, value):
        with contextlib.suppress(OSError):
            super().answer(status, value)


def error_of(status, message):
    return {"error": {"message": message, "type": "server_error" if status >= 500 else "invalid_request_error",
                      "param": None, "code": None}}


class Server(openai_front.Server):
    request_queue_size = 128


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", default="127.0.0.1", help="the address it listens on; it asks nobody for a key itself")
    parser.add_argument("--port", type=int, default=8080, help="0: any")
    parser.add_argument("--prefill", action="append", required=True, metavar="URL", help="an engine that computes prompts")
    parser.add_argument("--decode", action="append", required=True, metavar="URL", help="an engine that answers")
    parser.add_argument("--least-tokens", type=int, default=512,
                        help="prompts of about fewer are left to the engine that answers")
    parser.add_argument("--behind", action="store_true",
                        help="ask the engine that answers when the prompt has been computed, not at once")
    arguments = parser.parse_args()
    Handler.prefills, Handler.decodes, Handler.counts = Pool(arguments.prefill), Pool(arguments.decode), Counts()
    Handler.least_tokens, Handler.decode_first = arguments.least_tokens, not arguments.behind
    server = Server((arguments.listen, arguments.port), Handler)
    print(f"pd_proxy: listening on http://{arguments.listen}:{server.server_port}", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
