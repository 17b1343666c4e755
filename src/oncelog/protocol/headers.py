"""Encode and decode the headers of requests and responses. In flexible versions, both have tags (KIP-482)."""

from __future__ import annotations

import struct
from functools import cache
from typing import NamedTuple

from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.primitives import read_varint
from oncelog.protocol.schema import DecodeError

MOST_TAGS = 100
"""Largest number of tagged fields in a header. Kafka has defined none so far."""

_FIXED = struct.Struct(">hhih")
_CORRELATION_ID = struct.Struct(">i")


class RequestHeader(NamedTuple):
    """A request header in version 1 or 2, which differ only in the tags. `client_id` may be null."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


@cache
def is_flexible(api_key: int, api_version: int) -> bool:
    """Return whether request headers of this API and version have tags. Return False for an unknown API."""
    try:
        key = ApiKey(api_key)
    except ValueError:
        return False
    return api_version >= messages(key)[0].FLEXIBLE_SINCE


def decode_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """Return the header, and the position of the request after it. Raises DecodeError."""
    try:
        api_key, api_version, correlation_id, size = _FIXED.unpack_from(frame)
        pos = _FIXED.size
        client_id = None
        if size >= 0:
            if pos + size > len(frame):
                raise DecodeError("client id is truncated")
            client_id = str(frame[pos : pos + size], "utf-8")
            pos += size
        elif size != -1:
            raise DecodeError(f"client id has the invalid length {size}")
        if is_flexible(api_key, api_version):
            pos = _skip_tags(frame, pos)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DecodeError(f"invalid request header: {error}") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id), pos


def encode_request_header(header: RequestHeader) -> bytes:
    """Return the bytes of a request header. It has no tagged fields."""
    raw = b"" if header.client_id is None else header.client_id.encode()
    size = -1 if header.client_id is None else len(raw)
    fixed = _FIXED.pack(header.api_key, header.api_version, header.correlation_id, size)
    return fixed + raw + (b"\x00" if is_flexible(header.api_key, header.api_version) else b"")


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """Return the bytes of a response header.

    The header of an ApiVersions response never has tags, because its reader may not know the version yet (KIP-511).
    """
    raw = _CORRELATION_ID.pack(correlation_id)
    return raw + b"\x00" if _response_has_tags(api_key, api_version) else raw


def decode_response_header(frame: memoryview, api_key: int, api_version: int) -> tuple[int, int]:
    """Return the correlation id, and the position of the response after the header. Raises DecodeError."""
    try:
        correlation_id: int = _CORRELATION_ID.unpack_from(frame)[0]
        pos = _CORRELATION_ID.size
        if _response_has_tags(api_key, api_version):
            pos = _skip_tags(frame, pos)
    except (struct.error, IndexError) as error:
        raise DecodeError(f"invalid response header: {error}") from error
    return correlation_id, pos


def _response_has_tags(api_key: int, api_version: int) -> bool:
    return api_key != ApiKey.API_VERSIONS and is_flexible(api_key, api_version)


def _skip_tags(frame: memoryview, pos: int) -> int:
    tags, pos = read_varint(frame, pos)
    if tags > MOST_TAGS:
        raise DecodeError(f"header has {tags} tagged fields, which is too many")
    for _ in range(tags):
        _, pos = read_varint(frame, pos)
        size, pos = read_varint(frame, pos)
        pos += size
        if pos > len(frame):
            raise DecodeError("tagged field of a header is truncated")
    return pos
