"""For any bytes, the broker answers with Kafka's error or closes the connection.

It logs a line, uses bounded memory, and keeps running.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncelog.broker.requests.apis import SERVED
from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.compression import Codec
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.headers import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
)
from oncelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import DEFAULT_DECOMPRESSED_LIMIT, Record, build_batch, build_control_batch, parse_header
from oncelog.protocol.schema import Message, UnsupportedVersionError
from support.servers import OncelogCluster
from support.wire import frame_from

TOPIC = "victim"
MAX_RSS_KB = 150_000
PRODUCE_VERSION = 9
"""The first flexible version. It names topics, not ids."""

BATCH_LENGTH, MAGIC, CRC, ATTRIBUTES, LAST_OFFSET_DELTA = 8, 16, 17, 21, 23
PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE, COUNT = 43, 51, 53, 57


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OncelogCluster]:
    settings = {"connections.max.idle.ms": "3000", "auto.create.topics.enable": "false"}
    cluster = OncelogCluster(tmp_path_factory.mktemp("victim"), settings=settings, arguments=("--topic", TOPIC))
    yield cluster
    assert cluster.stop() == 0, cluster.process.output()


@pytest.fixture(autouse=True)
def check_broker(victim: OncelogCluster) -> Iterator[None]:
    """After each test, check that the same process still serves and is small."""
    pid = victim.broker_pid()
    yield
    assert victim.broker_pid() == pid
    assert isinstance(ask(victim, ApiVersionsRequest(), 3), ApiVersionsResponse)
    assert memory_kb(victim, "VmRSS") < MAX_RSS_KB
    assert "Traceback" not in victim.process.stderr_path.read_text()


def memory_kb(cluster: OncelogCluster, field: str) -> int:
    """Return a memory figure of the broker's process: VmRSS (now) or VmHWM (maximum)."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{cluster.broker_pid()}/status").read_text())
    assert found is not None
    return int(found[1])


def open_socket(cluster: OncelogCluster) -> socket.socket:
    host, _, port = cluster.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def frame_of(request: Message, version: int, correlation_id: int = 7) -> bytes:
    header = encode_request_header(RequestHeader(request.API_KEY, version, correlation_id, "bad"))
    return header + request.encode(version)


def send_frame(sock: socket.socket, frame: bytes) -> None:
    sock.sendall(struct.pack(">i", len(frame)) + frame)


def read_frame(sock: socket.socket) -> bytes | None:
    """Return the next answer, or None if the broker closes the connection."""
    with contextlib.suppress(ConnectionResetError):
        return frame_from(sock)
    return None


def ask(cluster: OncelogCluster, request: Message, version: int) -> Message:
    with open_socket(cluster) as sock:
        send_frame(sock, frame_of(request, version))
        answer = read_frame(sock)
    assert answer is not None
    response = messages(ApiKey(request.API_KEY))[1]
    _, position = decode_response_header(memoryview(answer), request.API_KEY, version)
    found: Message = response.decode(memoryview(answer)[position:], version)
    return found


# -- frames -----------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(data=st.binary(min_size=1, max_size=400))
def test_any_bytes(victim: OncelogCluster, data: bytes) -> None:
    with open_socket(victim) as sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=200), key=st.sampled_from(sorted(SERVED)), version=st.integers(0, 20))
def test_any_body_for_any_api(victim: OncelogCluster, data: bytes, key: int, version: int) -> None:
    with open_socket(victim) as sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        send_frame(sock, struct.pack(">hhih", key, version, 7, -1) + data)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass


def harmless(key: int) -> Message:
    """Return a request of an API that does not affect other tests."""
    request: Message = messages(ApiKey(key))[0]()
    return request


def served_versions() -> list[tuple[int, int]]:
    return [
        (key, version)
        for key, served in SERVED.items()
        for version in range(served.min_version, served.max_version + 1)
    ]


