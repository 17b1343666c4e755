"""Kafka's DumpLogSegments reads the files of either server without complaint, after a kill and after a stop."""

from __future__ import annotations

import random
import re
import subprocess
from collections import Counter
from pathlib import Path

from support.apache_kafka import SHORT_LIVED, java
from support.clients.base import Outgoing
from support.clients.confluent import ConfluentClient
from support.servers import Server

DUMP = "org.apache.kafka.tools.DumpLogSegments"


def complaints(stderr: str) -> list[str]:
    """Return the lines that report a problem.

    Skip the tool's complaint about the first offset of each later segment.
    """
    lines = [line for line in stderr.splitlines() if not line.startswith("SLF4J:")]
    for name, follows in zip(lines.copy(), lines[1:], strict=False):
        start = int(Path(name).stem) if name.startswith("Non-consecutive offsets in ") else None
        if follows == f"  -1 is followed by {start}":
            lines.remove(name)
            lines.remove(follows)
    return lines


def dump(*files: Path, options: tuple[str, ...] = ()) -> str:
    """Run the tool on the files. Its stderr must be empty, because it reports problems there."""
    names = ",".join(str(path) for path in files)
    command = java(DUMP, "--files", names, *options, options=SHORT_LIVED)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, complaints(done.stderr)) == (0, []), done.stdout[-2000:]
    assert " invalid bytes at the end of " not in done.stdout
    assert "isvalid: false" not in done.stdout.lower()
    return done.stdout


def fill(client: ConfluentClient) -> None:
    """Write several segments of two kinds of transactions and plain records with several codecs, and a group's
    offsets.
    """
    rng = random.Random(11)
    client.create_topic("data", segment_bytes=str(1 << 20), index_interval_bytes="1024")
    producer = client.transactions("dumper")
    for turn in range(12):
        producer.begin()
        producer.send("data", [Outgoing(rng.randbytes(30_000), b"%d" % turn) for _ in range(8)])
        (producer.abort if turn % 3 == 2 else producer.commit)()
        client.send("data", [Outgoing(b"%d" % i * 40, headers=(("h", b"v"),)) for i in range(50)], codec="zstd")
    producer.begin()
    producer.send("data", [Outgoing(b"left open")])
    with client.member("dump-group", "data") as member:
        member.take(30)
        member.commit()


def files(folder: Path, suffix: str) -> list[Path]:
    """Return the partition's files of one kind, oldest first."""
    return sorted(folder.glob(f"*{suffix}"))


def check_data(folder: Path) -> None:
    """Check that the partition contains everything that `fill` wrote."""
    logs = files(folder, ".log")
    assert len(logs) >= 3
    text = dump(*logs, options=("--print-data-log", "--deep-iteration"))
    markers = Counter(re.findall(r"endTxnMarker: (\w+)", text))
    assert markers == {"COMMIT": 8, "ABORT": 4}
    assert len(re.findall(r"^\| offset: ", text, re.MULTILINE)) == 12 * (8 + 50 + 1) + 1
    assert len(re.findall(r"headerKeys: \[h\]", text)) == 12 * 50
    assert len(re.findall(r"compresscodec: zstd", text)) >= 12
    for index in files(folder, ".index")[:-1] + files(folder, ".timeindex")[:-1]:
        assert "passed sanity check" in dump(index, options=("--index-sanity-check",))
    offsets = dump(*files(folder, ".index")[:-1])
    assert len(re.findall(r"^offset: \d+ position: \d+", offsets, re.MULTILINE)) >= 4
    times = dump(*files(folder, ".timeindex")[:-1])
    assert len(re.findall(r"^timestamp: \d+ offset: \d+", times, re.MULTILINE)) >= 4
    aborted = dump(*files(folder, ".txnindex"))
    assert len(re.findall(r"^version: 0 producerId: \d+ firstOffset: \d+", aborted, re.MULTILINE)) == 4
    snapshots = files(folder, ".snapshot")
    assert len(snapshots) >= len(logs) - 1
    assert re.search(r"producerId: \d+ producerEpoch: \d+ .*lastTimestamp: \d+", dump(*snapshots))


def test_dump_log_reads_every_file_of_a_partition(own_server: Server) -> None:
    client = ConfluentClient(own_server.bootstrap)
    fill(client)
    folder = own_server.partition_dir("data")
    own_server.kill()
    own_server.wait_ready()
    check_data(folder)
    own_server.stop()
    check_data(folder)
    last = dump(files(folder, ".snapshot")[-1])
    assert re.search(r"currentTxnFirstOffset: OptionalLong\[\d+\]", last), last


def test_internal_topics(own_server: Server) -> None:
    fill(ConfluentClient(own_server.bootstrap))
    own_server.stop()
    folder = own_server.partition_dir("data").parent
    transactions = [
        dump(path, options=("--transaction-log-decoder",)) for path in folder.glob("__transaction_state-*/*.log")
    ]
    (text,) = [text for text in transactions if "dumper" in text]
    states = re.findall(r'transactionStatus":(\d)', text)
    once = {"commit": ["1", "2", "4"], "abort": ["1", "3", "5"]}
    expected = ["0"] + [
        state for turn in range(12) for state in once["abort" if turn % 3 == 2 else "commit"]
    ] + ["1"]  # fmt: skip
    assert states == expected
    offsets = [dump(path, options=("--offsets-decoder",)) for path in folder.glob("__consumer_offsets-*/*.log")]
    (text,) = [text for text in offsets if "dump-group" in text]
    assert re.search(r'"group":"dump-group","topic":"data","partition":0', text)
    assert re.search(r'"offset":\d+', text)
    assert '"protocolType":"consumer"' in text
