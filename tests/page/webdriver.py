"""A headless Chromium through its driver, spoken to over HTTP as the WebDriver protocol has it."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final, Self

import pytest

PATIENCE_S: Final = 30.0
OPTIONS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",
)
KEYS: Final = {
    "Enter": "\ue007",
    "Escape": "\ue00c",
    "Tab": "\ue004",
    "ArrowDown": "\ue015",
    "ArrowUp": "\ue013",
    "ArrowLeft": "\ue012",
    "ArrowRight": "\ue014",
    "Home": "\ue011",
    "End": "\ue010",
}
_ELEMENT: Final = "element-6066-11e4-a52e-4f735466cecf"


def programs() -> tuple[str, str]:
    """The driver and the browser; skips where one is missing."""
    driver = shutil.which("chromedriver")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if driver is None or browser is None:
        pytest.skip("Chromium: there is no chromium with chromedriver")
    return driver, browser


class Browser:
    """`with Browser() as browser` is a window of a new profile until the block ends."""

    def __init__(self) -> None:
        self._driver, self._browser = programs()
        self._profile = tempfile.mkdtemp(prefix="fleetmq-browser-")

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [self._driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "started successfully on port" in line:
                self._base = f"http://127.0.0.1:{line.split()[-1].rstrip('.')}"
                break
        options = {"binary": self._browser, "args": [*OPTIONS, f"--user-data-dir={self._profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._session = ""
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._process.terminate()
            self._process.communicate()
            shutil.rmtree(self._profile, ignore_errors=True)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._base + self._session + path,
            data,
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S * 2) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None

    def go(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def js(self, script: str, *args: Any) -> Any:
        """What an expression is in the page; `arguments` are given."""
        return self._call(
            "POST", "/execute/sync", {"script": f"return ({script})", "args": list(args)}
        )

    def run(self, script: str, *args: Any) -> None:
        """Run statements in the page."""
        self._call("POST", "/execute/sync", {"script": script, "args": list(args)})

    def run_async(self, script: str, *args: Any) -> Any:
        """Run statements that call the last argument when they are done."""
        return self._call("POST", "/execute/async", {"script": script, "args": list(args)})

    def wait(self, script: str, *args: Any, patience_s: float = PATIENCE_S) -> Any:
        """Wait until an expression is true; what it is then."""
        until = time.monotonic() + patience_s
        while not (found := self.js(script, *args)):
            if time.monotonic() > until:
                text = self.js("document.body.innerText")
                pytest.fail(f"{script} {args} never became true; the page shows:\n{text[:2000]}")
            time.sleep(0.05)
        return found

    def text(self, css: str = "body") -> str:
        found = self.js("document.querySelector(arguments[0])?.innerText ?? ''", css)
        assert isinstance(found, str)
        return found

    def wait_text(self, text: str, css: str = "body") -> None:
        """Wait until an element shows a text."""
        self.wait(
            "(document.querySelector(arguments[1])?.innerText ?? '').includes(arguments[0])",
            text,
            css,
        )

    def _find(self, css: str) -> str:
        self.wait("document.querySelector(arguments[0]) !== null", css)
        found = self._call("POST", "/element", {"using": "css selector", "value": css})
        return str(found[_ELEMENT])

    def click(self, css: str) -> None:
        self._call("POST", f"/element/{self._find(css)}/click", {})

    def click_text(self, text: str, css: str = "button, a") -> None:
        """Click the first seen element with this text."""
        script = (
            "[...document.querySelectorAll(arguments[1])].find((one) => "
            "one.offsetParent && one.innerText.trim() === arguments[0])"
        )
        self.wait(f"{script} !== undefined", text, css)
        self.run(f"const found = {script}; found.focus(); found.click();", text, css)

    def type(self, css: str, text: str) -> None:
        """Replace what a field holds."""
        element = self._find(css)
        self._call("POST", f"/element/{element}/clear", {})
        self._call("POST", f"/element/{element}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is."""
        actions = []
        for key in keys:
            value = KEYS.get(key, key)
            actions += [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        self._call(
            "POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]}
        )

    def command(self, name: str, **values: Any) -> Any:
        """Send a command of Chromium's own protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": name, "params": values})

    def resize(self, width: int, height: int) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def colours(self, theme: str) -> None:
        """Let the system prefer dark or light."""
        feature = {"name": "prefers-color-scheme", "value": theme}
        self.command("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def messages(self) -> list[str]:
        """What the page wrote to its console since the last call."""
        found = self._call("POST", "/se/log", {"type": "browser"})
        return [f"{one['level']}: {one['message']}" for one in found]
