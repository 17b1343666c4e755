"""Transactions whose coordinator, partitions and group are on different brokers."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from oncelog.broker.peers import Purpose
from oncelog.cluster import topic_nodes
from oncelog.cluster.changes import ChangeLog
from oncelog.coordinator.partitioning import partition_for
from oncelog.net.connection import connect
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from oncelog.sim.world import PORT
from support.peer_world import PARTITIONS, PeerWorld, RoutedWriter, with_brokers
from support.raw_client import RefusedError

E = ErrorCode


async def begin(peers: PeerWorld, leaders: list[int], name: str = "out", coordinator: int = 1) -> tuple[Any, UUID]:
    """Create a topic, and start a writer."""
    topic = await peers.create(name, leaders)
    writer = RoutedWriter(peers, peers.id_on(TRANSACTION_STATE, coordinator))
    writer.topics[topic] = name
    await writer.start()
    return writer, topic


async def write(peers: PeerWorld, writer: RoutedWriter, topic: UUID, partition: int, value: bytes = b"x") -> None:
    await writer.write(topic, partition, [value], peers.world.now_ms())


async def until(writer: RoutedWriter, state: str, seconds: int = 100) -> None:
    for _ in range(10 * seconds):
        if await writer.state() == state:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"the transaction is {await writer.state()}, not {state}")


# -- markers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_each_broker_gets_its_markers(commit: bool) -> None:
    async def scenario(peers: PeerWorld) -> None:
        writer, topic = await begin(peers, [1, 2, 3])
        group = peers.id_on(CONSUMER_OFFSETS, 3)
        for number in range(3):
            for partition in range(3):
                await write(peers, writer, topic, partition, b"%d" % number)
            await writer.commit_offset(group, "out", number)
            await writer.end(commit=commit)
        await until(writer, "CompleteCommit" if commit else "CompleteAbort")
        for partition in range(3):
            assert await writer.read_committed(topic, partition) == ([b"0", b"1", b"2"] if commit else [])
        assert await writer.committed_offset(group, "out") == (2 if commit else -1)

    with_brokers(scenario, 3)


def test_marker_is_sent_again_until_the_broker_answers() -> None:
    async def scenario(peers: PeerWorld) -> None:
        writer, topic = await begin(peers, [1, 2])
        await write(peers, writer, topic, 0)
        await write(peers, writer, topic, 1)
        peers.world.network.cut("broker-1", "broker-2")
        await writer.end(commit=True)
        await asyncio.sleep(100)
        assert await writer.state() == "PrepareCommit"
        assert await writer.read_committed(topic, 0) == [b"x"]
        peers.world.network.heal()
        await until(writer, "CompleteCommit")
        assert await writer.read_committed(topic, 1) == [b"x"]

    with_brokers(scenario)


def test_marker_with_unknown_outcome_is_sent_again_and_changes_nothing() -> None:
    """The broker writes the marker, but its answers are lost. Each further marker leaves the state as it is."""

    async def scenario(peers: PeerWorld) -> None:
        writer, topic = await begin(peers, [2])
        await write(peers, writer, topic, 0, b"w")
        await writer.end(commit=True)
        await until(writer, "CompleteCommit")  # the brokers are connected
        await write(peers, writer, topic, 0)
        replica = peers.broker(2).partitions.get("out", 0)
        assert replica is not None
        peers.world.network.cut("broker-2", "broker-1", both_ways=False)
        await writer.end(commit=True)
        await asyncio.sleep(1)
        assert replica.log.log_end_offset == 4, "the second marker is written"
        assert await writer.state() == "PrepareCommit"
        peers.world.network.heal("broker-2", "broker-1")
        peers.world.network.reset("broker-1")
        await until(writer, "CompleteCommit")
        await write(peers, writer, topic, 0, b"y")
        await writer.end(commit=False)
        await until(writer, "CompleteAbort")
        assert await writer.read_committed(topic, 0) == [b"w", b"x"]

    with_brokers(scenario)


def test_late_marker_does_not_end_the_next_transaction() -> None:
    """Version 2 of transactions increments the epoch, so the partition knows to which transaction a marker belongs."""

    async def scenario(peers: PeerWorld) -> None:
        writer, topic = await begin(peers, [2])
        await write(peers, writer, topic, 0)
        await writer.end(commit=True)
        await until(writer, "CompleteCommit")
        marker = WritableTxnMarker(
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            transaction_result=True,
            coordinator_epoch=0,
            transaction_version=2,
            topics=[WritableTxnMarkerTopic(name="out", partition_indexes=[0])],
        )

        async def send_again() -> ErrorCode:
            response = await ask(peers, 2, WriteTxnMarkersRequest(markers=[marker]))
            return ErrorCode(response.markers[0].topics[0].partitions[0].error_code)

        assert await send_again() is E.NONE  # no transaction is open: the same marker again changes nothing
        await write(peers, writer, topic, 0, b"y")
        assert await send_again() is E.INVALID_PRODUCER_EPOCH
        await writer.end(commit=False)
        await until(writer, "CompleteAbort")
        assert await writer.read_committed(topic, 0) == [b"x"]

    with_brokers(scenario)


async def ask(peers: PeerWorld, broker: int, request: Any) -> Any:
    connection = await connect(f"broker-{broker}", PORT)
    try:
        return await connection.call(request)
    finally:
        connection.close()


def test_marker_waits_for_a_leader() -> None:
    """`marker_without_leader`: a transaction does not complete before each existing partition has its marker."""

    async def scenario(peers: PeerWorld) -> None:
        writer, topic = await begin(peers, [1, 2])
        await write(peers, writer, topic, 0)
        await write(peers, writer, topic, 1)
        peers.world.brokers[2].kill()
        await peers.expire(2)
        await asyncio.sleep(1)
        assert peers.leader("out", 1) == -1
        await writer.end(commit=True)
        await asyncio.sleep(500)
        assert await writer.state() == "PrepareCommit"
        await peers.restart(2)
        await until(writer, "CompleteCommit")
        assert await writer.read_committed(topic, 1) == [b"x"]

    with_brokers(scenario)


def test_partition_that_the_image_lacks_still_gets_its_marker() -> None:
    """`marker_without_leader`: a coordinator's image may be older than the partition. The tree decides."""

    async def scenario(peers: PeerWorld) -> None:
        writer, topic = await begin(peers, [1, 2])
        await write(peers, writer, topic, 0)
        await write(peers, writer, topic, 1)
        cache = peers.broker(1).metadata
        newest = cache.image
        cache.image = newest.with_topics({"out": None})
        await writer.end(commit=True)
        await asyncio.sleep(500)
        assert await writer.state() == "PrepareCommit"
        cache.image = newest
        await until(writer, "CompleteCommit")
        for partition in range(2):
            assert await writer.read_committed(topic, partition) == [b"x"]

    with_brokers(scenario)


