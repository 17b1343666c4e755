"""Run the broker under attack, and measure its memory and how long another client waits."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import re
import shutil
import signal
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from connections import frame, memory

from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.schema import Message
from support.servers import OncelogCluster
from support.wire import Wire, batch, until

KB = 1024
MB = 1024 * 1024
PATIENCE_S = 60.0
"""How long an attacker waits for one response."""
TOPICS = 2000
TOPIC_PARTITIONS = 10
STALL_LOG_MS = 50
AT_ONCE = 1000
"""Partitions of one ListOffsets of the check."""
MOST_MB = 4096
"""A broker with more memory is killed."""
PROBED = "probe"
SETTINGS = {"loop.stall.log.ms": str(STALL_LOG_MS), "log.retention.check.interval.ms": "1000"}
_PROBE_PAUSE_S = 0.002
_SAMPLE_S = 0.02


class Target:
    """A broker and the connections of the current attack."""

    def __init__(
        self,
        folder: Path,
        *,
        large: bool = False,
        settings: Mapping[str, str] | None = None,
        template: Path | None = None,
    ) -> None:
        """`large`: with `TOPICS` topics of `TOPIC_PARTITIONS` partitions each.

        Creating them takes long. If `template` exists, copy the broker's data from it; otherwise, store the data there.
        """
        self.large = large
        self.folder = folder
        folder.mkdir(parents=True)
        if large and template is not None:
            if not template.exists():
                made = Target(folder.parent / "made", large=True)
                made.server.stop()
                shutil.copytree(made.server.data, template)
                made.stop()
            shutil.copytree(template, folder / "data")
        self.server = self._start({**SETTINGS, **(settings or {})})
        self._held: list[socket.socket | Wire] = []
        self.names = [f"topic-{number:04}" for number in range(TOPICS)] if large else []
        with self.wire() as wire:
            if not (large and template is not None):
                wire.create_topic(PROBED)
                create(wire, self.names, TOPIC_PARTITIONS)
            wire.leaders_serve(PROBED)
            wire.find_coordinator("a group", 0)
            wire.find_coordinator("a transaction", 1)

    def _start(self, settings: Mapping[str, str]) -> OncelogCluster:
        """Start the broker."""
        return OncelogCluster(self.folder, settings=settings)

    @property
    def bootstrap(self) -> str:
        """The broker's address."""
        return self.server.bootstrap

    @property
    def pid(self) -> int:
        """The broker's process id."""
        return self.server.broker_pid()

    def wire(self) -> Wire:
        """Return a connection with a long timeout for responses."""
        wire = Wire(self.bootstrap, "attacker")
        wire._socket.settimeout(PATIENCE_S)
        return wire

    def connect(self) -> socket.socket:
        """Return a new connection on which the broker has answered. Raises OSError."""
        return self.wire()._socket

    def hold(self, connection: Any) -> Any:
        """Keep a connection open until the memory is measured."""
        self._held.append(connection)
        return connection

    def release(self) -> None:
        """Close the held connections."""
        while self._held:
            self._held.pop().close()

    def restart(self) -> None:
        """Kill the broker, and return when it accepts connections again."""
        self.release()
        self.server.kill()
        self.server.wait_ready()

    def stalls(self) -> list[str]:
        """Return the stalls that the broker has logged so far."""
        lines = self.server.process.stderr_path.read_text(errors="replace").splitlines()
        return [line for line in lines if "held the event loop" in line]

    def check_serves(self) -> None:
        """Raise AssertionError unless every partition answers, and the attacked topics take records."""
        with self.wire() as wire:
            answer = wire.call(MetadataRequest(topics=None), 12)
            partitions = {topic.name: len(topic.partitions) for topic in answer.topics if not topic.is_internal}
            everywhere = [(name, index) for name, count in partitions.items() for index in range(count)]
            for wave in waves(len(everywhere), AT_ONCE):
                self._check_offsets(wire, [everywhere[number] for number in wave])
            for topic in answer.topics:
                if not topic.is_internal and topic.name not in self.names:
                    self._check_writes(wire, topic)

    @staticmethod
    def _check_offsets(wire: Wire, some: list[tuple[str, int]]) -> None:
        topics = [
            ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(partition_index=index, timestamp=-1)])
            for name, index in some
        ]
        answer = wire.call(ListOffsetsRequest(replica_id=-1, topics=topics), 7)
        bad = [topic for topic in answer.topics if topic.partitions[0].error_code]
        assert not bad, f"{len(bad)} of {len(some)} partitions do not answer: {bad[:3]}"

    @staticmethod
    def _check_writes(wire: Wire, topic: Any) -> None:
        record = bytes(build_batch([Record(0, int(time.time() * 1000), b"key", b"still here")]))
        data = [PartitionProduceData(index=part.partition_index, records=record) for part in topic.partitions[:100]]
        topics = [TopicProduceData(name=topic.name, partition_data=data)]
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
        bad = [part for part in wire.call(request, 11).responses[0].partition_responses if part.error_code]
        assert not bad, f"{topic.name} rejects records: {bad[:3]}"

    def stop(self) -> None:
        """Stop the broker and remove its data."""
        self.release()
        if self.server.process.popen.poll() is None:
            self.server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def create(wire: Wire, names: list[str], partitions: int, **configs: str) -> None:
    """Create many topics and wait for the last one."""
    entries = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    for wave in waves(len(names), max(1, 2000 // partitions)):
        topics = [
            CreatableTopic(name=names[number], num_partitions=partitions, replication_factor=1, configs=entries)
            for number in wave
        ]
        answer = wire.call(CreateTopicsRequest(topics=topics, timeout_ms=60_000))
        assert not any(topic.error_code for topic in answer.topics), answer.topics[0]
    if not names:
        return
    last = MetadataRequest(topics=[MetadataRequestTopic(name=names[-1])])
    until(lambda: wire.call(last, 12).topics[0].error_code, lambda code: not code, f"{names[-1]} exists")


# -- memory --------------------------------------------------------------------------------------------------------


class Memory:
    """Sample the anonymous memory of a process inside a `with` block."""

    def __init__(self, pid: int) -> None:
        self._path = Path(f"/proc/{pid}/status")
        self.before = self.peak = self.after = memory(pid)
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    def settle(self) -> None:
        """Record the memory that the broker holds after the attack."""
        self.after = memory(self._pid)

    def _sample(self) -> None:
        while not self._done.wait(_SAMPLE_S):
            with contextlib.suppress(OSError):
                found = re.search(r"RssAnon:\s+(\d+) kB", self._path.read_text())
                self.peak = max(self.peak, int(found[1]) if found else 0)
                if self.peak > MOST_MB * KB:  # otherwise, the machine would run out of memory
                    os.kill(self._pid, signal.SIGKILL)
                    return

    @property
    def grown_mb(self) -> float:
        """Return by how many MB the memory grew from the beginning to the end."""
        return (self.after - self.before) / KB

    @property
    def peak_mb(self) -> float:
        """Return by how many MB the memory grew at its peak."""
        return (self.peak - self.before) / KB


# -- the other client ----------------------------------------------------------------------------------------------


class Probe:
    """Run another client in its own process, and record its longest wait."""

    def __init__(self, waits: Iterator[None]) -> None:
        """Each step of `waits` is one wait. It runs in the other process, and ends with OSError if it is cut off."""
        context = multiprocessing.get_context("fork")
        self._longest = context.Value("d", 0.0)
        self._asked = context.Value("l", 0)
        self._since = context.Value("d", 0.0)
        arguments = (waits, self._longest, self._asked, self._since)
        self._process = context.Process(target=_probe, args=arguments, daemon=True)
        self._process.start()
        self.reset()

    def reset(self) -> None:
        """Wait until the probe runs, then reset its waits."""
        before = self._asked.value
        until(lambda: self._asked.value, lambda asked: asked > before + 10, "the probe runs")
        self._longest.value = 0.0

    def settle(self) -> None:
        """Wait until the broker has answered the probe again."""
        before = self._asked.value
        end = time.monotonic() + PATIENCE_S
        while self._asked.value <= before + 2:
            assert self._process.is_alive(), "the probe's connection was closed"
            assert time.monotonic() < end, "the broker does not answer the probe"
            time.sleep(_SAMPLE_S)

    @property
    def longest_ms(self) -> float:
        """Return the longest wait since `reset`, including a wait in progress."""
        since = self._since.value
        return 1000 * max(self._longest.value, time.perf_counter() - since if since else 0.0)

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()


def _probe(waits: Iterator[None], longest: Any, asked: Any, since: Any) -> None:
    with contextlib.suppress(PermissionError):
        os.nice(-5)
    while True:
        since.value = started = time.perf_counter()
        try:
            next(waits)
        except OSError:  # the result of the attack reports it
            return
        longest.value = max(longest.value, time.perf_counter() - started)
        since.value = 0.0
        asked.value += 1
        time.sleep(_PROBE_PAUSE_S)


def alternating(target: Target) -> Iterator[None]:
    """Alternate ApiVersions and Produce on one connection."""
    versions = frame(ApiVersionsRequest(client_software_name="probe", client_software_version="1"), 3)
    data = [PartitionProduceData(index=0, records=bytes(batch([b"probe"])))]
    produce = frame(
        ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=PROBED, partition_data=data)]), 11
    )
    sock = target.connect()
    for request in itertools.cycle((versions, produce)):
        sock.sendall(request)
        (size,) = struct.unpack(">i", _exactly(sock, 4))
        _exactly(sock, size)
        yield


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        got = sock.recv(size - len(data))
        if not got:
            raise ConnectionError("the broker closed the probe's connection")
        data += got
    return data


