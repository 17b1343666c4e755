"""A schema registry in this process, with the part of Confluent's REST API that serializers use.

confluent-kafka's registry client uses it as well, in test_confluent_serializers.py.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID


class FakeRegistry:
    """The schemas, and what the next requests get instead of an answer.

    `failures` are HTTP statuses for the next requests. `delay_s` is how long each answer takes. With `hold`, each
    answer waits for this event. `authorization` is the header that requests need. `requests` has (method, path) of each
    request.
    """

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.failures: list[int] = []
        self.delay_s = 0.0
        self.hold: threading.Event | None = None
        self.authorization: str | None = None
        self.body: bytes | None = None
        """What to answer in place of JSON."""
        self.location = ""
        self.requests: list[tuple[str, str]] = []
        self.url = ""
        self.has_guids = True
        """Whether answers have GUIDs, as those of Confluent's registry since version 8.0."""

    def add(self, subject: str, schema: dict[str, Any]) -> int:
        """Register an answer's `schema`, `schemaType` and `references`, and return its id."""
        plain = _plain(schema)
        found = next((number for number, known in self.schemas.items() if _plain(known) == plain), None)
        number = 100 + len(self.schemas) if found is None else found
        self.schemas[number] = schema
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def guids(self, number: int) -> dict[str, str]:
        return {"guid": str(guid_of(number))} if self.has_guids else {}

    def whole(self, number: int) -> dict[str, Any]:
        return {**self.schemas[number], **self.guids(number)}

    def answer(self, method: str, parts: list[str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        match method, parts:
            case "POST", ["subjects", subject, "versions"]:
                kept = {name: body[name] for name in ("schema", "schemaType", "references") if body.get(name)}
                number = self.add(subject, kept)
                return 200, {"id": number, **self.guids(number)}
            case "POST", ["subjects", subject]:
                for version, number in enumerate(self.subjects.get(subject, []), 1):
                    if json.loads(self.schemas[number]["schema"]) == json.loads(body["schema"]):
                        return 200, {"subject": subject, "id": number, "version": version} | self.whole(number)
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case "GET", ["schemas", "ids", number] if int(number) in self.schemas:
                return 200, self.schemas[int(number)]
            case "GET", ["subjects", subject, "versions", version] if subject in self.subjects:
                versions = self.subjects[subject]
                place = len(versions) if version == "latest" else int(version)
                number = versions[place - 1]
                return 200, {"subject": subject, "id": number, "version": place} | self.whole(number)
            case "GET", ["schemas", "guids", guid] if guid in (known := {str(guid_of(n)): n for n in self.schemas}):
                return 200, {"id": known[guid]} | self.whole(known[guid])
        return 404, {"error_code": 40403, "message": f"{'/'.join(parts)} not found"}


def guid_of(number: int) -> UUID:
    """Return the GUID of the schema with this id."""
    return UUID(int=(0xFACE << 112) + number)


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    return {"schemaType": "AVRO", **schema, "schema": json.loads(schema["schema"])}


@contextmanager
def fake_registry(context: ssl.SSLContext | None = None, stopped: FakeRegistry | None = None) -> Iterator[FakeRegistry]:
    """Run a registry, with TLS if `context` is given. `url` is its address. `stopped` runs again at its own."""
    registry = stopped or FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            path = urlsplit(self.path).path
            registry.requests.append((self.command, path))
            time.sleep(registry.delay_s)
            if registry.hold is not None:
                registry.hold.wait(60)
            if registry.authorization not in (None, self.headers.get("Authorization")):
                status, found = 401, {"error_code": 40101, "message": "Unauthorized"}
            elif registry.failures:
                status, found = registry.failures.pop(0), {"error_code": 50001, "message": "on purpose"}
            else:
                status, found = registry.answer(self.command, [unquote(part) for part in path.split("/")[1:]], body)
            content = json.dumps(found).encode()
            if registry.body is not None:
                status, content = 200, registry.body
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content)))
            if registry.location:
                self.send_header("Location", registry.location)
            self.end_headers()
            with suppress(OSError):  # the client did not wait
                self.wfile.write(content)

        def do_GET(self) -> None:
            self.handle_any()

        def do_POST(self) -> None:
            self.handle_any()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", urlsplit(registry.url).port or 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    registry.url = f"http{'s' if context else ''}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
