"""Compare `oncelog log dump` with Kafka's DumpLogSegments, field by field, on the files of either server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oncelog.coordinator.transactions.metadata import TransactionState
from support.apache_kafka import SHORT_LIVED, java
from support.clients.base import Outgoing
from support.clients.confluent import ConfluentClient
from support.command_line import Tool
from support.servers import Server

Row = dict[str, Any]
DUMP = "org.apache.kafka.tools.DumpLogSegments"


def optional(text: str) -> int | None:
    """Return the value of a Java OptionalLong."""
    found = re.fullmatch(r"OptionalLong\[(-?\d+)\]", text)
    return int(found[1]) if found else None


def true(text: str) -> bool:
    return text == "true"


BATCH: dict[str, tuple[str, Callable[[str], Any]]] = {
    "baseOffset": ("base_offset", int),
    "lastOffset": ("last_offset", int),
    "count": ("count", int),
    "baseSequence": ("base_sequence", int),
    "lastSequence": ("last_sequence", int),
    "producerId": ("producer_id", int),
    "producerEpoch": ("producer_epoch", int),
    "partitionLeaderEpoch": ("leader_epoch", int),
    "isTransactional": ("transactional", true),
    "isControl": ("control", true),
    "deleteHorizonMs": ("delete_horizon", optional),
    "position": ("position", int),
    "size": ("size", int),
    "magic": ("magic", int),
    "compresscodec": ("codec", str),
    "crc": ("crc", int),
    "isvalid": ("valid", true),
}
ENTRY: dict[str, tuple[str, Callable[[str], Any]]] = {
    "offset": ("offset", int),
    "position": ("position", int),
    "timestamp": ("timestamp", int),
    "version": ("version", int),
    "producerId": ("producer_id", int),
    "producerEpoch": ("producer_epoch", int),
    "coordinatorEpoch": ("coordinator_epoch", int),
    "currentTxnFirstOffset": ("transaction_start", optional),
    "lastTimestamp": ("last_timestamp", int),
    "firstOffset": ("first_offset", int),
    "lastOffset": ("last_offset", int),
    "lastStableOffset": ("last_stable_offset", int),
    "firstSequence": ("first_sequence", int),
    "lastSequence": ("last_sequence", int),
    "offsetDelta": ("offset_delta", int),
}


def named(line: str, table: dict[str, tuple[str, Callable[[str], Any]]]) -> Row:
    """Return the fields of a line under our names. Fail if a name is unknown."""
    return {table[name][0]: table[name][1](value) for name, value in re.findall(r"(\w+): (\S+)", line)}


def document(text: str | None) -> Any:
    """Return a decoded key or payload. Kafka prints the numbers of types and versions as text."""
    if text in (None, "<DELETE>"):
        return None
    found = json.loads(text)
    return {name: int(value) if name in ("type", "version") else value for name, value in found.items()}


def record(line: str, internal: bool) -> Row:
    """Return a line of `--print-data-log`."""
    found = re.fullmatch(
        r"\| offset: (\d+) (\w+): (-?\d+) keySize: (-?\d+) valueSize: (-?\d+) sequence: (-?\d+) headerKeys: \[(.*?)\]"
        r"(?: endTxnMarker: (\w+) coordinatorEpoch: (-?\d+))?(?: key: (.*?))?(?: payload: (.*))?",
        line,
    )
    assert found is not None, line
    offset, kind, timestamp, _, _, sequence, headers, marker, epoch, key, value = found.groups()
    if marker is not None:
        return {"marker": marker, "coordinator_epoch": int(epoch)}
    return {
        "offset": int(offset),
        "timestamp_type": kind,
        "timestamp": int(timestamp),
        "sequence": int(sequence),
        "headers": [name for name in headers.split(",") if name],
        "key": document(key) if internal else key,
        "value": document(value) if internal else value,
    }


def as_kafka_shows(files: list[Path], *options: str, internal: bool = False) -> dict[str, list[Row]]:
    """Return Kafka's entries by file."""
    names = ",".join(map(str, files))
    command = java(DUMP, "--files", names, "--deep-iteration", "--print-data-log", *options, options=SHORT_LIVED)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[Row]] = {}
    rows: list[Row] = []
    for line in done.stdout.splitlines():
        if line.startswith("Dumping "):
            rows = found[line.removeprefix("Dumping ")] = []
        elif line.startswith("baseOffset: "):
            plain = re.sub(r" (CreateTime|LogAppendTime): (-?\d+)", "", line)
            kind, largest = re.findall(r" (CreateTime|LogAppendTime): (-?\d+)", line)[0]
            rows.append(named(plain, BATCH) | {"timestamp_type": kind, "max_timestamp": int(largest)})
        elif line.startswith("| "):
            shown = record(line, internal)
            if "marker" in shown:
                rows[-1] |= shown
            else:
                rows[-1].setdefault("records", []).append(shown)
        elif not line.endswith("is empty.") and not line.startswith("Log starting offset"):
            rows.append(named(line, ENTRY))
    return found