@pytest.mark.parametrize(
    ("key", "version"), served_versions(), ids=[f"{ApiKey(key).name}-v{version}" for key, version in served_versions()]
)
def test_truncated_requests_of_every_api_and_version(victim: OncelogCluster, key: int, version: int) -> None:
    """The frame is complete, but its contents are truncated.

    The broker closes the connection, or answers if the rest is optional.
    """
    try:
        whole = frame_of(harmless(key), version)
    except UnsupportedVersionError:
        whole = encode_request_header(RequestHeader(key, version, 7, "bad"))
    for length in range(max(0, len(whole) - 12), len(whole)):
        with open_socket(victim) as sock:
            send_frame(sock, whole[:length])
            sock.shutdown(socket.SHUT_WR)
            answer = read_frame(sock)
            assert answer is None or answer[:4] == struct.pack(">i", 7)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_flipped_bits(victim: OncelogCluster, data: st.DataObject) -> None:
    """Valid requests with a few bytes changed after the header."""
    key = data.draw(
        st.sampled_from([ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.LIST_OFFSETS, ApiKey.JOIN_GROUP])
    )
    served = SERVED[key]
    version = data.draw(st.integers(served.min_version, served.max_version))
    request = produce(build_batch([Record(0, 1, b"k", b"v")])) if key == ApiKey.PRODUCE else harmless(key)
    if key == ApiKey.PRODUCE:
        version = min(version, 12)
    whole = bytearray(frame_of(request, version))
    for _ in range(data.draw(st.integers(1, 5))):
        whole[data.draw(st.integers(8, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with open_socket(victim) as sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        send_frame(sock, bytes(whole))
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass


def wait_for_line(victim: OncelogCluster, line: str) -> None:
    """Wait until the log has a line for a bad request, or counts such lines after many others."""

    def logged() -> bool:
        text = victim.process.stderr_path.read_text()
        return line in text or "bad requests: " in text

    victim.process.wait_for(logged, "a line in the log")


@pytest.mark.parametrize("length", [-1, -(2**31), 100 * 1024 * 1024 + 1, 2**31 - 1])
def test_impossible_lengths(victim: OncelogCluster, length: int) -> None:
    with open_socket(victim) as sock:
        sock.sendall(struct.pack(">i", length) + b"\0" * 100)
        assert read_frame(sock) is None

    wait_for_line(victim, f"the request has {length} bytes")


def test_large_lengths_without_the_bytes_allocate_no_memory(victim: OncelogCluster) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            sock = stack.enter_context(open_socket(victim))
            sock.sendall(struct.pack(">i", 100 * 1024 * 1024) + b"\0" * 3000)
        assert ask(victim, ApiVersionsRequest(), 3)


def test_large_counts_without_the_items_allocate_no_memory(victim: OncelogCluster) -> None:
    for count in (2**31 - 1, 50_000_000):
        with open_socket(victim) as sock:
            header = encode_request_header(RequestHeader(ApiKey.METADATA, 4, 7, "bad"))
            send_frame(sock, header + struct.pack(">i", count) + b"\0" * 50)
            assert read_frame(sock) is None


@pytest.mark.parametrize("key", [-1, 4, 999, 2**15 - 1])
def test_unknown_api(victim: OncelogCluster, key: int) -> None:
    with open_socket(victim) as sock:
        send_frame(sock, struct.pack(">hhih", key, 0, 7, -1))
        assert read_frame(sock) is None
    wait_for_line(victim, f"API key {key} is not supported")


@pytest.mark.parametrize("key", [key for key in SERVED if key != ApiKey.API_VERSIONS])
def test_unsupported_version(victim: OncelogCluster, key: int) -> None:
    for version in (-1, SERVED[key].max_version + 1):
        with open_socket(victim) as sock:
            send_frame(sock, struct.pack(">hhih", key, version, 7, -1) + b"\0")
            assert read_frame(sock) is None


def test_api_versions_above_ours_returns_our_versions(victim: OncelogCluster) -> None:
    with open_socket(victim) as sock:
        send_frame(sock, struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 7, -1) + b"\0")
        answer = read_frame(sock)
    assert answer is not None
    response = ApiVersionsResponse.decode(memoryview(answer)[4:], 0)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    mine = next(item for item in response.api_keys if item.api_key == ApiKey.API_VERSIONS)
    assert (mine.min_version, mine.max_version) == (0, SERVED[ApiKey.API_VERSIONS].max_version)


def test_slow_and_silent_clients_delay_no_other_and_are_closed(victim: OncelogCluster) -> None:
    whole = frame_of(MetadataRequest(topics=None), 4)
    with open_socket(victim) as silent, open_socket(victim) as half:
        half.sendall(struct.pack(">i", len(whole)) + whole[:5])
        assert ask(victim, ApiVersionsRequest(), 3)
        assert read_frame(silent) is None  # after connections.max.idle.ms
        assert read_frame(half) is None


def test_thousand_idle_connections(victim: OncelogCluster) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(open_socket(victim)).sendall(b"\0\0")
        assert ask(victim, MetadataRequest(topics=None), 4)


# -- batches ----------------------------------------------------------------------------------------------------------


def produce(batch: bytes | bytearray, topic: str = TOPIC) -> ProduceRequest:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=bytes(batch))])
    return ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data])


def code_of(victim: OncelogCluster, batch: bytes | bytearray, topic: str = TOPIC) -> ErrorCode:
    response = ask(victim, produce(batch, topic), PRODUCE_VERSION)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)  # type: ignore[attr-defined]


