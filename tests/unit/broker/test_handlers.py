"""Rules for all handlers."""

from __future__ import annotations

import ast
from pathlib import Path

from oncelog.broker import handlers
from oncelog.broker.requests.apis import SERVED
from oncelog.protocol.apis import ApiKey, messages

PAUSING = {"oncelog.broker.turns", "oncelog.broker.coordinators.request_parts"}
"""Modules that let the loop serve other requests in the middle of a request."""

NEED_NOT_PAUSE = {
    "list_partition_reassignments": "the handler does not read the array",
}
"""Handlers of requests with arrays that need not pause between the elements, with the reason."""


def handlers_with_arrays() -> set[str]:
    return {
        served.handler
        for key, served in SERVED.items()
        if any(field.kind == "array" for field in messages(ApiKey(key))[0].FIELDS.values())
    }


def imports(handler: str) -> set[str]:
    """Return the modules from which a handler's module imports names."""
    module = handler.partition(".")[0]
    source = Path(handlers.__path__[0], f"{module}.py").read_text(encoding="utf-8")
    return {node.module or "" for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}


def test_handlers_of_requests_with_arrays_pause_between_the_elements() -> None:
    never = {handler for handler in handlers_with_arrays() if not imports(handler) & PAUSING}
    assert never == NEED_NOT_PAUSE.keys()
