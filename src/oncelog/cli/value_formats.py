"""How `oncelog topic consume` decodes keys and values, and how it prints what it cannot decode."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from typing import Any, NamedTuple, TypeVar

import click

from oncelog import errors
from oncelog.cli.exact_json import Number, exact
from oncelog.cli.registry_settings import connect, with_registry
from oncelog.client.types import Headers
from oncelog.protocol.schema_ids import unframed

Command = TypeVar("Command", bound=Callable[..., Any])

FORMATS = ("bytes", "string", "json", "avro")
FIELDS = ("key", "value")


class Decoded(NamedTuple):
    """A key or value as a JSON document. If it could not be decoded, `error` is the reason, and the data is base64."""

    document: Any
    error: str | None = None


Decoder = Callable[[bytes, Headers], Decoded]
"""A function of a key or value, and of the headers of its record, which may have the id of its schema."""


def with_formats(command: Command) -> Command:
    """Add `--value-format`, `--key-format` and `--registry`."""
    command = with_registry(command)
    for field in FIELDS:
        command = click.option(
            f"--{field}-format",
            type=click.Choice(FORMATS),
            help=f"Format of {field}s. Avro needs a schema registry.",
        )(command)
    return command


def with_output(command: Command) -> Command:
    """Add `--format` with the third choice avro."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(["text", "json", "avro"]),
        default="text",
        help="Print text (default), or JSON for programs. avro is short for --format json --value-format avro.",
    )(command)


def expanded(form: str, value_format: str | None) -> tuple[str, str | None]:
    """Return `--format` and `--value-format`, without the short form `--format avro`. Raises UsageError."""
    if form != "avro":
        return form, value_format
    if value_format not in (None, "avro"):
        raise click.UsageError(f"--format avro cannot be used together with --value-format {value_format}")
    return "json", "avro"


def decoders(topic: str, formats: Mapping[str, str | None], registry: str | None) -> dict[str, Decoder]:
    """Return field -> its decoder, for fields with a format. Raises UsageError.

    A decoder raises RegistryError if the registry does not answer.
    """
    if "avro" not in formats.values():
        if registry is not None:
            raise click.UsageError("--registry needs --value-format avro or --key-format avro")
        return {field: _PLAIN[form] for field, form in formats.items() if form is not None}
    from oncelog.client.serialization.avro import AvroDeserializer
    from oncelog.client.serialization.functions import SerializationContext

    read = AvroDeserializer(connect(registry))

    def avro(field: str) -> Decoder:
        return _decoder(lambda data, headers: read(data, SerializationContext(topic, field, headers)))

    return {
        field: avro(field) if form == "avro" else _PLAIN[form] for field, form in formats.items() if form is not None
    }


def in_base64(data: bytes) -> dict[str, str]:
    """Return bytes as a JSON document."""
    return {"base64": base64.b64encode(data).decode()}


def text_or_base64(data: bytes | None) -> str | dict[str, str] | None:
    """Return bytes as text, or as `{"base64": ...}` if they are not UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return in_base64(data)


def _decoder(read: Callable[[bytes, Headers], Any]) -> Decoder:
    def decode(data: bytes, headers: Headers) -> Decoded:
        try:
            return Decoded(document(read(data, headers)))
        except errors.OncelogError:
            raise
        except Exception as error:  # noqa: BLE001 - foreign bytes may cause any error
            reason = str(error) if isinstance(error, LookupError) and error.args else f"{type(error).__name__}: {error}"
            return Decoded(in_base64(data), " ".join(reason.split()))

    return decode


def _json(data: bytes) -> Any:
    """Read JSON, after the schema registry's framing if there is one."""
    return json.loads(unframed(data), parse_float=exact)


_PLAIN: dict[str, Decoder] = {
    "bytes": _decoder(lambda data, _: data),
    "string": _decoder(lambda data, _: data.decode()),
    "json": _decoder(lambda data, _: _json(data)),
}


def document(value: Any) -> Any:
    """Return a decoded value with JSON's types, and `Number`, only.

    Bytes become `{"base64": ...}`, times and dates ISO 8601 texts, and decimals, NaN and infinities texts.
    """
    match value:
        case None | bool() | int() | str() | Number():
            return value
        case float():
            return value if math.isfinite(value) else {"nan": "NaN", "inf": "Infinity"}.get(str(value), "-Infinity")
        case bytes():
            return in_base64(value)
        case datetime() | date() | time():
            return value.isoformat()
        case dict():
            return {str(name): document(item) for name, item in value.items()}
        case list() | tuple():
            return [document(item) for item in value]
    return str(value)