def test_deleted_partition_needs_no_marker() -> None:
    async def scenario(peers: PeerWorld) -> None:
        writer, topic = await begin(peers, [1, 2])
        await write(peers, writer, topic, 0)
        await write(peers, writer, topic, 1)
        peers.world.network.cut("broker-1", "broker-2")
        await writer.end(commit=True)
        await asyncio.sleep(1)
        info = peers.broker(2).metadata.image.topic("out")
        assert info is not None
        topic_nodes.erase_topic(ChangeLog(peers.world.store), info)
        await until(writer, "CompleteCommit")

    with_brokers(scenario)


def test_marker_follows_the_partition_to_its_next_leader() -> None:
    async def scenario(peers: PeerWorld) -> None:
        writer, topic = await begin(peers, [2])
        await write(peers, writer, topic, 0)
        peers.world.network.cut("broker-1", "broker-2")
        await writer.end(commit=True)
        await asyncio.sleep(1)
        peers.write_leader("out", 0, 3)
        await peers.publish()
        await until(writer, "CompleteCommit")
        replica = peers.broker(3).partitions.get("out", 0)
        assert replica is not None
        assert replica.log.log_end_offset == 1

    with_brokers(scenario, 3)


def test_markers_of_many_transactions_share_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(peers: PeerWorld) -> None:
        await peers.create("out", [2])
        writers = []
        names = [name for name in map("w{}".format, range(200)) if peers.coordinator(TRANSACTION_STATE, name) == 1]
        for name in names[:40]:
            writer = RoutedWriter(peers, name)
            info = peers.broker(2).metadata.image.topic("out")
            assert info is not None
            writer.topics[info.topic_id] = "out"
            await writer.start()
            await write(peers, writer, info.topic_id, 0)
            writers.append(writer)
        sent: list[Purpose] = []
        broker = peers.broker(1).peers
        request = broker.request

        async def counted(broker: int, purpose: Purpose, *rest: Any) -> Any:
            sent.append(purpose)
            return await request(broker, purpose, *rest)

        monkeypatch.setattr(broker, "request", counted)
        peers.world.network.cut("broker-1", "broker-2")
        await asyncio.gather(*(writer.end(commit=True) for writer in writers))
        await asyncio.sleep(1)
        peers.world.network.heal()
        for writer in writers:
            await until(writer, "CompleteCommit")
        assert sent.count(Purpose.MARKERS) <= 3

    with_brokers(scenario)


