"""Kafka's protocol over one blocking socket, with requests and answers as plain messages.

Nothing is retried and no error is hidden, unless the name says so (`until`). Our client is not involved, so that tests
show the broker's behaviour. The same calls run against Apache Kafka.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from oncelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from oncelog.protocol.records import Record, build_batch, decode_control, decode_records, iter_batches
from oncelog.protocol.schema import Message

WAIT_S = 90.0
"""How long anything may take before a test fails, not how long it should take."""

LOADING = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Temporary errors: a coordinator or a topic that is starting, or a transaction that is ending."""

T = TypeVar("T")


class Session(NamedTuple):
    """A producer's id and epoch."""

    producer_id: int
    epoch: int


NO_SESSION = Session(-1, -1)
"""InitProducerId without a session to continue."""


def until(ask: Callable[[], T], good: Callable[[T], bool], what: str) -> T:
    """Repeat a request until the response is accepted, and return it."""
    end = time.monotonic() + WAIT_S
    while True:
        answer = ask()
        if good(answer):
            return answer
        assert time.monotonic() < end, f"{what}: still {answer!r:.500}"
        time.sleep(0.02)


def retried(ask: Callable[[], T], code: Callable[[T], int] = lambda answer: answer.error_code) -> T:  # type: ignore[attr-defined]
    """Repeat a request until the response has no temporary error."""
    return until(ask, lambda answer: code(answer) not in LOADING, "a retriable error")


def frame_from(sock: socket.socket) -> bytes | None:
    """Return the next request or response, without its size, or None if the connection is closed before its end."""
    head = _exactly(sock, 4)
    return None if head is None else _exactly(sock, struct.unpack(">i", head)[0])


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        got = sock.recv(size - len(data))
        if not got:
            return None
        data += got
    return bytes(data)


