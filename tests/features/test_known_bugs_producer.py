"""Test known bugs of a producer and its partition. The names contain the tickets.

Other files test further bugs: KAFKA-5793 and 7298 in `test_produce_errors`, KAFKA-7190 and 9144 in
`test_producer_expiry`, aiokafka's negative sequences in `test_producer_bookkeeping` and `test_producer_append_checks`.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from oncelog import Producer, errors
from oncelog.broker.coordinators.producer_ids import BlockNode
from oncelog.cluster.store import OutcomeUnknownError
from oncelog.cluster.store_sqlite import SqliteStore
from oncelog.coordinator.producer_ids import BLOCK_PATH, acquire_block, encode_block, parse_block
from oncelog.protocol.compression import Codec
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import MAX_SEQUENCE
from support.logs import append, follow, new_log, of_producer
from support.proxy import PASS, Appended, Produced, Proxy
from support.servers import Server
from support.transactions import ended, producers, written
from support.wire import Wire, batch, code, until

OUT_OF_ORDER = code("OUT_OF_ORDER_SEQUENCE_NUMBER")
INVALID_EPOCH = code("INVALID_PRODUCER_EPOCH")
NOT_IN_TRANSACTION = {code("INVALID_TXN_STATE"), code("TRANSACTION_ABORTABLE")}


# -- a partition and its transactions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 2**31 - 2])
def test_kafka_14920_no_batch_overtakes_one_that_failed_its_check(wire: Wire, name: str, first: int) -> None:
    """Otherwise, the later batch would be the first in the partition, and the failed one a permanent gap."""
    topic = wire.create_topic(name)
    who = wire.session(name)

    def produce(sequence: int) -> int:
        data = batch([b"%d" % sequence], who, sequence, transactional=True)
        answer: int = wire.produce(name, data, transactional_id=name, version=11).error_code
        return answer

    assert produce(first) in NOT_IN_TRANSACTION, "the partition has not been added"
    assert wire.add_partitions(name, who, name) == [0]
    assert produce(first + 1) == OUT_OF_ORDER
    assert [produce(first), produce(first + 1)] == [0, 0]
    ended(wire, name, who)
    expected = [b"%d" % first, b"%d" % (first + 1)]
    until(lambda: wire.values(topic, committed=True), lambda found: found == expected, "the transaction is committed")


def test_kafka_14920_when_the_sequences_wrap(wire: Wire, server: Server, name: str) -> None:
    """DIFFERS: Kafka compares the numbers without the wrap.

    It treats 0 as earlier than 2^31-1 and accepts it, so the batch before it can never be written.
    """
    topic = wire.create_topic(name)
    who = wire.session(name)

    def produce(sequence: int) -> int:
        data = batch([b"%d" % sequence], who, sequence, transactional=True)
        answer: int = wire.produce(name, data, transactional_id=name, version=11).error_code
        return answer

    assert produce(MAX_SEQUENCE) in NOT_IN_TRANSACTION
    assert wire.add_partitions(name, who, name) == [0]
    if server.name == "oncelog":
        assert [produce(0), produce(MAX_SEQUENCE), produce(0)] == [OUT_OF_ORDER, 0, 0]
        assert wire.values(topic) == [b"%d" % MAX_SEQUENCE, b"0"]
    else:
        assert [produce(0), produce(MAX_SEQUENCE)] == [0, OUT_OF_ORDER]
    ended(wire, name, who)


@pytest.mark.parametrize("version", [11, 12])
def test_kafka_15653_concurrent_verification_with_every_codec(
    wire: Wire, server: Server, name: str, version: int
) -> None:
    topic = wire.create_topic(name, 3)
    values = [b"a" * 500, b"b" * 500]
    failures: list[BaseException] = []

    def one(codec: Codec, commit: bool) -> None:
        transactional_id = f"{name}-{codec.name}-{commit}"
        try:
            with Wire(server.bootstrap) as connection:
                who = connection.session(transactional_id)
                for turn in range(3):
                    if version < 12:
                        assert connection.add_partitions(transactional_id, who, name, [0, 1, 2]) == [0, 0, 0]
                    sequence = 0
                    for _ in range(2):
                        data = bytes(batch(values, who, sequence, transactional=True, codec=codec))
                        parts = [PartitionProduceData(index=index, records=data) for index in range(3)]
                        request = ProduceRequest(
                            transactional_id=transactional_id,
                            acks=-1,
                            timeout_ms=10_000,
                            topic_data=[TopicProduceData(name=name, partition_data=parts)],
                        )
                        until(
                            lambda request=request: {
                                each.error_code
                                for each in connection.call(request, version).responses[0].partition_responses
                            },
                            lambda found: found == {0},
                            f"{codec.name} in turn {turn} is taken",
                        )
                        sequence += len(values)
                    who = ended(connection, transactional_id, who, commit)
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            failures.append(error)

    writers = [threading.Thread(target=one, args=(codec, commit)) for codec in Codec for commit in (True, False)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    expected = 3 * 2 * len(values) * len(Codec)
    for partition in range(3):
        found = until(
            lambda partition=partition: wire.values(topic, partition, committed=True),
            lambda found: len(found) >= expected,
            "all commits are visible",
        )
        assert sorted(filter(None, found)) == sorted(values * (expected // 2))
        assert len(wire.values(topic, partition)) == 2 * expected


@pytest.mark.parametrize("version", [11, 12])
def test_kafka_19690_stalled_producer_gets_its_epoch_error_before_verification(
    wire: Wire, name: str, version: int
) -> None:
    wire.create_topic(name)
    old = wire.session(name)
    written(wire, name, old, name, [b"lost"])
    wire.session(name)  # aborts it, with a newer epoch
    until(
        lambda: producers(wire, name)[old.producer_id].producer_epoch,
        lambda epoch: epoch > old.epoch,
        "a marker is written",
    )
    for sequence in (0, 1, 5):
        late = batch([b"late"], old, sequence, transactional=True)
        assert wire.produce(name, late, transactional_id=name, version=version).error_code == INVALID_EPOCH


@pytest.mark.parametrize("commit", [True, False])
def test_kafka_14402_12671_late_write_does_not_leave_a_hanging_transaction(wire: Wire, name: str, commit: bool) -> None:
    """Before KIP-890, a late batch of the same epoch opened a transaction that was never ended: the LSO did not
    advance.
    """
    wire.create_topic(name, 2)
    who = wire.session(name)
    assert wire.add_partitions(name, who, name) == [0]
    assert not wire.produce(name, batch([b"a"], who, 0, transactional=True), transactional_id=name).error_code
    assert not wire.end(name, who, commit).error_code
    until(lambda: wire.offset(name, committed=True), lambda offset: offset == 2, "the transaction has ended")
    late = batch([b"late"], who, 1, transactional=True)
    assert wire.produce(name, late, transactional_id=name).error_code in NOT_IN_TRANSACTION
    assert wire.produce(name, late, partition=1, transactional_id=name).error_code in NOT_IN_TRANSACTION
    assert (wire.offset(name, committed=True), wire.offset(name)) == (2, 2)
    assert not wire.produce(name, batch([b"plain"])).error_code
    assert wire.offset(name, committed=True) == 3


def test_kafka_6003_follower_accepts_what_its_leader_accepted() -> None:
    """A replica without producer state, also after it becomes the leader: the sequences continue."""
    _, log = new_log()
    for number, sequence in enumerate((40, 41)):
        follow(log, of_producer(7, sequence, base_offset=100 + number))
    assert append(log, of_producer(7, 42)).first_offset == 102
    with pytest.raises(ProtocolError, match="gap") as caught:
        append(log, of_producer(7, 44))
    assert caught.value.code == OUT_OF_ORDER


# -- producer ids ------------------------------------------------------------------------------------------------------


def test_kafka_15552_brokers_of_one_store_never_share_a_block(tmp_path: Path) -> None:
    """The next store does not reuse them either, if it gets the last block of the previous one."""
    blocks = []

    def take(broker: int) -> None:
        tree = SqliteStore(str(tmp_path / "metadata.sqlite"))
        store = BlockNode(tree)
        blocks.extend(acquire_block(store, broker) for _ in range(10))
        tree.close()

    takers = [threading.Thread(target=take, args=(broker,)) for broker in range(3)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert sorted(block.start for block in blocks) == list(range(0, 30_000, 1_000))
    old = SqliteStore(str(tmp_path / "metadata.sqlite"))
    newest = old.get(BLOCK_PATH).data
    old.close()
    new = SqliteStore(str(tmp_path / "another.sqlite"))
    new.create(BLOCK_PATH, newest)
    assert acquire_block(BlockNode(new), 9).start == 30_000
    new.close()


def test_kafka_15552_unanswered_write_is_looked_up(tmp_path: Path) -> None:
    class Doubtful(SqliteStore):
        """Perform a write, and then raise as if its outcome were unknown."""

        def set(self, path: str, data: bytes, version: int = -1) -> int:
            super().set(path, data, version)
            raise OutcomeUnknownError("the answer was lost")

    tree = Doubtful(str(tmp_path / "metadata.sqlite"))
    first, second = (acquire_block(BlockNode(tree), 1) for _ in range(2))
    assert (first.start, second.start) == (0, 1_000)
    assert tree.get(BLOCK_PATH).data == encode_block(second)
    assert parse_block(encode_block(second)) == second
    tree.close()


# -- our client --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_kafka_13574_rejected_batch_may_be_in_the_log(
    wire: Wire, server: Server, proxy: Proxy, name: str, error: ErrorCode
) -> None:
    """The broker recognizes the retry. If no retry is possible, the error says that the record may be in the log."""
    topic = wire.create_topic(name)
    options: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 2, "retry_backoff_max_ms": 10}
    with Producer(server.bootstrap, None, **options) as producer:
        producer.send(name, b"a").result(30)
        proxy.rule = lambda request: Appended(error) if request.number == 1 else PASS
        assert producer.send(name, b"b").result(30).offset == 1
    options |= {"request_timeout_ms": 1_500, "delivery_timeout_ms": 1_500}
    # the delivery timeout ends during the pause
    options |= {"retry_backoff_ms": 10_000, "retry_backoff_max_ms": 10_000}
    with Producer(server.bootstrap, None, **options) as producer:
        producer.send(name, b"c").result(30)
        proxy.rule = lambda request: Appended(error)
        with pytest.raises(errors.DeliveryTimeoutError, match="may or may not be in the log"):
            producer.send(name, b"d").result(30)
        proxy.rule = lambda request: PASS
    assert wire.values(topic) == [b"a", b"b", b"c", b"d"]


def test_kafka_7298_older_broker_that_dropped_the_producers_state(
    wire: Wire, server: Server, proxy: Proxy, name: str
) -> None:
    """UNKNOWN_PRODUCER_ID, which brokers before 2.5 send: the producer sends everything again, in a new epoch if
    necessary.
    """
    topic = wire.create_topic(name)

    def rule(request: Produced) -> str | ErrorCode:
        return ErrorCode.UNKNOWN_PRODUCER_ID if request.number in (1, 2) else PASS

    proxy.rule = rule
    with Producer(server.bootstrap, None, linger_ms=0, retry_backoff_ms=2) as producer:
        assert [producer.send(name, value).result(30).offset for value in (b"a", b"b", b"c")] == [0, 1, 2]
    assert wire.values(topic) == [b"a", b"b", b"c"]


def test_duplicate_sequence_number_of_an_older_broker_is_a_success(
    wire: Wire, server: Server, proxy: Proxy, name: str
) -> None:
    """The record is in the log at an unknown offset."""
    topic = wire.create_topic(name)
    proxy.rule = lambda request: Appended(ErrorCode.DUPLICATE_SEQUENCE_NUMBER) if request.number == 1 else PASS
    with Producer(server.bootstrap, linger_ms=0) as producer:
        assert [producer.send(name, value).result(30).offset for value in (b"a", b"b", b"c")] == [0, -1, 2]
    assert wire.values(topic) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("error", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD])
def test_kafka_14920_failed_batch_leaves_no_gap_and_no_endless_loop(
    wire: Wire, server: Server, proxy: Proxy, name: str, error: ErrorCode
) -> None:
    """The batches after it that were in flight are renumbered and arrive, each once and in order."""
    topic = wire.create_topic(name)
    proxy.rule = lambda request: error if request.number == 1 else PASS
    options = {"linger_ms": 0, "batch_size": 1, "retry_backoff_ms": 2, "retry_backoff_max_ms": 10}
    with Producer(server.bootstrap, None, **options) as producer:
        producer.send(name, b"0").result(30)
        futures = [producer.send(name, b"%d" % number) for number in range(1, 9)]
        with pytest.raises(errors.RequestError):
            futures[0].result(30)
        assert [future.result(30).offset for future in futures[1:]] == list(range(1, 8))
        assert producer.producer_epoch == 1
    assert wire.values(topic) == [b"0"] + [b"%d" % number for number in range(2, 9)]
