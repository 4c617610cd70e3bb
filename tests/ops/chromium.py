"""A headless Chromium, driven over its debugging pipe: nothing to install beside the browser."""
import base64
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")


def found():
    """The browser's path, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Chromium:
    """One tab. `problems` has what went to the console as a warning or an error, and what was refused."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="chromium-")
        from_us, to_browser = os.pipe()
        from_browser, to_us = os.pipe()
        flags = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.profile}",
                 "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions",
                 "--disable-background-networking", "--disable-component-update", "--hide-scrollbars"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")
        # The browser reads from descriptor 3 and writes to 4.
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{from_us} 4>&{to_us}', "-", found(), *flags, "about:blank"],
            pass_fds=(from_us, to_us), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        os.close(from_us)
        os.close(to_us)
        self.to, self.back = os.fdopen(to_browser, "wb", 0), os.fdopen(from_browser, "rb", 0)
        self.unread, self.last, self.tab, self.problems = b"", 0, None, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.tab = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(domain + ".enable")

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=30)
        self.to.close()
        self.back.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def _message(self):
        while b"\0" not in self.unread:
            piece = self.back.read(1 << 16)
            if not piece:
                raise RuntimeError("the browser has ended")
            self.unread += piece
        message, self.unread = self.unread.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, **params):
        """Sends one command and returns its result; events before it are looked at."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if self.tab:
            message["sessionId"] = self.tab
        self.to.write(json.dumps(message).encode() + b"\0")
        while True:
            reply = self._message()
            if reply.get("id") == self.last:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                return reply["result"]
            self._note(reply)

    def _note(self, event):
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("warning", "error"):
            self.problems.append(params["entry"]["text"])
        elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("warning", "error"):
            self.problems.append(json.dumps(params["args"]))
        elif event.get("method") == "Page.javascriptDialogOpening":
            self.problems.append("a dialog: " + params["message"])
            self.to.write(json.dumps({"id": 0, "sessionId": self.tab, "method": "Page.handleJavaScriptDialog",
                                      "params": {"accept": True}}).encode() + b"\0")

    def look(self, width, height, dark=False):
        """How wide and high the window is, and which colours it prefers."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, url):
        self.ask("Page.navigate", url=url)

    def js(self, expression):
        """The value of a JavaScript expression in the page."""
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, expression, seconds=30):
        """Until the expression is true."""
        until = time.monotonic() + seconds
        while not self.js(expression):
            if time.monotonic() > until:
                raise TimeoutError(expression)
            time.sleep(0.05)

    def screenshot(self, file):
        """The whole page, as a PNG."""
        height = self.js("Math.ceil(document.documentElement.getBoundingClientRect().height)")
        width = self.js("innerWidth")
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True,
                        clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1})
        pathlib.Path(file).write_bytes(base64.b64decode(shot["data"]))
