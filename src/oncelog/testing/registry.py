"""A test double of a schema registry: a small HTTP server in this process, for tests only.

It knows a part of Confluent's REST API: subjects, versions, ids, the registration of schemas, and the compatibility
levels BACKWARD (of Avro) and NONE. It keeps its schemas in memory, and forgets them at its end. It is no registry for
production: that is Karapace, Apicurio or Confluent's.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

from oncelog.testing.avro_compatibility import incompatibility

CONTENT = "application/vnd.schemaregistry.v1+json"
LEVELS = ("BACKWARD", "NONE")
FIRST_ID = 100
KEPT = ("schema", "schemaType", "references")
"""The fields of a request that the answer for an id has, too."""

Answer = tuple[int, Any]
"""An HTTP status, and the JSON of the answer."""


class SchemaRegistryDouble:
    """A test double of a schema registry. `url` is its address while a `with` block runs.

        with SchemaRegistryDouble() as registry:
            run_my_service(registry.url)

    `schemas` maps ids to what was registered, and `subjects` the names of subjects to the ids of their versions.
    `requests` has (method, path) of each request. Other attributes make faults: `failures` are HTTP statuses of the
    next answers, `delay_s` is how long each answer takes, with `hold` each answer waits for this event, `authorization`
    is the header that requests must have, `body` replaces each answer, and `location` is the header of that name.

    With `context`, the server uses TLS. A second `with` block runs it again at its address, with its schemas.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.levels: dict[str, str] = {"": "BACKWARD"}
        """The compatibility level of each subject that has its own, and under "" that of the others."""
        self.failures: list[int] = []
        self.delay_s = 0.0
        self.hold: threading.Event | None = None
        self.authorization: str | None = None
        self.body: bytes | None = None
        self.location = ""
        self.has_guids = True
        """Whether answers have GUIDs, as those of Confluent's registry since version 8.0."""
        self.requests: list[tuple[str, str]] = []
        self.url = ""
        self._context = context
        self._lock = threading.Lock()

    def __enter__(self) -> SchemaRegistryDouble:
        self._server = ThreadingHTTPServer(("127.0.0.1", urlsplit(self.url).port or 0), _handler(self))
        self._server.daemon_threads = True
        if self._context is not None:
            self._server.socket = self._context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if self._context else ''}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, subject: str, schema: dict[str, Any]) -> int:
        """Register an answer's `schema`, `schemaType` and `references` without any check, and return its id."""
        plain = _plain(schema)
        found = next((number for number, known in self.schemas.items() if _plain(known) == plain), None)
        number = FIRST_ID + len(self.schemas) if found is None else found
        self.schemas[number] = schema
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def _answer(self, method: str, parts: list[str], body: dict[str, Any]) -> Answer:
        """Return the answer to a request. `parts` are those of its path."""
        with self._lock:
            match method, parts:
                case "GET", ["subjects"]:
                    return 200, sorted(self.subjects)
                case _, ["subjects", subject, *rest]:
                    return self._of_subject(method, subject, rest, body)
                case "GET", ["schemas", "ids", number] if number.isdigit() and int(number) in self.schemas:
                    return 200, self.schemas[int(number)]
                case "GET", ["schemas", "guids", guid] if guid in (known := {str(guid_of(n)): n for n in self.schemas}):
                    return 200, {"id": known[guid], **self.schemas[known[guid]], **self._guid(known[guid])}
                case "POST", ["compatibility", "subjects", subject, "versions", version] if self._id(subject, version):
                    reason = self._conflict(body, self._id(subject, version))
                    return 200, {"is_compatible": reason is None, "messages": [] if reason is None else [reason]}
                case _, ["config", *subject] if len(subject) < 2:
                    return self._config(method, "".join(subject), body)
        return _missing("/".join(parts))

    def _of_subject(self, method: str, subject: str, rest: list[str], body: dict[str, Any]) -> Answer:
        known = self.subjects.get(subject, [])
        match method, rest:
            case "POST", ["versions"]:
                kept = {name: body[name] for name in KEPT if body.get(name)}
                again = any(_plain(self.schemas[number]) == _plain(kept) for number in known)
                if known and not again and self._level(subject) == "BACKWARD":
                    reason = self._conflict(kept, known[-1])
                    if reason is not None:
                        message = f"Schema being registered is incompatible with an earlier schema: {reason}"
                        return 409, {"error_code": 409, "message": message}
                number = self.add(subject, kept)
                return 200, {"id": number, **self._guid(number)}
            case "POST", []:
                for each in known:
                    if _plain(self.schemas[each])["schema"] == _plain(body)["schema"]:
                        return 200, self._version(subject, each)
                return _missing("Schema")
            case "GET", ["versions"] if known:
                return 200, list(range(1, len(known) + 1))
            case "GET", ["versions", version] if (found := self._id(subject, version)) is not None:
                return 200, self._version(subject, found)
        return _missing(f"subjects/{subject}/{'/'.join(rest)}")

    def _version(self, subject: str, number: int) -> dict[str, Any]:
        version = self.subjects[subject].index(number) + 1
        names = {"subject": subject, "id": number, "version": version}
        return {**names, **self.schemas[number], **self._guid(number)}

    def _guid(self, number: int) -> dict[str, str]:
        return {"guid": str(guid_of(number))} if self.has_guids else {}

    def _id(self, subject: str, version: str) -> int | None:
        """Return the id of a version, or None if there is none."""
        known = self.subjects.get(subject, [])
        place = len(known) if version == "latest" else int(version) if version.isdigit() else 0
        return known[place - 1] if 0 < place <= len(known) else None

    def _level(self, subject: str) -> str:
        return self.levels.get(subject, self.levels[""])

    def _config(self, method: str, subject: str, body: dict[str, Any]) -> Answer:
        if method != "PUT":
            return 200, {"compatibilityLevel": self._level(subject)}
        level = str(body.get("compatibility"))
        if level not in LEVELS:
            known = " and ".join(LEVELS)
            return 422, {"error_code": 42203, "message": f"this test double knows only {known}, not {level}"}
        self.levels[subject] = level
        return 200, {"compatibility": level}

    def _conflict(self, schema: dict[str, Any], known: int | None) -> str | None:
        """Return why a new schema cannot read values of a known one, or None. Check only Avro without references."""
        old = {} if known is None else self.schemas[known]
        kinds = {schema.get("schemaType", "AVRO"), old.get("schemaType", "AVRO")}
        if kinds != {"AVRO"} or schema.get("references") or old.get("references"):
            return None
        return incompatibility(json.loads(schema["schema"]), json.loads(old["schema"]))