# -- verification ------------------------------------------------------------------------------------------------------


def produce(writer: RoutedWriter, topic: UUID) -> ProduceRequest:
    batch = build_batch(
        [Record(0, 0, None, b"x")],
        producer_id=writer.producer_id,
        producer_epoch=writer.epoch,
        base_sequence=0,
        transactional=True,
    )
    data = TopicProduceData(topic_id=topic, name="out", partition_data=[PartitionProduceData(index=0, records=batch)])
    return ProduceRequest(transactional_id=writer.transactional_id, acks=-1, timeout_ms=1000, topic_data=[data])


def test_partition_outside_the_transaction_is_rejected() -> None:
    """Before version 12, the client adds the partition, and the leader only verifies it."""

    async def scenario(peers: PeerWorld) -> None:
        writer, topic = await begin(peers, [2])
        with pytest.raises(RefusedError) as caught:
            await writer.call(produce(writer, topic), lambda r: r.responses[0].partition_responses[0].error_code, 11)
        assert caught.value.code is E.TRANSACTION_ABORTABLE
        assert await writer.read_committed(topic, 0) == []

    with_brokers(scenario)


def test_fenced_producer_is_rejected() -> None:
    async def scenario(peers: PeerWorld) -> None:
        writer, topic = await begin(peers, [2])
        successor = RoutedWriter(peers, writer.transactional_id)
        await successor.start()
        with pytest.raises(RefusedError) as caught:
            await write(peers, writer, topic, 0)
        assert caught.value.code is E.INVALID_PRODUCER_EPOCH

    with_brokers(scenario)


def test_produce_is_retriable_while_the_coordinator_is_away() -> None:
    async def scenario(peers: PeerWorld) -> None:
        writer, topic = await begin(peers, [2])
        peers.world.brokers[1].kill()
        response = await ask(peers, 2, produce(writer, topic))
        assert response.responses[0].partition_responses[0].error_code == E.NOT_ENOUGH_REPLICAS
        await peers.expire(1)
        response = await ask(peers, 2, produce(writer, topic))
        assert response.responses[0].partition_responses[0].error_code == E.NOT_ENOUGH_REPLICAS
        await peers.restart(1)
        await write(peers, writer, topic, 0)
        await writer.end(commit=True)
        await until(writer, "CompleteCommit")
        assert await writer.read_committed(topic, 0) == [b"x"]

    with_brokers(scenario)


def test_many_verifications_share_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(peers: PeerWorld) -> None:
        topic = await peers.create("out", [2])
        names = [name for name in map("w{}".format, range(200)) if peers.coordinator(TRANSACTION_STATE, name) == 1]
        writers = [RoutedWriter(peers, name) for name in names[:40]]
        for writer in writers:
            writer.topics[topic] = "out"
            await writer.start()
        sent: list[Purpose] = []
        links = peers.broker(2).peers
        request = links.request

        async def counted(broker: int, purpose: Purpose, *rest: Any) -> Any:
            sent.append(purpose)
            return await request(broker, purpose, *rest)

        monkeypatch.setattr(links, "request", counted)
        peers.world.network.slow("broker-2", "broker-1", 0.5)
        await asyncio.gather(*(write(peers, writer, topic, 0) for writer in writers))
        peers.world.network.heal()
        assert sent.count(Purpose.TRANSACTIONS) < 20
        for writer in writers:
            await writer.end(commit=True)
            await until(writer, "CompleteCommit")
        assert await writers[0].read_committed(topic, 0) == 40 * [b"x"]

    with_brokers(scenario)


