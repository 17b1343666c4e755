"""Fuzz everything that reads foreign bytes, with millions of damaged inputs. A test runs a few thousand of them.

An input is valid bytes with damage: flipped bits, truncation, extreme lengths and counts, repeated pieces, or pieces of
another input. A decoder may return a value or raise the protocol's own errors. Any other exception is a fault, and is
reported with the seed and the bytes that reproduce it. The address space is limited, so that an allocation for a false
length is detected.
"""

from __future__ import annotations

import argparse
import functools
import random
import resource
import struct
import time
import uuid
import zlib
from collections.abc import Callable
from typing import Any

import crc32c

from oncelog.columns.decode import decode_batches, decode_pieces
from oncelog.log.config import LogConfig
from oncelog.log.producer_state import Origin
from oncelog.log.validate import validate
from oncelog.net.credentials import Secret
from oncelog.net.sasl import MIN_ITERATIONS, SCRAM_HASHES, Scram
from oncelog.net.sasl_server import (
    PlainServer,
    RejectedLoginError,
    ScramCredential,
    ScramServer,
    ServerExchange,
    scram_credential,
)
from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.compression import Codec, compress, decompress
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.headers import RequestHeader, decode_request_header, encode_request_header
from oncelog.protocol.records import Record, build_batch, decode_control, decode_records, iter_batches
from oncelog.protocol.schema import DecodeError, Field, Message

HEADROOM = 1 << 30
"""Bytes of address space beyond those in use at the beginning."""
LIMIT = 1 << 20
"""Maximum size of a decompressed payload."""

EXTREMES = [0, 1, -1, 127, 128, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**63 - 1, -(2**63)]
WIDTHS = {1: ">B", 2: ">H", 4: ">I", 8: ">Q"}

Target = Callable[[random.Random], tuple[bytes, Callable[[], object]]]
"""Create an input and the call that reads it."""


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return the same bytes with one to three faults."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        chance.choice((_flip, _cut, _extreme, _repeat, _noise))(out, chance)
    return bytes(out)


def _flip(out: bytearray, chance: random.Random) -> None:
    if out:
        out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)


def _cut(out: bytearray, chance: random.Random) -> None:
    del out[chance.randint(0, len(out)) :]


def _extreme(out: bytearray, chance: random.Random) -> None:
    width = chance.choice(tuple(WIDTHS))
    if len(out) >= width:
        value = chance.choice(EXTREMES) & ((1 << (8 * width)) - 1)
        struct.pack_into(WIDTHS[width], out, chance.randint(0, len(out) - width), value)


def _repeat(out: bytearray, chance: random.Random) -> None:
    start = chance.randint(0, len(out))
    piece = out[start : start + chance.randint(0, 40)]
    at = chance.randint(0, len(out))
    out[at:at] = piece * chance.randint(1, 4)


def _noise(out: bytearray, chance: random.Random) -> None:
    at = chance.randint(0, len(out))
    out[at:at] = chance.randbytes(chance.randint(0, 12))


# --- protocol messages ---


def _value(field: Field, version: int, chance: random.Random) -> Any:
    if field.may_be_null(version) and chance.random() < 0.2:
        return None
    if field.kind == "array":
        return [_item(field.element, version, chance) for _ in range(chance.randint(0, 2))]
    return _item(field.element if field.kind == "struct" else field.kind, version, chance)


def _item(kind: Any, version: int, chance: random.Random) -> Any:
    if not isinstance(kind, str):
        return any_message(kind, version, chance)
    if kind.startswith(("int", "uint")):
        low = 0 if kind.startswith("u") else -128
        return chance.choice((0, 1, low, 127, chance.randint(low, 127)))
    values: dict[str, Callable[[], object]] = {
        "bool": lambda: chance.random() < 0.5,
        "float64": chance.random,
        "uuid": lambda: uuid.UUID(bytes=chance.randbytes(16)),
        "string": lambda: "x" * chance.choice((0, 1, 5, 130)),
        "bytes": lambda: chance.randbytes(chance.choice((0, 1, 9, 130))),
        "records": lambda: bytes(any_batch(chance)),
    }
    return values[kind]()