def good(**options: object) -> bytearray:
    return build_batch([Record(0, 1000, b"k", b"v"), Record(1, 1001, b"k2", b"v2")], **options)  # type: ignore[arg-type]


def patched(position: int, layout: str, value: int, *, fix_crc: bool = True, **options: object) -> bytearray:
    """Return a valid batch with one header field changed."""
    import crc32c

    batch = good(**options)
    struct.pack_into(layout, batch, position, value)
    if fix_crc:
        struct.pack_into(">I", batch, CRC, crc32c.crc32c(bytes(batch[ATTRIBUTES:])))
    return batch


def test_valid_batch_is_accepted(victim: OncelogCluster) -> None:
    assert code_of(victim, good()) == ErrorCode.NONE
    assert code_of(victim, patched(MAGIC, ">b", 2)) == ErrorCode.NONE


IDEMPOTENT = {"producer_id": 4000, "producer_epoch": 0, "base_sequence": 0}


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (patched(CRC, ">I", 1, fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
        (patched(len(good()) - 1, ">B", 99, fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
        (patched(COUNT, ">i", 3), ErrorCode.INVALID_RECORD),
        (patched(COUNT, ">i", 0), ErrorCode.INVALID_RECORD),
        (patched(COUNT, ">i", -5), ErrorCode.INVALID_RECORD),
        (patched(LAST_OFFSET_DELTA, ">i", 2**31 - 1), ErrorCode.INVALID_RECORD),
        (patched(ATTRIBUTES, ">h", 0x20), ErrorCode.INVALID_RECORD),
        (patched(ATTRIBUTES, ">h", 0x20, **IDEMPOTENT), ErrorCode.INVALID_RECORD),
        (patched(ATTRIBUTES, ">h", 0x10), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (patched(PRODUCER_EPOCH, ">h", -2, **IDEMPOTENT), ErrorCode.INVALID_RECORD),
        (patched(BASE_SEQUENCE, ">i", -7, **IDEMPOTENT), ErrorCode.INVALID_RECORD),
        (
            build_control_batch(True, producer_id=4000, producer_epoch=0, coordinator_epoch=0, timestamp=0),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        (good() + good(), ErrorCode.INVALID_RECORD),
    ],
)
def test_inconsistent_batches(victim: OncelogCluster, batch: bytearray, code: ErrorCode) -> None:
    assert code_of(victim, batch) == code


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        bytes(good())[:-1],
        bytes(good())[:30],
        bytes(patched(BATCH_LENGTH, ">i", 2**31 - 1)),
        bytes(patched(BATCH_LENGTH, ">i", -1)),
        bytes(patched(BATCH_LENGTH, ">i", 0)),
        bytes(patched(MAGIC, ">b", 3)),
        bytes(patched(MAGIC, ">b", 1)),
        bytes(patched(MAGIC, ">b", -1)),
        bytes(patched(ATTRIBUTES, ">h", 7)),
    ],
    ids=["nothing", "cut", "cut header", "long", "negative", "zero", "magic 3", "magic 1", "magic -1", "codec 7"],
)
def test_undecodable_batches(victim: OncelogCluster, batch: bytes) -> None:
    before = parse_header(good())
    assert before.magic == 2
    assert code_of(victim, batch) != ErrorCode.NONE


def test_batch_above_the_limit(victim: OncelogCluster) -> None:
    batch = build_batch([Record(0, 1000, None, b"x" * 1_100_000)])
    assert code_of(victim, batch) == ErrorCode.MESSAGE_TOO_LARGE


def test_decompression_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """For a compacted topic, the broker validates every record. 400 MB of zeros in a few kB must not be
    decompressed here.
    """
    cluster = OncelogCluster(tmp_path, settings={"log.cleanup.policy": "compact"}, arguments=("--topic", "compacted"))
    try:
        for codec in (Codec.GZIP, Codec.ZSTD):
            batch = build_batch([Record(0, 1000, b"k", b"\0" * 400_000_000)], codec=codec)
            assert len(batch) < 1_048_588
            assert code_of(cluster, batch, "compacted") == ErrorCode.CORRUPT_MESSAGE
        assert memory_kb(cluster, "VmHWM") < MAX_RSS_KB + 3 * DEFAULT_DECOMPRESSED_LIMIT // 1024
    finally:
        assert cluster.stop() == 0


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "x" * 250, "a\0b", "../../etc"])
def test_illegal_topic_names(victim: OncelogCluster, name: str) -> None:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    response = ask(victim, CreateTopicsRequest(topics=[topic]), 5)
    assert response.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION  # type: ignore[attr-defined]
    asked = ask(victim, MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 4)
    assert asked.topics[0].error_code in (  # type: ignore[attr-defined]
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
    assert code_of(victim, good(), name) != ErrorCode.NONE
