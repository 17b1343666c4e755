"""`oncelog log dump`: print a partition's files, written by oncelog or Apache Kafka, as `kafka-dump-log` does."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, NamedTuple

import click

from oncelog.cli.common import formatted, show
from oncelog.cli.internal_records import DECODERS, Decoder, decoded, decoder_of
from oncelog.cli.lazy import LazyGroup, examples
from oncelog.cli.value_formats import text_or_base64
from oncelog.log.snapshot import CorruptSnapshotError, decode_snapshot
from oncelog.protocol.compression import Codec
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.records import (
    NO_SEQUENCE,
    BatchHeader,
    Record,
    check_crc,
    decode_control,
    decode_records,
    iter_batches,
    next_sequence,
)

Row = dict[str, Any]

log = LazyGroup(
    "log",
    help="Print the contents of a partition's files.",
    table={"dump": ("oncelog.cli.log_dump:dump", "Print batches, indexes and producer snapshots.")},
)
_OFFSET_ENTRY = Struct(">II")
_TIME_ENTRY = Struct(">qI")
_ABORTED_ENTRY = Struct(">hqqqq")


class Records(NamedTuple):
    """Whether to show records, and how to decode those of a coordinator's topic."""

    wanted: bool
    decoder: Decoder | None


def _base_offset(path: str) -> int:
    """Return the offset in a file's name. Raises ClickException."""
    digits = os.path.basename(path).split(".")[0]
    if not digits.isdigit():
        raise click.ClickException(f"{path}: the name must begin with the segment's first offset, as in {0:020}.log")
    return int(digits)


def _batches(path: str, data: memoryview, records: Records) -> Iterator[Row]:
    """Yield the batches in order. `valid`: the checksum is correct. Raises ClickException where no batch begins."""
    position = 0
    try:
        for header, view in iter_batches(data):
            row: Row = {
                "position": position,
                "base_offset": header.base_offset,
                "last_offset": header.last_offset,
                "count": header.count,
                "size": header.size,
                "magic": header.magic,
                "leader_epoch": header.partition_leader_epoch,
                "producer_id": header.producer_id,
                "producer_epoch": header.producer_epoch,
                "base_sequence": header.base_sequence,
                "last_sequence": header.last_sequence,
                "transactional": header.is_transactional,
                "control": header.is_control,
                "codec": Codec(header.codec).name.lower(),
                "timestamp_type": "LogAppendTime" if header.timestamp_type else "CreateTime",
                "max_timestamp": header.max_timestamp,
                "delete_horizon": header.delete_horizon_ms,
                "crc": header.crc,
                "valid": _is_valid(header, view),
            }
            if header.is_control and header.count:
                commit, coordinator_epoch = decode_control(view)
                row |= {"marker": "COMMIT" if commit else "ABORT", "coordinator_epoch": coordinator_epoch}
            elif records.wanted and row["valid"]:
                row["records"] = [_record(header, item, records.decoder) for item in decode_records(view)]
            yield row
            position += header.size
    except ProtocolError as error:
        raise click.ClickException(f"{path} has no valid batch at position {position}: {error}") from error


def _record(header: BatchHeader, item: Record, decoder: Decoder | None) -> Row:
    row: Row = {
        "offset": item.offset,
        "timestamp": item.timestamp,
        "sequence": next_sequence(header.base_sequence, item.offset - header.base_offset)
        if header.base_sequence >= 0
        else NO_SEQUENCE,
        "key": text_or_base64(item.key),
        "value": text_or_base64(item.value),
        "headers": [[name, text_or_base64(value)] for name, value in item.headers],
    }
    return row | ((decoder and decoded(item.key, item.value, decoder)) or {})


def _is_valid(header: Any, view: memoryview) -> bool:
    try:
        check_crc(header, view)
    except ProtocolError:
        return False
    return True


def _entries(path: str, data: memoryview, entry: Struct) -> Iterator[tuple[Any, ...]]:
    if len(data) % entry.size:
        raise click.ClickException(
            f"{path} has {len(data)} bytes, which is not a multiple of its entry size {entry.size}"
        )
    return entry.iter_unpack(data)


