"""Measure the memory that connections cost the broker: idle ones, clients that do not read, and unfinished requests.

scripts/bench --connections [--count N] [--slow N]

The result is the broker's resident memory (RssAnon, which excludes the mapped pages of files) before and after, divided
by the number of connections.
"""

from __future__ import annotations

import argparse
import re
import resource
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from oncelog.protocol.headers import RequestHeader, encode_request_header
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.schema import Message
from support.servers import OncelogCluster
from support.wire import Wire, batch

KB = 1024
MB = KB * KB


def memory(pid: int) -> int:
    """Return the anonymous resident memory of a process in KB, once it no longer changes."""
    last = -1
    while True:
        found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert found
        if int(found[1]) == last:
            return last
        last = int(found[1])
        time.sleep(0.5)


def connect(bootstrap: str, *, receive_buffer: int = 0) -> socket.socket:
    """Return a connection that has sent nothing yet."""
    host, _, port = bootstrap.rpartition(":")
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.connect((host, int(port)))
    return sock


def frame(request: Message, version: int) -> bytes:
    """Return a request with its length."""
    body = encode_request_header(RequestHeader(request.API_KEY, version, 1, "bench")) + request.encode(version)
    return struct.pack(">i", len(body)) + body


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure the memory of the broker for each connection.")
    parser.add_argument("--count", type=int, default=10_000, help="idle connections")
    parser.add_argument("--slow", type=int, default=200, help="slow readers, slow writers")
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="oncelog-connections-") as folder:
        server = OncelogCluster(Path(folder))
        try:
            measure(server, arguments.count, arguments.slow)
        finally:
            server.stop()


def measure(server: OncelogCluster, idle: int, slow: int) -> None:
    """Print a line for each kind."""
    pid = server.broker_pid()
    wire = Wire(server.bootstrap)
    topic = wire.create_topic("big")
    for _ in range(8):
        wire.produce("big", batch([bytes(MB - 4 * KB)]))
    # Four batches, 4 MB: more than the socket's buffers can hold.
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=4 * MB)
    topics = [FetchTopic(topic_id=topic, partitions=[wanted])]
    request = frame(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=4 * MB, session_epoch=-1, topics=topics), 16)

    def line(kind: str, count: int, make: Callable[[], socket.socket]) -> None:
        before = memory(pid)
        sockets = [make() for _ in range(count)]
        wire.offset("big")  # the broker has read the requests before this one
        held = memory(pid) - before
        print(f"{count:>6} {kind}: {held / KB:8.1f} MB, {held / count:8.1f} KB each", flush=True)
        for sock in sockets:
            sock.close()
        wire.offset("big")

    def served() -> socket.socket:
        sock = connect(server.bootstrap)
        sock.sendall(frame(ApiVersionsRequest(client_software_name="bench", client_software_version="1"), 3))
        size = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))[0]
        assert len(sock.recv(size, socket.MSG_WAITALL)) == size
        return sock

    def reader() -> socket.socket:
        sock = connect(server.bootstrap, receive_buffer=8 * KB)
        sock.sendall(request * 3)
        return sock

    def writer(sent: int) -> Callable[[], socket.socket]:
        def make() -> socket.socket:
            sock = connect(server.bootstrap)
            sock.sendall(struct.pack(">i", 50 * MB) + bytes(sent - 4))
            return sock

        return make

    print(f"at the start: {memory(pid) / KB:.1f} MB")
    line("idle connections after a request", idle, served)
    line("clients that do not read 3 answers of 4 MB", slow, reader)
    line("clients that stop after 1 KB of a frame of 50 MB", slow, writer(KB))
    line("clients that stop after 10 KB", slow, writer(10 * KB))
    line("clients that stop after 200 KB", slow, writer(200 * KB))
    print(f"at the end: {memory(pid) / KB:.1f} MB")


if __name__ == "__main__":
    main()
