"""What proxies in front of OpenAI servers have in common."""
import http.server
import json
import sys

BODY_BYTES_MAX = 64 << 20


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def kept_headers(self):
        """Of the request, what the server behind is told."""
        return {name: value for name, value in self.headers.items()
                if name.lower() in ("authorization", "content-type", "accept")}

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def serve(self):
        """Until it is interrupted."""
        try:
            self.serve_forever()
        except KeyboardInterrupt:
            sys.exit(0)
