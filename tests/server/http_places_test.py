#!/usr/bin/env python3
"""Half requests, idle connections and full places, against `kvtier-engine serve`.

    http_places_test.py --engine bin/kvtier-engine --model engine_adapter/models/docs-4m
"""

import argparse
import http.client
import json
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import unittest


def raised_limit():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class PlacesTest(unittest.TestCase):
    def serve(self, *options):
        process = self.process = subprocess.Popen(
            [ARGUMENTS.engine, "--threads", "1", "serve", "--model", ARGUMENTS.model, "--port", "0", "--no-cache",
             "--drain-seconds", "0", *options], stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.stop, process)
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline()).group(1))

    def stop(self, process):
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), 0)
        process.stdout.close()

    def connect(self, sent=b""):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        self.addCleanup(connection.close)
        connection.sendall(sent)
        return connection

    def health(self):
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        connection.close()
        self.assertLess(time.monotonic() - began, 1)
        return response.status

    def test_half_requests_keep_nobody_from_asking_after_its_health(self):
        # 256 of them had kept everybody out for 75 seconds.
        self.serve()
        half = []
        for i in range(300):
            head = b"GET /health HT" if i % 2 else b"POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"
            half.append(self.connect(head))
            if i % 30 == 29:
                self.assertEqual(self.health(), 200, i)
        self.assertEqual(half[0].recv(1), b"", "it had to go")

    def test_answers_on_all_places_leave_room_for_health_and_say_so_to_who_wants_more(self):
        self.serve("--connections-max", "2")
        body = json.dumps({"model": "docs-4m", "prompt": "The file", "max_tokens": 400, "stream": True,
                           "ignore_eos": True, "temperature": 1, "n": 16}).encode()
        request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        answered = [self.connect(request) for _ in range(2)]
        for connection in answered:
            self.assertTrue(connection.recv(16).startswith(b"HTTP/1.1 200"))
        self.assertEqual(self.health(), 200)
        status = self.connect(request).recv(16)
        self.assertTrue(status.startswith(b"HTTP/1.1 503"), status)

    def test_who_is_connected_when_it_ends_does_no_harm(self):
        # What was to close the connection held on to what was gone: AddressSanitizer says so.
        self.serve()
        self.connect()
        self.assertEqual(self.health(), 200)
        self.stop(self.process)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model", required=True)
    ARGUMENTS, rest = parser.parse_known_args()
    raised_limit()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