def any_message(cls: type[Message], version: int, chance: random.Random) -> Message:
    """Return a message with something in each of its fields."""
    present = {name: field for name, field in cls.FIELDS.items() if field.present(version)}
    return cls(**{name: _value(field, version, chance) for name, field in present.items()})


def _message(chance: random.Random, half: int) -> tuple[type[Message], int, bytes]:
    cls = messages(chance.choice(tuple(ApiKey)))[half]
    version = chance.randint(cls.MIN_VERSION, cls.MAX_VERSION)
    return cls, version, any_message(cls, version, chance).encode(version)


def requests(chance: random.Random) -> tuple[bytes, Callable[[], object]]:
    """Return a frame for the broker."""
    cls, version, body = _message(chance, 0)
    data = damaged(encode_request_header(RequestHeader(cls.API_KEY, version, 1, "fuzz")) + body, chance)

    def read() -> object:
        header, position = decode_request_header(memoryview(data))
        request, _ = messages(ApiKey(cls.API_KEY))[0].decode_from(memoryview(data), position, version)
        return header, request

    return data, read


def responses(chance: random.Random) -> tuple[bytes, Callable[[], object]]:
    """Return a response for our client."""
    cls, version, body = _message(chance, 1)
    data = damaged(body, chance)
    return data, lambda: cls.decode(memoryview(data), version)


# --- record batches ---


def any_batch(chance: random.Random) -> bytearray:
    """Return a few records in some codec."""
    records = [
        Record(
            index,
            1_700_000_000_000 + chance.randint(-5, 5),
            chance.choice((None, b"", b"key", chance.randbytes(20))),
            chance.choice((None, b"", b"v" * chance.choice((1, 63, 64, 300)))),
            (("h", None), ("header", b"value"))[: chance.randint(0, 2)],
        )
        for index in range(chance.randint(1, 4))
    ]
    who: dict[str, Any] = {}
    if chance.random() < 0.5:
        who = {"producer_id": chance.randint(0, 9), "producer_epoch": 0, "base_sequence": chance.choice((0, 2**31 - 1))}
    return build_batch(records, codec=chance.choice(tuple(Codec)), base_offset=chance.randint(0, 99), **who)


def _batches(chance: random.Random) -> bytes:
    """Return damaged record batches. Half of them have a valid CRC, so that the checks after it run."""
    data = bytearray(damaged(b"".join(bytes(any_batch(chance)) for _ in range(chance.randint(1, 2))), chance))
    if len(data) > 61 and chance.random() < 0.7:
        if chance.random() < 0.7:
            struct.pack_into(">i", data, 8, len(data) - 12)
        end = 12 + struct.unpack_from(">i", data, 8)[0]
        if 61 < end <= len(data):
            struct.pack_into(">I", data, 17, crc32c.crc32c(memoryview(data)[21:end]))
    return bytes(data)


def records(chance: random.Random) -> tuple[bytes, Callable[[], object]]:
    """Return batches for the record-by-record readers of broker and client."""
    data = _batches(chance)

    def read() -> object:
        found: list[object] = []
        for header, view in iter_batches(data):
            found.append(decode_control(view) if header.is_control else decode_records(view, limit=LIMIT))
        return found

    return data, read


COMPACTED = LogConfig(compact=True)


def appends(chance: random.Random) -> tuple[bytes, Callable[[], object]]:
    """Return batches for the broker's validation before an append."""
    data = _batches(chance)
    config = chance.choice((LogConfig(), COMPACTED))
    return data, lambda: validate(memoryview(bytearray(data)), Origin.CLIENT, config, 1_700_000_000_000)