def _index(path: str, data: memoryview, _: Records) -> Iterator[Row]:
    base = _base_offset(path)
    for number, (offset, position) in enumerate(_entries(path, data, _OFFSET_ENTRY)):
        if number and not offset:
            return  # the unused rest of a file that Kafka allocates at its full size
        yield {"offset": base + offset, "position": position}


def _timeindex(path: str, data: memoryview, _: Records) -> Iterator[Row]:
    base = _base_offset(path)
    for number, (timestamp, offset) in enumerate(_entries(path, data, _TIME_ENTRY)):
        if number and not timestamp:
            return
        yield {"timestamp": timestamp, "offset": base + offset}


def _txnindex(path: str, data: memoryview, _: Records) -> Iterator[Row]:
    for version, producer_id, first, last, stable in _entries(path, data, _ABORTED_ENTRY):
        yield {
            "version": version,
            "producer_id": producer_id,
            "first_offset": first,
            "last_offset": last,
            "last_stable_offset": stable,
        }


def _snapshot(path: str, data: memoryview, _: Records) -> Iterator[Row]:
    try:
        producers = decode_snapshot(bytes(data))
    except CorruptSnapshotError as error:
        raise click.ClickException(f"{path}: {error}") from error
    for item in producers:
        last = item.batches[-1] if item.batches else None
        yield {
            "producer_id": item.producer_id,
            "producer_epoch": item.epoch,
            "coordinator_epoch": item.coordinator_epoch,
            "first_sequence": None if last is None else last.first_sequence,
            "last_sequence": None if last is None else last.last_sequence,
            "last_offset": None if last is None else last.last_offset,
            "offset_delta": None if last is None else last.offset_delta,
            "timestamp": None if last is None else last.timestamp,
            "transaction_start": None if item.txn_start < 0 else item.txn_start,
            "last_timestamp": item.touched_ms,
        }


KINDS: dict[str, Callable[[str, memoryview, Records], Iterator[Row]]] = {
    ".log": _batches,
    ".index": _index,
    ".timeindex": _timeindex,
    ".txnindex": _txnindex,
    ".snapshot": _snapshot,
}


@click.command(epilog=examples("oncelog log dump --records orders-0/00000000000000000000.log"))
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False), metavar="FILE...")
@click.option("--records", is_flag=True, help="Print the records of .log files, not only their batches.")
@click.option(
    "--decode",
    type=click.Choice(tuple(DECODERS)),
    help="Decode the records as those of this topic. Default: by the name of the files' directory.",
)
@formatted
def dump(files: tuple[str, ...], records: bool, decode: str | None, form: str) -> None:
    """Print the contents of a partition's files: .log, .index, .timeindex, .txnindex and .snapshot.

    Records of __consumer_offsets and __transaction_state are decoded. A broker may have the files open. If it appends
    during the dump, the last batch may appear truncated.
    """
    for path in files:
        if os.path.splitext(path)[1] not in KINDS:
            raise click.UsageError(f"cannot dump {path}: the file's name must end in one of {', '.join(KINDS)}")
    found = []
    broken: click.ClickException | None = None
    for path in files:
        rows: list[Row] = []
        try:
            how = Records(records or decode is not None, DECODERS[decode] if decode else decoder_of(path))
            rows.extend(KINDS[os.path.splitext(path)[1]](path, _content(path), how))
        except click.ClickException as error:
            broken = broken or error
        found.append({"file": path, "entries": rows})
    if form == "json":
        show(found, form)
    for item in found if form == "text" else ():
        click.echo(item["file"])
        _print(item["entries"])  # type: ignore[arg-type]
    if broken is not None:
        raise broken


def _content(path: str) -> memoryview:
    """Return the file's content, mapped into memory. An empty file cannot be mapped."""
    with open(path, "rb") as file:
        empty = not os.fstat(file.fileno()).st_size
        return memoryview(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _print(rows: list[Row]) -> None:
    """Print batches with the records of each below it. Without records, print a table."""
    if not any("records" in row for row in rows):
        names = list(dict.fromkeys(name for row in rows for name in row))
        show([{name: row.get(name) for name in names} for row in rows], "text", names)
        return
    for row in rows:
        click.echo(" ".join(f"{name}={value}" for name, value in row.items() if name != "records"))
        for record in row.get("records", ()):
            click.echo("  " + " ".join(f"{name}={value}" for name, value in record.items()))
