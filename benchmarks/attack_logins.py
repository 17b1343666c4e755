"""Attack a secured broker: handshakes, logins, requests before the login, and requests that are denied."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import struct
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from attack_target import KB, MB, Target, check, waves
from connections import frame
from secured_target import ITERATED, MECHANISMS, SecuredTarget, at_once, dropped

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.schema import Message
from support.attacker import ASK, Attacker, choose, codes, encoded, framed, plain, say
from support.wire import batch, frame_from

HALF_OPEN = 10_000
OWN_FILES = 1000
"""Descriptors that attacker and broker need for other purposes."""
LARGEST_TOKEN = 524_000
"""Bytes of a message of SASL whose request has almost the largest size before the login."""
FAILED = int(ErrorCode.SASL_AUTHENTICATION_FAILED)

Run = Callable[[Target], None]


def on_secured(run: Callable[[SecuredTarget], None]) -> Run:
    """Return an attack that checks that its target is secured."""

    def checked(target: Target) -> None:
        assert isinstance(target, SecuredTarget)
        run(target)

    return checked


# -- handshakes --------------------------------------------------------------------------------------------------------


def _write(sock: socket.socket, data: bytes) -> None:
    """Write bytes. The broker may have closed the connection."""
    with contextlib.suppress(ConnectionError):
        sock.sendall(data)


@on_secured
def handshake_flood(target: SecuredTarget) -> None:
    """Begin handshakes, and drop them. Half of the clients wait for the broker's first message."""
    hello = target.hello()
    for wave in waves(5000, 250):
        begun = [target.begun() for _ in wave]
        for sock in begun:
            _write(sock, hello)
        for number, sock in enumerate(begun):
            if number % 2:
                with contextlib.suppress(ConnectionError):
                    sock.recv(KB)
            dropped(sock, reset=number % 4 == 0)


@on_secured
def handshake_bursts(target: SecuredTarget) -> None:
    """Connect as often as a listener has handshakes. Then send the first message on all connections at once."""
    hello = target.hello()
    for _ in range(30):
        begun = [target.begun() for _ in range(100)]
        with target.attacker():
            pass  # the broker has accepted the others
        for sock in begun:
            _write(sock, hello)
        for sock in begun:
            with contextlib.suppress(ConnectionError):
                sock.recv(KB)
            dropped(sock, reset=False)


@on_secured
def slow_handshakes(target: SecuredTarget) -> None:
    """Send the first message one byte at a time."""
    hello = target.hello()
    begun = [target.hold(target.begun()) for _ in range(300)]
    for position in range(len(hello)):
        for sock in begun:
            _write(sock, hello[position : position + 1])


