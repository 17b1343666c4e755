"""A real headless Chromium (Debian's `chromium`), driven by the DevTools protocol over its pipe."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = "chromium"
ANSWER_S = 60.0
POLL = 0.05


class PageError(AssertionError):
    """A script in a page failed, or the browser rejected a command."""


class Chromium:
    """One browser. Use as a context manager."""

    def __init__(self, folder: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self._folder = folder
        self._size = width, height
        self._dark = dark
        self._ids = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self._rest = b""

    def __enter__(self) -> Chromium:
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()
        arguments = [
            *(PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
            *("--remote-debugging-pipe", f"--user-data-dir={self._folder / 'profile'}", "--disable-dev-shm-usage"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync", "about:blank"),
        ]

        def at_its_place() -> None:
            os.dup2(their_in, 10)
            os.dup2(their_out, 11)
            os.dup2(10, 3)
            os.dup2(11, 4)

        log = (self._folder / "chromium.log").open("wb")
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=at_its_place, close_fds=False
        )
        log.close()
        os.close(their_in)
        os.close(their_out)
        self._session = self._new_tab()
        return self

    def _new_tab(self) -> str:
        """Open a tab that counts as visible, and return its session."""
        target = self.call("Target.createTarget", url="about:blank", newWindow=True)["targetId"]
        session: str = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        self._session = session
        self.resize(*self._size)
        self.set_scheme("dark" if self._dark else "light")
        self.tab("Emulation.setFocusEmulationEnabled", enabled=True)
        return session

    @contextlib.contextmanager
    def other_tab(self) -> Iterator[None]:
        """Use another tab inside the block. The first one stays open."""
        before = self._session
        self._new_tab()
        try:
            yield
        finally:
            self._session = before

    def set_scheme(self, scheme: str) -> None:
        """Prefer the colours "light" or "dark"."""
        self.tab("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, session: str | None = None, /, **parameters: Any) -> dict[str, Any]:
        """Send a command, and return its result. Raises PageError."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while number not in self._answers:
            self._read(deadline)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise PageError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def tab(self, method: str, /, **parameters: Any) -> dict[str, Any]:
        """Send a command to the tab."""
        return self.call(method, self._session, **parameters)

    def _read(self, deadline: float) -> None:
        ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise PageError("the browser does not answer")
        data = os.read(self._in, 1 << 20)
        if not data:
            raise PageError("the browser has ended")
        *messages, self._rest = (self._rest + data).split(b"\0")
        for each in messages:
            found = json.loads(each)
            if "id" in found:
                self._answers[found["id"]] = found
            else:
                self.events.append(found)

    def resize(self, width: int, height: int) -> None:
        """Change the size of the tab, in CSS pixels."""
        self.tab(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def go(self, address: str) -> None:
        """Open an address, and return when its document is parsed and its scripts have run."""
        result = self.tab("Page.navigate", url=address)
        if "errorText" in result:
            raise PageError(f"{address}: {result['errorText']}")
        self.until("document.readyState === 'complete'")

    def script(self, expression: str) -> Any:
        """Return the value of an expression in the page. A promise is awaited. Raises PageError."""
        found = self.tab("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise PageError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, expression: str, *, timeout: float = ANSWER_S) -> Any:
        """Wait until an expression is true in the page, and return its value. Raises PageError."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                found = self.script(f"document.body && ({expression})")
            except PageError as error:
                if "Cannot find context" not in str(error) and "context was destroyed" not in str(error):
                    raise
                found = None  # the page is being replaced
            if found:
                return found
            if time.monotonic() > deadline:
                raise PageError(f"never true: {expression}. The page says: {self.text()[:2000]}")
            time.sleep(POLL)

    def text(self) -> str:
        """Return the text of the page."""
        found: str = self.script("document.body.innerText")
        return found

    def click(self, selector: str) -> None:
        """Click an element as the page's own script would. It must exist."""
        self.until(f"document.querySelector({json.dumps(selector)}) !== null")
        self.script(f"document.querySelector({json.dumps(selector)}).click()")

    def complaints(self) -> Iterator[str]:
        """Yield the errors that scripts of the page and the browser's rules for it have caused so far."""
        for event in self.events:
            if event["method"] == "Runtime.exceptionThrown":
                yield str(event["params"]["exceptionDetails"])
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                entry = event["params"]["entry"]
                yield f"{entry['source']}: {entry['text']} {entry.get('url', '')}"

    def requested(self) -> list[str]:
        """Return the addresses that the tab has asked for."""
        sent = (event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent")
        return [each["request"]["url"] for each in sent]

    def screenshot(self, path: Path, *, full: bool = True) -> None:
        """Save the page as PNG: the whole of it, or what is visible."""
        height = self.script("document.documentElement.scrollHeight") if full else self._size[1]
        width = self.script("document.documentElement.clientWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        found = self.tab("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))