def guid_of(number: int) -> UUID:
    """Return the GUID of the schema with this id."""
    return UUID(int=(0xFACE << 112) + number)


def _missing(what: str) -> Answer:
    return 404, {"error_code": 40403, "message": f"{what} not found"}


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in a form that can be compared: texts of JSON may differ in their spaces."""
    found = {"schemaType": "AVRO", **schema}
    return found if found["schemaType"] == "PROTOBUF" else {**found, "schema": json.loads(schema["schema"])}


def _handler(registry: SchemaRegistryDouble) -> type[BaseHTTPRequestHandler]:
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
            found: Any
            if registry.authorization not in (None, self.headers.get("Authorization")):
                status, found = 401, {"error_code": 40101, "message": "Unauthorized"}
            elif registry.failures:
                status, found = registry.failures.pop(0), {"error_code": 50001, "message": "on purpose"}
            else:
                parts = [unquote(part) for part in path.split("/")[1:]]
                try:
                    status, found = registry._answer(self.command, parts, body)
                except (ValueError, LookupError) as error:
                    status, found = 422, {"error_code": 42201, "message": f"Invalid schema: {error}"}
            content = json.dumps(found).encode()
            if registry.body is not None:
                status, content = 200, registry.body
            self.send_response(status)
            self.send_header("Content-Type", CONTENT)
            self.send_header("Content-Length", str(len(content)))
            if registry.location:
                self.send_header("Location", registry.location)
            self.end_headers()
            with suppress(OSError):  # the client did not wait
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = handle_any  # noqa: N815 - names of http.server

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    return Handler