@on_secured
def half_open(target: SecuredTarget) -> None:
    """Open connections, as many as the descriptors permit, and send nothing, or half of the first message."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count = min(HALF_OPEN, most - OWN_FILES)
    half = target.hello()[:100]
    for number in range(count):
        sock = target.hold(target.begun())
        if number % 2:
            _write(sock, half)
    print(f"    {count} connections, of a limit of {most} descriptors", flush=True)


@on_secured
def unfinished_logins(target: SecuredTarget) -> None:
    """Complete handshakes, choose a mechanism, and stop."""

    def begin(number: int) -> None:
        attacker = Attacker(target.bootstrap, target.tls)
        target.hold(attacker._socket)
        attacker.call(choose(tuple(MECHANISMS)[number % 2]), say("n,,n=nobody,r=nonce"))

    at_once(1000, begin)


# -- logins ------------------------------------------------------------------------------------------------------------


@on_secured
def wrong_scram(target: SecuredTarget) -> None:
    """Log in with a wrong proof, as a user with the most iterations, and as one that does not exist."""
    target.add_iterated()

    def log_in(number: int) -> None:
        mechanism = tuple(MECHANISMS)[number % 2]
        user = ITERATED if number % 4 < 2 else f"nobody-{number}"
        with target.attacker() as attacker:
            _, challenge = attacker.call(choose(mechanism), say(f"n,,n={user},r=nonce"))
            nonce = bytes(challenge.auth_bytes).decode().partition(",")[0]
            proof = b64encode(bytes(32 if number % 2 == 0 else 64)).decode()
            [done] = attacker.call(say(f"c=biws,{nonce},p={proof}"))
            assert codes([done]) == [FAILED], done

    at_once(3000, log_in)


@on_secured
def wrong_plain(target: SecuredTarget) -> None:
    def log_in(number: int) -> None:
        with target.attacker() as attacker:
            found = attacker.call(choose("PLAIN"), plain("admin" if number % 2 else f"nobody-{number}", "wrong"))
            assert codes(found) == [0, FAILED], found

    at_once(3000, log_in)


TOKENS = {
    "PLAIN": (b"\0admin\0" + b"x" * LARGEST_TOKEN, b"\0" * LARGEST_TOKEN, b"\xff" * LARGEST_TOKEN),
    "SCRAM-SHA-256": (
        b"n,,n=admin,r=" + b"x" * LARGEST_TOKEN,
        b"n,,n=" + b"=2C" * (LARGEST_TOKEN // 3) + b",r=x",
        b"," * LARGEST_TOKEN,
        b"n,,n=a,r=x" + b",x=y" * (LARGEST_TOKEN // 4),
    ),
}


@on_secured
def huge_tokens(target: SecuredTarget) -> None:
    """Send the largest messages that the broker reads before the login, and announce larger ones."""

    def log_in(number: int) -> None:
        mechanism = "PLAIN" if number % 2 else "SCRAM-SHA-256"
        token = TOKENS[mechanism][number // 2 % len(TOKENS[mechanism])]
        with target.attacker() as attacker:
            attacker.call(choose(mechanism), say(token))
        with target.attacker() as attacker:
            attacker.write(encoded(choose(mechanism)) + struct.pack(">i", 100 * MB) + token)
            attacker.rest()

    at_once(300, log_in)


@on_secured
def unfinished_tokens(target: SecuredTarget) -> None:
    """Send large messages of SASL without their last byte."""

    def begin(_: int) -> None:
        attacker = target.attacker()
        target.hold(attacker._socket)
        attacker.write(encoded(choose("PLAIN")) + framed(bytes(LARGEST_TOKEN))[:-1])
        attacker.answer(choose("PLAIN"))

    at_once(150, begin)


@on_secured
def early_requests(target: SecuredTarget) -> None:
    """Send requests before the login: small ones, and one of the largest size."""
    produce = _produce("probe", bytes(500 * KB))

    def ask(number: int) -> None:
        with target.attacker() as attacker:
            attacker.write(encoded((produce, 11) if number % 10 == 0 else ASK) * 3)
            assert attacker.rest() == b""

    at_once(2000, ask)


# -- a user who may do nothing -----------------------------------------------------------------------------------------


def _produce(topic: str, records: bytes) -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=records)]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)])


@on_secured
def denied_requests(target: SecuredTarget) -> None:
    """Send small requests in a pipeline, then a few with 10,000 topics each. All of them are denied."""
    records = bytes(batch([b"x"]))
    denied = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with target.stranger() as wire:
        for wave in waves(20_000, 100):
            requests = [_produce(f"denied-{number % 500}", records) for number in wave]
            for request in requests:
                wire.send(request, 11)
            for request in requests:
                check(wire.receive(request, 11), "responses.partition_responses", 1, denied)
        for turn in range(5):
            names = [f"denied-{turn}-{number}" for number in range(10_000)]
            asked: Message = MetadataRequest(
                topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
            )
            check(wire.call(asked, 12), "topics", len(names), denied)
            data = [PartitionProduceData(index=0, records=records)]
            topics = [TopicProduceData(name=name, partition_data=data) for name in names]
            asked = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)
            check(wire.call(asked, 11), "responses.partition_responses", len(names), denied)


# -- large responses over TLS ------------------------------------------------------------------------------------------


def write_large(target: Target) -> None:
    """Write 60 MB."""
    with target.wire() as wire:
        wire.create_topic("large")
        for _ in range(60):
            wire.produce("large", batch([bytes(MB - 4 * KB)]))


def _fetch(target: Target) -> bytes:
    with target.wire() as wire:
        topic = wire.call(MetadataRequest(topics=[MetadataRequestTopic(name="large")]), 12).topics[0].topic_id
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MB)
    topics = [FetchTopic(topic_id=topic, partitions=[wanted])]
    return frame(FetchRequest(max_wait_ms=0, max_bytes=50 * MB, session_epoch=-1, topics=topics), 16)


@on_secured
def encrypted_reads(target: SecuredTarget) -> None:
    """Read 50 MB at a time, from several clients."""
    request = _fetch(target)

    def read(_: int) -> None:
        with target.wire() as wire:
            for _ in range(2):
                wire._socket.sendall(request)
                found = frame_from(wire._socket)
                assert found is not None

    at_once(8, read)


@on_secured
def slow_encrypted_reads(target: SecuredTarget) -> None:
    request = _fetch(target)
    for _ in range(30):
        wire: Any = target.hold(target.wire())
        wire._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * KB)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            wire._socket.sendall(request)
