"""Misbehaving clients of the soak: rejected records, slow readers, half frames, floods of connections.

    soak_mischief.py BOOTSTRAP SEED

Runs until it is killed. Each line on stdout is the number of actions so far and the last action. Between two actions,
it keeps no connection open, so that these connections do not hide a leak of the broker.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.headers import RequestHeader, encode_request_header
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.schema import Message
from support.wire import Wire

TOPIC = "soak-mischief"
MB = 1 << 20
TLS_HELLO = bytes.fromhex("16030100f8010000f40303")


def frame(request: Message, version: int) -> bytes:
    """Return an encoded request with its length."""
    body = encode_request_header(RequestHeader(request.API_KEY, version, 1, "mischief")) + request.encode(version)
    return struct.pack(">i", len(body)) + body


@contextlib.contextmanager
def connections(bootstrap: str, count: int, receive_buffer: int = 0) -> Iterator[list[socket.socket]]:
    """Open `count` connections, and close them."""
    host, _, port = bootstrap.rpartition(":")
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.settimeout(10)
            if receive_buffer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            sock.connect((host, int(port)))
            made.append(sock)
        yield made


def send(sockets: list[socket.socket], data: bytes) -> None:
    """Write to each connection. The broker may have closed it."""
    for sock in sockets:
        with contextlib.suppress(OSError):
            sock.sendall(data)


class Mischief:
    """Perform one action after the other."""

    def __init__(self, bootstrap: str, seed: str) -> None:
        self.bootstrap, self.chance = bootstrap, random.Random(f"{seed} mischief")
        with Wire(bootstrap) as wire:
            self.topic_id = wire.create_topic(TOPIC)
            for _ in range(8):  # the records that slow readers request
                wire.produce(TOPIC, build_batch([Record(0, 1, None, self.chance.randbytes(900_000))]))
        self.deeds: dict[str, Callable[[], None]] = {
            "refused records": self.refused_records,
            "slow readers": self.slow_readers,
            "half frames": self.half_frames,
            "flood of connections": self.flood,
        }

    def refused_records(self) -> None:
        """Send records that are too large, damaged, or for a missing topic. The broker answers each with an error."""
        damaged = build_batch([Record(0, 1, None, bytes(50_000))])
        damaged[-1] ^= 1
        large = build_batch([Record(0, 1, None, bytes(2 * MB))])
        with Wire(self.bootstrap) as wire:
            for _ in range(self.chance.randrange(5, 40)):
                topic, batch, code = self.chance.choice(
                    (
                        (TOPIC, large, ErrorCode.MESSAGE_TOO_LARGE),
                        (TOPIC, damaged, ErrorCode.CORRUPT_MESSAGE),
                        ("soak-nowhere", damaged, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                    )
                )
                answer = wire.produce(topic, batch)
                if answer.error_code != code:
                    raise AssertionError(f"{code.name} expected, not {answer!r:.300}")

    def slow_readers(self) -> None:
        """Request megabytes, and read nothing."""
        wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=8 * MB)
        topics = [FetchTopic(topic_id=self.topic_id, partitions=[wanted])]
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=8 * MB, topics=topics)
        with connections(self.bootstrap, 20, receive_buffer=4096) as sockets:
            send(sockets, frame(request, 16))
            time.sleep(self.chance.uniform(1, 5))

    def half_frames(self) -> None:
        """Begin a request and never complete it, or write bytes that are no request."""
        halves = (struct.pack(">i", MB) + bytes(self.chance.randrange(200_000)), TLS_HELLO, b"GET / HTTP/1.1\r\n\r\n")
        with connections(self.bootstrap, 20) as sockets:
            send(sockets, self.chance.choice(halves))
            time.sleep(self.chance.uniform(1, 5))

    def flood(self) -> None:
        """Open hundreds of connections at once; half of them send a request."""
        with connections(self.bootstrap, self.chance.randrange(50, 300)) as sockets:
            send(sockets[::2], frame(ApiVersionsRequest(client_software_name="m", client_software_version="1"), 3))

    def run(self) -> None:
        """Run until killed."""
        done = 0
        while True:
            name = self.chance.choice(tuple(self.deeds))
            self.deeds[name]()
            done += 1
            print(done, name, flush=True)
            time.sleep(self.chance.uniform(1, 4))


if __name__ == "__main__":
    Mischief(sys.argv[1], sys.argv[2]).run()