def as_oncelog_shows(files: list[Path], *options: str) -> dict[str, list[Row]]:
    """Return our entries by file, with only the names of headers, as in the other tool."""
    dumped = Tool("nowhere:1").json("log", "dump", *map(str, files), "--records", *options)
    for item in dumped:
        for row in item["entries"]:
            for each in row.get("records", ()):
                each["timestamp_type"] = row["timestamp_type"]
                each["headers"] = [name for name, _ in each["headers"]]
                if isinstance(each["value"], dict) and "transactionStatus" in each["value"]["data"]:
                    fields = each["value"]["data"]  # the other tool has no names of states
                    assert fields.pop("transactionStatusName") == TransactionState(fields["transactionStatus"]).text
        if item["file"].endswith(".snapshot"):  # the other tool omits these fields for a producer without a batch
            rows = item["entries"]
            item["entries"] = [
                {name: value for name, value in row.items() if value is not None or name == "transaction_start"}
                for row in rows
            ]
    return {item["file"]: item["entries"] for item in dumped}


def files_of(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if path.suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    )


def fill(client: ConfluentClient) -> None:
    """Write two segments of plain, keyed, compressed and transactional records (some aborted, some open), and a
    group.
    """
    client.create_topic("data", segment_bytes=str(1 << 20), index_interval_bytes="1024")
    producer = client.transactions("dumper")
    for turn in range(8):
        producer.begin()
        producer.send("data", [Outgoing(b"%d" % turn * 20_000, b"%d" % turn) for _ in range(8)])
        (producer.abort if turn % 3 == 2 else producer.commit)()
        client.send("data", [Outgoing(b"v%d" % i, headers=(("h", b"v"), ("i", b""))) for i in range(20)], codec="zstd")
    producer.begin()
    producer.send("data", [Outgoing(b"left open")])
    with client.member("dump-group", "data") as member:
        member.take(30)
        member.commit()


def test_every_field_of_every_file(own_server: Server) -> None:
    fill(ConfluentClient(own_server.bootstrap))
    own_server.stop()
    data = own_server.partition_dir("data")
    files = files_of(data)
    assert {path.suffix for path in files} == {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    kafkas, ours = as_kafka_shows(files), as_oncelog_shows(files)
    assert sum(len(rows) for rows in kafkas.values()) > 30
    assert ours == kafkas
    for topic, kind in (("__consumer_offsets", "offsets"), ("__transaction_state", "transaction-log")):
        files = [path for path in data.parent.glob(f"{topic}-*/*.log") if path.stat().st_size]
        kafkas = as_kafka_shows(files, f"--{kind}-decoder", internal=True)
        assert any("records" in row for rows in kafkas.values() for row in rows)
        assert as_oncelog_shows(files) == kafkas
        assert (
            as_oncelog_shows(files, "--decode", "offsets" if topic == "__consumer_offsets" else "transactions")
            == kafkas
        )