class Wire:
    """One connection."""

    def __init__(
        self,
        bootstrap: str,
        client_id: str = "wire",
        *,
        source: str = "",
        tls: ssl.SSLContext | None = None,
        login: tuple[str, str] | None = None,
    ) -> None:
        """`source` is the address to connect from. `login` has user and password for SASL/PLAIN."""
        host, port = bootstrap.rsplit(":", 1)
        own = (source, 0) if source else None
        self._socket = socket.create_connection((host, int(port)), timeout=WAIT_S, source_address=own)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self._client_id = client_id
        self._correlation_id = 0
        if login is not None:
            started = self.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            assert not started.error_code, started
            done = self.call(SaslAuthenticateRequest(auth_bytes="\0".join(("", *login)).encode()), 2)
            assert not done.error_code, done
        answer = self.call(ApiVersionsRequest(client_software_name="wire", client_software_version="1"), 3)
        self.versions = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
        self.features = {feature.name: feature.max_version_level for feature in answer.finalized_features}

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def call(self, request: Message, version: int | None = None) -> Any:
        """Return the response to one request, in the highest version that both support unless one is given."""
        version = self.send(request, version)
        return self.receive(request, version)

    def send(self, request: Message, version: int | None = None) -> int:
        """Write a request without waiting. Return the version used, for `receive`."""
        if version is None:
            low, high = self.versions[request.API_KEY]
            version = min(high, request.MAX_VERSION)
            assert version >= low, f"{request!r:.100}: served from {low} on"
        self._correlation_id += 1
        header = RequestHeader(request.API_KEY, version, self._correlation_id, self._client_id)
        payload = encode_request_header(header) + request.encode(version)
        self._socket.sendall(struct.pack(">i", len(payload)) + payload)
        return version

    def receive(self, request: Message, version: int) -> Any:
        """Return the next response on the connection, which must be that of `request`."""
        found = frame_from(self._socket)
        if found is None:
            raise ConnectionError("the broker closed the connection")
        frame = memoryview(found)
        _, pos = decode_response_header(frame, request.API_KEY, version)
        return messages(ApiKey(request.API_KEY))[1].decode(frame[pos:], version)

    # --- topics ---

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> UUID:
        """Create a topic (`_` replaces `.` in the names of its settings), wait for its leaders, and return its id."""
        entries = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=entries)
        answer = self.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics[0]
        assert not answer.error_code, answer

        def ready(response: Any) -> bool:
            found = response.topics[0]
            return not found.error_code and all(not each.error_code for each in found.partitions)

        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        topic_id: UUID = until(lambda: self.call(request, 12), ready, f"{name} has leaders").topics[0].topic_id
        self.leaders_serve(name, partitions)
        return topic_id

    def leaders_serve(self, name: str, partitions: int = 1) -> None:
        """Wait until the leaders serve. Metadata may name a leader before it serves, also after a start."""
        ends = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(partitions)]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=ends)])
        until(
            lambda: self.call(request, 7).topics[0].partitions,
            lambda found: not any(each.error_code for each in found),
            f"the leaders of {name} serve",
        )

    # --- records ---

    def produce(
        self,
        topic: str,
        batch: bytes | bytearray,
        *,
        partition: int = 0,
        transactional_id: str | None = None,
        version: int = 11,
        acks: int = -1,
        topic_id: UUID | None = None,
    ) -> Any:
        """Send one Produce. Return the partition's part of the response.

        Version 12 adds the partition to the transaction, version 11 does not. Version 13 needs the topic's id.
        """
        data = PartitionProduceData(index=partition, records=bytes(batch))
        where = {"topic_id": topic_id} if version >= 13 else {"name": topic}
        topics = [TopicProduceData(**where, partition_data=[data])]
        request = ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=10_000, topic_data=topics)
        return self.call(request, version).responses[0].partition_responses[0]

    def fetch(self, topic_id: UUID, partition: int = 0, offset: int = 0, *, committed: bool = False) -> Any:
        """Send one Fetch that does not wait. Return the partition's part of the response."""
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 24)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 24,
            isolation_level=int(committed),
            topics=[FetchTopic(topic_id=topic_id, partitions=[wanted])],
        )
        return self.call(request, 16).responses[0].partitions[0]

    def values(self, topic_id: UUID, partition: int = 0, *, committed: bool = False) -> list[bytes | None]:
        """Return all values of a partition from its start on, as a consumer of that isolation level must see them."""
        offset, values = 0, []
        while True:
            found = self.fetch(topic_id, partition, offset, committed=committed)
            if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and offset < found.log_start_offset:
                offset = found.log_start_offset
                continue
            assert not found.error_code, found
            start = offset
            values += visible(found, offset)
            for header, _ in iter_batches(found.records or b""):
                offset = header.next_offset
            if offset == start:
                return values

    def offset(self, topic: str, timestamp: int = -1, partition: int = 0, *, committed: bool = False) -> int:
        """Send ListOffsets: -1 for the end (the LSO if `committed`), -2 for the start, otherwise by time."""
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        topics = [ListOffsetsTopic(name=topic, partitions=[wanted])]
        answer = self.call(ListOffsetsRequest(replica_id=-1, isolation_level=int(committed), topics=topics), 7)
        found = answer.topics[0].partitions[0]
        assert not found.error_code, found
        offset: int = found.offset
        return offset

    # --- producers and transactions ---

    def find_coordinator(self, key: str, key_type: int = 1) -> Any:
        """Wait until the coordinator (0 of a group, 1 of a transaction) is available."""
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        return retried(lambda: self.call(request), lambda answer: answer.coordinators[0].error_code)

    def init_producer(
        self,
        transactional_id: str | None = None,
        *,
        timeout_ms: int = 60_000,
        session: Session = NO_SESSION,
        version: int | None = None,
        **fields: Any,
    ) -> Any:
        """Send InitProducerId, after FindCoordinator if it is transactional. Return the response, even an error."""
        if transactional_id is not None:
            self.find_coordinator(transactional_id)
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=session.producer_id,
            producer_epoch=session.epoch,
            **fields,
        )
        return retried(lambda: self.call(request, version))

    def session(self, transactional_id: str | None = None, *, timeout_ms: int = 60_000) -> Session:
        """Return a new producer's id and epoch."""
        answer = self.init_producer(transactional_id, timeout_ms=timeout_ms)
        assert not answer.error_code, answer
        return Session(answer.producer_id, answer.producer_epoch)

    def add_partitions(
        self, transactional_id: str, who: Session, topic: str, partitions: Sequence[int] = (0,)
    ) -> list[int]:
        """Send AddPartitionsToTxn as clients do (version 3). Return the error code of each partition."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=who.producer_id,
            v3_and_below_producer_epoch=who.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )

        def codes() -> list[int]:
            results = self.call(request, 3).results_by_topic_v3_and_below[0].results_by_partition
            return [result.partition_error_code for result in results]

        return until(codes, lambda found: not LOADING & set(found), "AddPartitionsToTxn")

    def add_offsets(self, transactional_id: str, who: Session, group: str) -> Any:
        """Send AddOffsetsToTxn."""
        request = AddOffsetsToTxnRequest(
            transactional_id=transactional_id, producer_id=who.producer_id, producer_epoch=who.epoch, group_id=group
        )
        return retried(lambda: self.call(request, 3))

    def end(self, transactional_id: str, who: Session, commit: bool = True, *, version: int = 3) -> Any:
        """Send EndTxn. From version 5 on (KIP-890), the response has the next epoch."""
        request = EndTxnRequest(
            transactional_id=transactional_id, producer_id=who.producer_id, producer_epoch=who.epoch, committed=commit
        )
        return retried(lambda: self.call(request, version))


def batch(
    values: Iterable[bytes],
    who: Session | None = None,
    sequence: int = 0,
    *,
    transactional: bool = False,
    timestamp: int | None = None,
    **options: Any,
) -> bytearray:
    """Return one record batch of these values. `options` are passed to `build_batch`."""
    now = int(time.time() * 1000) if timestamp is None else timestamp
    records = [Record(index, now, None, value) for index, value in enumerate(values)]
    if who is not None:
        options |= {"producer_id": who.producer_id, "producer_epoch": who.epoch, "base_sequence": sequence}
    return build_batch(records, transactional=transactional, **options)


def visible(found: Any, offset: int) -> list[bytes | None]:
    """Return the values in a partition's Fetch answer, without those of the aborted transactions that it names."""
    aborted = sorted((each.first_offset, each.producer_id) for each in found.aborted_transactions or ())
    values: list[bytes | None] = []
    dropped: set[int] = set()
    for header, view in iter_batches(found.records or b""):
        while aborted and aborted[0][0] <= header.last_offset:
            dropped.add(aborted.pop(0)[1])
        if header.is_control:
            if not decode_control(view)[0]:
                dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            values += [record.value for record in decode_records(view) if record.offset >= offset]
    return values


def code(name: str) -> int:
    """Return the number of Kafka's error of that name."""
    return int(ErrorCode[name])