def tables(chance: random.Random) -> tuple[bytes, Callable[[], object]]:
    """Return batches for the client's conversion to Arrow: compiled code, which must never read past them."""
    data = _batches(chance)
    limits: dict[str, Any] = {"max_bytes": chance.choice((1, 100, 1 << 20)), "max_rows": chance.choice((1, 5, 1000))}

    def read() -> object:
        of: dict[str, Any] = {"topic": "t", "partition": 0, "start_offset": 0, "aborted": [], "include_headers": True}
        table, _ = decode_batches([data], **of)
        table.validate(full=True)
        for piece in decode_pieces([data], end_offset=1 << 62, **of, **limits):
            piece.validate(full=True)
        return table

    return data, read


def compressed(chance: random.Random) -> tuple[bytes, Callable[[], object]]:
    """Return payloads of every codec, some of which decompress to far more than the limit."""
    codec = chance.choice(tuple(Codec))
    size = chance.choice((0, 1, 100, 5000, 8 * LIMIT if chance.random() < 0.01 else 70))
    data = damaged(bytes(compress(codec, bytes(size))), chance)

    def read() -> object:
        unpacked = decompress(codec, data, LIMIT)
        assert len(unpacked) <= LIMIT, f"{codec.name}: {len(unpacked)} bytes, more than the limit"
        return unpacked

    return data, read


# --- logins ---


@functools.cache
def _guesses(mechanism: str) -> tuple[ScramCredential, bytes, bytes]:
    """Return a stored credential, and the two messages of a client that does not know the password."""
    stored = scram_credential(mechanism, "hunter2", b"salt" * 6, MIN_ITERATIONS)
    client = Scram(mechanism, "alice", "guess", "clients-nonce")
    first = client.first()
    final = client.answer(_scram_server(mechanism, stored).answer(first))
    assert final is not None
    return stored, first, final


def _scram_server(mechanism: str, stored: ScramCredential) -> ScramServer:
    return ScramServer(mechanism, {"alice": stored}.get, "servers-nonce", b"disguise")


def logins(chance: random.Random) -> tuple[bytes, Callable[[], object]]:
    """Return messages of clients that know no password. None of them may get in."""
    mechanism = chance.choice(("PLAIN", *SCRAM_HASHES))
    server: ServerExchange
    if mechanism == "PLAIN":
        server = PlainServer({"alice": Secret("hunter2")})
        sent = [damaged(b"\0alice\0guess", chance)]
    else:
        stored, first, final = _guesses(mechanism)
        server = _scram_server(mechanism, stored)
        sent = [damaged(first, chance)] if chance.random() < 0.5 else [first, damaged(final, chance)]

    def read() -> object:
        try:
            return [server.answer(each) for each in sent]
        finally:
            assert not server.user, f"{server.user} got in"

    return b"".join(sent), read


TARGETS: dict[str, Target] = {
    each.__name__: each for each in (requests, responses, records, appends, tables, compressed, logins)
}


def fuzz(target: str, count: int, seed: int) -> int:
    """Read `count` inputs, and return how many were rejected.

    Raise AssertionError with the input that causes a fault.
    """
    refused = 0
    chance = random.Random(zlib.crc32(f"{target} {seed}".encode()))
    for number in range(count):
        data, read = TARGETS[target](chance)
        try:
            read()
        except (DecodeError, ProtocolError, RejectedLoginError):
            refused += 1
        except BaseException as error:
            raise AssertionError(f"{target}, seed {seed}, input {number}: {error!r} for {data.hex()}") from error
    return refused


def bound_memory() -> None:
    """Limit this process to its current address space plus HEADROOM."""
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM, hard))


def main() -> None:
    """Run `scripts/fuzz` from the command line."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; all without")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    chosen = options.targets or list(TARGETS)
    for target in chosen:
        fuzz(target, 100, 0)  # compile the kernels and codecs before memory is limited
    bound_memory()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for target in chosen:
        count = options.inputs // len(chosen)
        start = time.monotonic()
        refused = fuzz(target, count, options.seed)
        rate = count / (time.monotonic() - start)
        print(f"{target:12} {count:9,} inputs, {refused:9,} rejected, {rate:8,.0f} per second", flush=True)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"no fault; memory grew by {grown / 1024:,.0f} MiB")


if __name__ == "__main__":
    main()
