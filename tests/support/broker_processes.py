"""Several broker processes on one tree, without a supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from oncelog.broker.process import Launch, Ready
from oncelog.cli.broker_process import start_broker
from oncelog.net.connection import connect
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from oncelog.protocol.schema import Message
from support.processes import wait_until


class BrokerProcesses:
    """The processes by broker id. A test kills, pauses and restarts them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = str(folder / "metadata.sqlite")
        self.ports: dict[int, int] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._links: dict[int, socket.socket] = {}

    def spawn(self, node_id: int, data: str = "", **settings: str) -> subprocess.Popen[bytes]:
        """Start a process, and return it."""
        ours, theirs = socket.socketpair()
        given = {
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.ports.get(node_id, 0)}",
            "log.dirs": str(self.folder / (data or f"data-{node_id}")),
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        launch = Launch(given, self.tree, supervisor_fd=theirs.fileno())
        stderr = subprocess.PIPE if data else None
        process = start_broker(launch, pass_fds=[theirs.fileno()], stderr=stderr)
        theirs.close()
        if not data:
            self._processes[node_id], self._links[node_id] = process, ours
        return process

    def start(self, node_id: int, **settings: str) -> None:
        """Start a broker, and wait until it is ready."""
        self.spawn(node_id, **settings)
        self.ports[node_id] = msgspec.json.decode(self._links[node_id].recv(65536), type=Ready).port

    def send(self, node_id: int, number: signal.Signals) -> None:
        """Send a signal to a broker."""
        os.kill(self._processes[node_id].pid, number)

    def kill(self, node_id: int) -> None:
        """Kill a broker as with `kill -9`."""
        self._links.pop(node_id).close()
        process = self._processes.pop(node_id)
        process.kill()
        process.wait()

    def stop(self, node_id: int) -> int:
        """Stop a broker cleanly, and return its exit status."""
        self._links.pop(node_id)
        process = self._processes.pop(node_id)
        process.terminate()
        return process.wait(60)

    def stop_together(self) -> None:
        """Stop all brokers cleanly at the same time, so that the in-sync replicas stay as they are."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        while self._processes:
            _, process = self._processes.popitem()
            assert process.wait(60) == 0

    def ask(self, node_id: int, request: Message) -> Any:
        """Return the response of a broker."""

        async def call() -> Any:
            connection = await connect("127.0.0.1", self.ports[node_id])
            try:
                return await connection.call(request)
            finally:
                connection.close()

        return asyncio.run(call())

    def metadata(self, node_id: int) -> MetadataResponse:
        """Return what a broker says about all topics."""
        response: MetadataResponse = self.ask(node_id, MetadataRequest(topics=None))
        return response

    def until(self, node_id: int, true: Callable[[MetadataResponse], object], limit_s: float = 60) -> None:
        """Ask a broker until its metadata is as expected. The limit is for a busy machine with a slow disk."""
        wait_until(lambda: true(self.metadata(node_id)), f"metadata of broker {node_id}", timeout=limit_s)


def running(metadata: MetadataResponse) -> list[int]:
    """Return the ids of the running brokers."""
    return [broker.node_id for broker in metadata.brokers]


def leaders(metadata: MetadataResponse) -> list[int]:
    """Return the leader of each partition."""
    return [partition.leader_id for topic in metadata.topics for partition in topic.partitions]


@contextlib.contextmanager
def broker_processes(folder: Path) -> Iterator[BrokerProcesses]:
    """Yield an empty set of processes, and kill those that are left."""
    processes = BrokerProcesses(folder)
    try:
        yield processes
    finally:
        for node_id in tuple(processes._processes):
            processes.kill(node_id)