def host_and_port(bootstrap: str) -> tuple[str, int]:
    """Return the parts of an address."""
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


# -- requests ------------------------------------------------------------------------------------------------------


def send_raw(target: Target, payload: bytes, *, receive_buffer: int = 0) -> socket.socket:
    """Open a connection, send these bytes, and keep it open."""
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(PATIENCE_S)
    sock.connect(host_and_port(target.bootstrap))
    target.hold(sock)
    sock.sendall(payload)
    return sock


def answer_size(sock: socket.socket) -> int:
    """Read and discard one response. Return its length, or 0 if the broker closed the connection."""
    try:
        head = _exactly(sock, 4)
    except ConnectionError:
        return 0
    (size,) = struct.unpack(">i", head)
    left = size
    while left:
        got = len(sock.recv(min(left, MB)))
        if not got:
            return 0
        left -= got
    return int(size)


def ask(target: Target, request: Message, version: int) -> Any:
    """Send one request on a connection of its own, which stays open, and return the response."""
    wire: Wire = target.hold(target.wire())
    return wire.call(request, version)


def check(answer: Message, items: str, count: int, code: int = 0) -> None:
    """Check how many items a response has, and the error code of each. `items`: names of arrays, joined by dots."""
    found: list[Any] = [answer]
    for name in items.split("."):
        found = [item for outer in found for item in getattr(outer, name)]
    codes = Counter(getattr(item, "partition_error_code", getattr(item, "error_code", 0)) for item in found)
    wanted = {code: count}
    assert codes == wanted, f"{type(answer).__name__}: error codes of {items} are {dict(codes)} instead of {wanted}"


def waves(count: int, width: int) -> Iterator[range]:
    """Yield the numbers up to `count` in ranges of `width`."""
    for first in range(0, count, width):
        yield range(first, min(first + width, count))
