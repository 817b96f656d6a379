"""A real headless Chromium, driven over HTTP by the WebDriver standard: Debian's packages ``chromium`` and
``chromium-driver``, and no Python package.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "apt-get install chromium chromium-driver"
needs_chromium = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason=MISSING)
AXE = Path(__file__).resolve().parents[1] / ".cache/servers/node_modules/axe-core/axe.min.js"
needs_axe = pytest.mark.skipif(not AXE.is_file(), reason="make servers, which installs axe-core")
ENTER = "\ue007"
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    def __init__(self, session: str) -> None:
        self._session = session

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._session}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error

    def open(self, page: Path | str) -> None:
        """Load a file or an address, and return once it is drawn."""
        self._ask("POST", "/url", {"url": page if isinstance(page, str) else page.as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """The result of a piece of JavaScript (``return ...``), or of its promise."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def devtools(self, command: str, **parameters: Any) -> Any:
        """The answer to a command of Chromium's own protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def look(self, *, dark: bool = False, width: int = 1280, height: int = 900, scale: float = 1) -> None:
        """The preferred colours of the reader, and the size of the window; a narrow one is a phone."""
        prefers = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[prefers])
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 720}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)

    def find(self, selector: str) -> str:
        """The first element that a selector of CSS finds."""
        found: dict[str, str] = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        return found[_ELEMENT]

    def click(self, selector: str) -> None:
        """Click on a visible element, like a user."""
        self._ask("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Type keys into an element."""
        self._ask("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Press keys in the focused element."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def texts(self, selector: str) -> list[str]:
        """The visible texts of all elements that a selector finds."""
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText)"
        found: list[str] = self.run(script, selector)
        return found

    def violations(self) -> list[Any]:
        """The accessibility rules of axe-core that the page violates, with the elements."""
        found = "violations.map((one) => [one.id, one.nodes.map((node) => node.html.slice(0, 200))])"
        script = f"{AXE.read_text(encoding='utf-8')}; return axe.run().then(({{ violations }}) => {found})"
        violations: list[Any] = self.run(script)
        return violations

    def complaints(self) -> list[str]:
        """All console messages since the last call."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def screenshot(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self._ask("GET", "/screenshot"))


@contextmanager
def browser() -> Iterator[Browser]:
    """A window that is closed at the end, together with its driver."""
    assert CHROMIUM is not None, MISSING
    assert DRIVER is not None, MISSING
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [DRIVER, f"--port={port}", "--silent"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        try:
            session = _session(address, CHROMIUM)
            window = Browser(f"{address}/session/{session}")
            try:
                yield window
            finally:
                window._ask("DELETE", "")
        finally:
            driver.terminate()


def _session(address: str, chromium: str) -> str:
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
    wanted = {
        "browserName": "chrome",
        "goog:chromeOptions": {"binary": chromium, "args": flags},
        "goog:loggingPrefs": {"browser": "ALL"},
    }
    body = json.dumps({"capabilities": {"alwaysMatch": wanted}}).encode()
    deadline = time.monotonic() + 60
    while True:
        try:
            request = urllib.request.Request(
                f"{address}/session", body, {"Content-Type": "application/json"}, method="POST"
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                return str(json.load(answer)["value"]["sessionId"])
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error
        except OSError:  # it does not listen yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
