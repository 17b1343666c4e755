"""The broker under attack: what it holds in memory, and how long another client waits for it meanwhile."""

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
"""How long an attacker waits for one answer."""
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
    """A broker, and the connections of the attack in progress."""

    def __init__(
        self,
        folder: Path,
        *,
        large: bool = False,
        settings: Mapping[str, str] | None = None,
        template: Path | None = None,
    ) -> None:
        """`large`: with `TOPICS` topics of `TOPIC_PARTITIONS` partitions each.

        They take long to create. If `template` exists, it has the data of such a broker, else it gets them.
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
        self.server = OncelogCluster(folder, settings={**SETTINGS, **(settings or {})})
        self._held: list[socket.socket | Wire] = []
        self.names = [f"topic-{number:04}" for number in range(TOPICS)] if large else []
        with self.wire() as wire:
            if not (large and template is not None):
                wire.create_topic(PROBED)
                create(wire, self.names, TOPIC_PARTITIONS)
            wire.leaders_serve(PROBED)
            wire.find_coordinator("a group", 0)
            wire.find_coordinator("a transaction", 1)

    @property
    def bootstrap(self) -> str:
        """The broker's address."""
        return self.server.bootstrap

    @property
    def pid(self) -> int:
        """The broker's process id."""
        return self.server.broker_pid()

    def wire(self) -> Wire:
        """Return a connection that waits long for its answers."""
        wire = Wire(self.bootstrap, "attacker")
        wire._socket.settimeout(PATIENCE_S)
        return wire

    def hold(self, connection: Any) -> Any:
        """Keep a connection open until the memory has been measured."""
        self._held.append(connection)
        return connection

    def release(self) -> None:
        """Close the held connections."""
        while self._held:
            self._held.pop().close()

    def stalls(self) -> list[str]:
        """Return what the broker has logged as a stall so far."""
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
        assert not bad, f"{len(bad)} of {len(some)} partitions do not serve: {bad[:3]}"

    @staticmethod
    def _check_writes(wire: Wire, topic: Any) -> None:
        record = bytes(build_batch([Record(0, int(time.time() * 1000), b"key", b"still here")]))
        data = [PartitionProduceData(index=part.partition_index, records=record) for part in topic.partitions[:100]]
        topics = [TopicProduceData(name=topic.name, partition_data=data)]
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
        bad = [part for part in wire.call(request, 11).responses[0].partition_responses if part.error_code]
        assert not bad, f"{topic.name} refuses records: {bad[:3]}"

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
    """Samples the anonymous memory of a process while it is entered."""

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
        """Note the memory that the broker holds now."""
        self.after = memory(self._pid)

    def _sample(self) -> None:
        while not self._done.wait(_SAMPLE_S):
            with contextlib.suppress(OSError):
                found = re.search(r"RssAnon:\s+(\d+) kB", self._path.read_text())
                self.peak = max(self.peak, int(found[1]) if found else 0)
                if self.peak > MOST_MB * KB:  # it would take the machine along
                    os.kill(self._pid, signal.SIGKILL)
                    return

    @property
    def grown_mb(self) -> float:
        """MB that the broker held at the end beyond those at the beginning."""
        return (self.after - self.before) / KB

    @property
    def peak_mb(self) -> float:
        """MB beyond those at the beginning at the worst moment."""
        return (self.peak - self.before) / KB


# -- the other client ----------------------------------------------------------------------------------------------


class Probe:
    """Another client in a process of its own: alternates ApiVersions and Produce, and keeps the longest wait."""

    def __init__(self, bootstrap: str) -> None:
        context = multiprocessing.get_context("fork")
        self._longest = context.Value("d", 0.0)
        self._asked = context.Value("l", 0)
        self._since = context.Value("d", 0.0)
        arguments = (bootstrap, self._longest, self._asked, self._since)
        self._process = context.Process(target=_probe, args=arguments, daemon=True)
        self._process.start()
        self.reset()

    def reset(self) -> None:
        """Forget the waits so far, once the probe runs."""
        before = self._asked.value
        until(lambda: self._asked.value, lambda asked: asked > before + 10, "the probe runs")
        self._longest.value = 0.0

    def settle(self) -> None:
        """Return when the probe has been answered again."""
        before = self._asked.value
        end = time.monotonic() + PATIENCE_S
        while self._asked.value <= before + 2:
            assert self._process.is_alive(), "the probe's connection was closed"
            assert time.monotonic() < end, "the broker does not answer the probe"
            time.sleep(_SAMPLE_S)

    @property
    def longest_ms(self) -> float:
        """The longest wait since `reset`, with the one that has not ended."""
        since = self._since.value
        return 1000 * max(self._longest.value, time.perf_counter() - since if since else 0.0)

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()


def _probe(bootstrap: str, longest: Any, asked: Any, since: Any) -> None:
    with contextlib.suppress(PermissionError):
        os.nice(-5)
    versions = frame(ApiVersionsRequest(client_software_name="probe", client_software_version="1"), 3)
    data = [PartitionProduceData(index=0, records=bytes(batch([b"probe"])))]
    produce = frame(
        ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=PROBED, partition_data=data)]), 11
    )
    sock = socket.create_connection(_address(bootstrap), timeout=PATIENCE_S)
    for request in itertools.cycle((versions, produce)):
        since.value = started = time.perf_counter()
        try:
            sock.sendall(request)
            (size,) = struct.unpack(">i", _exactly(sock, 4))
            _exactly(sock, size)
        except OSError:  # the attack's result says it
            return
        longest.value = max(longest.value, time.perf_counter() - started)
        since.value = 0.0
        asked.value += 1
        time.sleep(_PROBE_PAUSE_S)


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        got = sock.recv(size - len(data))
        if not got:
            raise ConnectionError("the broker closed the probe's connection")
        data += got
    return data


def _address(bootstrap: str) -> tuple[str, int]:
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


# -- requests ------------------------------------------------------------------------------------------------------


def send_raw(target: Target, payload: bytes, *, receive_buffer: int = 0) -> socket.socket:
    """Open a connection that has sent these bytes, and hold it."""
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(PATIENCE_S)
    sock.connect(_address(target.bootstrap))
    target.hold(sock)
    sock.sendall(payload)
    return sock


def answer_size(sock: socket.socket) -> int:
    """Read one answer of any size and drop it; return its length, or 0 if the broker hung up."""
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


def ask(target: Target, request: Message, version: int) -> int:
    """Send one request on a connection of its own, and return the length of its answer."""
    return answer_size(send_raw(target, frame(request, version)))


def waves(count: int, width: int) -> Iterator[range]:
    """Yield the numbers up to `count` in ranges of `width`."""
    for first in range(0, count, width):
        yield range(first, min(first + width, count))
