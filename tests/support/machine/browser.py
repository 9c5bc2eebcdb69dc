"""A headless Chromium that a test steers over a pipe, by the DevTools protocol: no port, no package."""

import json
import os
import shutil
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

from tests.support.machine.patience import until

PATH = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WORDS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage")
AS_3_AND_4 = """
import os, sys
for given, spare in zip(sys.argv[1:3], (100, 101)):
    os.dup2(int(given), spare)
os.dup2(100, 3), os.dup2(101, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Starts a program with two pipes as its file descriptors 3 and 4, which the protocol reads and writes."""
PALEST = (Path(__file__).parents[2] / "data" / "palest.js").read_text()
"""An expression: the three texts of a page with the least contrast to their ground, and that contrast."""


class Browser:
    """One tab of its own Chromium. `asked` are the URLs it requested, `complaints` what its console said."""

    def __init__(self, folder: Path) -> None:
        assert PATH
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-IS", "-c", AS_3_AND_4, str(theirs_in), str(theirs_out), PATH, *WORDS),
                *("--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}", "about:blank"),
            ],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._left, self._calls, self._session = b"", 0, ""
        self.asked: list[str] = []
        self.complaints: list[str] = []

    def __enter__(self) -> "Browser":
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)
        os.close(self._in)
        os.close(self._out)

    def screen(self, width: int, height: int, dark: bool = False) -> None:
        """Look through a screen of so many pixels, of a person who likes it dark or not."""
        kind = {"deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, **kind)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Load a page."""
        self._call("Page.navigate", url=url)
        until(lambda: self.value("document.readyState") == "complete", "the page never loaded")

    def value(self, expression: str) -> Any:
        """The value of an expression in the page."""
        told = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def text(self, selector: str = "body") -> str:
        """What a person reads in an element."""
        return str(self.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    def shot(self, file: Path) -> None:
        """Save the whole page as a PNG."""
        told = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(b64decode(told["data"]))

    def print(self, file: Path) -> None:
        """Save the page as the PDF that a printer would get."""
        told = self._call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        file.write_bytes(b64decode(told["data"]))

    def _call(self, method: str, **words: Any) -> dict[str, Any]:
        """Call a method and return its answer; events that come meanwhile are noted."""
        self._calls += 1
        order = {"id": self._calls, "method": method, "params": words}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._out, json.dumps(order).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._calls:
                assert "error" not in told, told
                result: dict[str, Any] = told["result"]
                return result
            self._note(told.get("method", ""), told.get("params", {}))

    def _note(self, event: str, facts: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.asked.append(facts["request"]["url"])
        elif event == "Log.entryAdded":
            self.complaints.append(facts["entry"]["text"])
        elif event in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(facts)[:500])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            piece = os.read(self._in, 2**16)
            assert piece, "the browser is gone"
            self._left += piece
        line, _, self._left = self._left.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found
