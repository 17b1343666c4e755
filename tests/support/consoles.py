"""`oncelog console` in tests: a process, and a plain HTTP client that sends what it is told to."""

from __future__ import annotations

import html
import http.client
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from support.command_line import ONCELOG
from support.processes import ManagedProcess

WAIT_S = 60.0


class Answer(NamedTuple):
    """A response: status, headers with names in lower case, and the body as text."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def text(self) -> str:
        """Return the text of a page without its tags, in one line."""
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", self.body)).split())


class ConsoleProcess:
    """A console that answers when this is constructed."""

    def __init__(self, bootstrap: str, directory: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        command: list[str | Path] = [ONCELOG, "console", "-b", bootstrap, "--port", "0", *arguments]
        self.process = ManagedProcess(command, directory, "console", {**os.environ, **(env or {})})
        self.process.wait_for(self._address, "the console prints CONSOLE=")
        self.address = self._address()
        self.host = urlsplit(self.address).netloc
        self.port = int(self.host.rpartition(":")[2])

    def _address(self) -> str:
        lines = (line for line in self.process.lines() if line.startswith("CONSOLE="))
        return next((line.removeprefix("CONSOLE=").rstrip("/") for line in lines), "")

    def request(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: str | None = None
    ) -> Answer:
        """Send one request. Only the header Host is added, unless it is given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request(method, target, body, {"Host": self.host, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read().decode())
        finally:
            connection.close()

    def get(self, target: str, **headers: str) -> Answer:
        """Get a page as a browser that has followed a link."""
        return self.request("GET", target, {"Accept": "text/html", **headers})

    def json(self, target: str) -> dict[str, Any]:
        """Get the JSON of a page that can be shown."""
        answer = self.request("GET", target + ("&" if "?" in target else "?") + "format=json")
        assert answer.status == 200, answer
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def post(self, target: str, fields: Mapping[str, str], **headers: str) -> Answer:
        """Send a form as a page of the console does. `headers` replaces the browser's. Empty ones are omitted."""
        sent = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": self.address,
            "Sec-Fetch-Site": "same-origin",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        return self.request("POST", target, {k: v for k, v in sent.items() if v}, urlencode(fields))

    def listen(self, target: str) -> socket.socket:
        """Ask for the events of a page, and return the connection."""
        made = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        request = f"GET {target} HTTP/1.1\r\nHost: {self.host}\r\nAccept: text/event-stream\r\n\r\n"
        made.sendall(request.encode())
        return made

    def events(self, target: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a page."""
        with self.listen(target) as connection, connection.makefile("rb") as lines:
            for line in lines:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))

    def stop(self) -> int:
        """Stop the console, and return its exit status."""
        return self.process.stop()