# -- coordinators ------------------------------------------------------------------------------------------------------


def test_coordinator_uses_the_epoch_of_its_term() -> None:
    """A marker of a former coordinator is fenced."""

    async def scenario(peers: PeerWorld) -> None:
        writer, topic = await begin(peers, [2])
        await write(peers, writer, topic, 0)
        peers.world.brokers[1].kill()
        await peers.expire(1)
        await asyncio.sleep(1)
        await peers.restart(1)
        await writer.end(commit=True)
        await until(writer, "CompleteCommit")
        marker = WritableTxnMarker(
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            transaction_result=True,
            coordinator_epoch=0,
            transaction_version=2,
            topics=[WritableTxnMarkerTopic(name="out", partition_indexes=[0])],
        )
        response = await ask(peers, 2, WriteTxnMarkersRequest(markers=[marker]))
        code = response.markers[0].topics[0].partitions[0].error_code
        assert code == E.TRANSACTION_COORDINATOR_FENCED

    with_brokers(scenario)


def test_requests_to_a_former_coordinator_are_rejected() -> None:
    async def scenario(peers: PeerWorld) -> None:
        writer, topic = await begin(peers, [2])
        await write(peers, writer, topic, 0)
        index = partition_for(writer.transactional_id, PARTITIONS)
        peers.write_leader(TRANSACTION_STATE, index, 2)
        await peers.publish()
        request = EndTxnRequest(
            transactional_id=writer.transactional_id,
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            committed=True,
        )
        assert (await ask(peers, 1, request)).error_code == E.NOT_COORDINATOR
        assert (await ask(peers, 2, request)).error_code == E.INVALID_PRODUCER_ID_MAPPING  # its log is empty

    with_brokers(scenario)


def test_lists_show_the_coordinators_of_one_broker() -> None:
    async def scenario(peers: PeerWorld) -> None:
        names = [peers.id_on(TRANSACTION_STATE, broker) for broker in peers.ids]
        for name in names:
            await RoutedWriter(peers, name).start()
        for broker, name in zip(peers.ids, names, strict=True):
            response = await ask(peers, broker, ListTransactionsRequest())
            assert [found.transactional_id for found in response.transaction_states] == [name]

    with_brokers(scenario, 3)


def test_producer_ids_of_all_brokers_differ() -> None:
    """The brokers need several blocks each, at the same time."""

    async def scenario(peers: PeerWorld) -> None:
        request = InitProducerIdRequest(transactional_id=None)
        connections = [await connect(f"broker-{broker}", PORT) for broker in peers.ids]
        answers = await asyncio.gather(*(each.send(request) for _ in range(1500) for each in connections))
        found = [answer.producer_id for answer in answers if answer.error_code == E.NONE]
        assert len(set(found)) == len(found) == 4500
        assert max(found) < 10_000
        for each in connections:
            each.close()

    with_brokers(scenario, 3)


# -- brokers that die --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_transaction_ends_after_a_broker_was_killed(victim: int) -> None:
    """Broker 1 coordinates the transaction, broker 2 has the partition, and broker 3 coordinates the group."""

    async def scenario(peers: PeerWorld) -> None:
        writer, topic = await begin(peers, [2])
        group = peers.id_on(CONSUMER_OFFSETS, 3)
        for number, commit in enumerate((True, False, True)):
            await write(peers, writer, topic, 0, b"%d" % number)
            await writer.commit_offset(group, "out", number)
            peers.world.brokers[victim].kill()
            await peers.expire(victim)
            ending = asyncio.ensure_future(writer.end(commit=commit))
            await asyncio.sleep(3)
            await peers.restart(victim)
            await ending
        await until(writer, "CompleteCommit")
        assert await writer.read_committed(topic, 0) == [b"0", b"2"]
        assert await writer.committed_offset(group, "out") == 2

    with_brokers(scenario, 3)
