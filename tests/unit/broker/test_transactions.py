"""Transactions through a broker's server: the handlers, the marker sender, and available producer ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from oncelog.broker.coordinators.record_batches import EndMarker
from oncelog.cluster.features import Change
from oncelog.cluster.replica import Replica
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from oncelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from oncelog.sim.world import PORT
from support.raw_client import RawWriter, RefusedError
from support.transaction_fixtures import E, Setup, with_broker


def refuse_markers(setup: Setup, monkeypatch: pytest.MonkeyPatch, errors: list[ErrorCode]) -> list[tuple[str, int]]:
    """Reject the next markers, one for each error. Return the list of all attempts."""
    append = setup.broker.services.markers.append
    tried: list[tuple[str, int]] = []

    def refusing(topic: str, partition: int, marker: EndMarker) -> tuple[Replica, int]:
        tried.append((topic, partition))
        if errors:
            raise ProtocolError(errors.pop(0), "refused")
        return append(topic, partition, marker)

    monkeypatch.setattr(setup.broker.services.markers, "append", refusing)
    return tried


# -- markers -----------------------------------------------------------------------------------------------------------


def test_commit_writes_markers_to_the_partitions() -> None:
    async def scenario(setup: Setup) -> None:
        await setup.write(0)
        await setup.write(1)
        found = await setup.producers()
        assert [(p.producer_epoch, p.current_txn_start_offset) for p in found.active_producers] == [(0, 0)]
        await setup.writer.end(commit=True)
        assert (await setup.state()).transaction_state == "CompleteCommit"
        found = await setup.producers()
        assert [(p.producer_epoch, p.current_txn_start_offset) for p in found.active_producers] == [(1, -1)]
        assert await setup.writer.read_committed(setup.topic, 0) == [b"x"]
        assert await setup.writer.read_committed(setup.topic, 1) == [b"x"]

    with_broker(scenario)


def test_rejected_markers_are_retried(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(setup: Setup) -> None:
        await setup.write(0)
        await setup.write(1)
        tried = refuse_markers(
            setup, monkeypatch, [E.NOT_LEADER_OR_FOLLOWER, E.KAFKA_STORAGE_ERROR, E.UNKNOWN_TOPIC_OR_PARTITION]
        )
        await setup.writer.end(commit=True)
        await asyncio.sleep(0.010)
        assert (await setup.state()).transaction_state == "PrepareCommit"
        await asyncio.sleep(5)
        assert (await setup.state()).transaction_state == "CompleteCommit"
        assert tried == [("out", 0), ("out", 1), ("out", 0), ("out", 1), ("out", 0)]

    with_broker(scenario)
    assert caplog.text.count("cannot write the marker") == 2, "one for each partition"


def test_only_a_deleted_topic_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(setup: Setup) -> None:
        await setup.write()
        refuse_markers(setup, monkeypatch, [E.UNKNOWN_TOPIC_OR_PARTITION] * 1000)
        await setup.writer.end(commit=True)
        await asyncio.sleep(500)
        assert (await setup.state()).transaction_state == "PrepareCommit"
        topic = setup.broker.metadata.image.topic("out")
        assert topic is not None
        await setup.broker.topics.delete(topic)
        await asyncio.sleep(5)
        assert (await setup.state()).transaction_state == "CompleteCommit"

    with_broker(scenario)


def test_fenced_coordinator_leaves_the_rest_to_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(setup: Setup) -> None:
        await setup.write()
        tried = refuse_markers(setup, monkeypatch, [E.TRANSACTION_COORDINATOR_FENCED])
        await setup.writer.end(commit=True)
        await asyncio.sleep(500)
        assert (await setup.state()).transaction_state == "PrepareCommit"
        assert tried == [("out", 0)]
        setup.sim.kill()
        await setup.sim.start()
        await setup.writer.start()
        assert await setup.writer.read_committed(setup.topic, 0) == [b"x"]

    with_broker(scenario)


def test_partition_with_a_later_epoch_does_not_block_markers_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(setup: Setup) -> None:
        await setup.write(0)
        await setup.write(1)
        tried = refuse_markers(setup, monkeypatch, [E.INVALID_PRODUCER_EPOCH, E.KAFKA_STORAGE_ERROR])
        await setup.writer.end(commit=True)
        await asyncio.sleep(5)
        assert tried == [("out", 0), ("out", 1), ("out", 1)]
        assert await setup.writer.read_committed(setup.topic, 1) == [b"x"]

    with_broker(scenario)


def test_marker_in_the_coordinators_own_topic_does_not_prevent_the_next_start() -> None:
    async def scenario(setup: Setup) -> None:
        await setup.write()
        topic = WritableTxnMarkerTopic(name="__transaction_state", partition_indexes=[*range(50)])
        marker = WritableTxnMarker(
            producer_id=7, producer_epoch=0, transaction_result=True, coordinator_epoch=0, topics=[topic]
        )
        await setup.call(WriteTxnMarkersRequest(markers=[marker]), 1)
        setup.sim.kill()
        await setup.sim.start()
        await setup.writer.start()
        await setup.write()
        await setup.writer.end(commit=True)
        assert (await setup.state()).transaction_state == "CompleteCommit"
        assert await setup.writer.read_committed(setup.topic, 0) == [b"x"]

    with_broker(scenario)


def test_operators_can_write_markers() -> None:
    async def scenario(setup: Setup) -> None:
        await setup.write()
        marker = WritableTxnMarker(
            producer_id=setup.writer.producer_id,
            producer_epoch=setup.writer.epoch,
            transaction_result=False,
            coordinator_epoch=0,
            topics=[WritableTxnMarkerTopic(name="out", partition_indexes=[0, 7])],
        )
        response = await setup.call(WriteTxnMarkersRequest(markers=[marker]), 1)
        (result,) = response.markers
        assert result.producer_id == setup.writer.producer_id
        found = [(p.partition_index, p.error_code) for topic in result.topics for p in topic.partitions]
        assert found == [(0, E.NONE), (7, E.UNKNOWN_TOPIC_OR_PARTITION)]
        assert await setup.writer.read_committed(setup.topic, 0) == []
        assert (await setup.call(WriteTxnMarkersRequest(markers=[]))).markers == []

    with_broker(scenario)


def test_timeout_aborts_and_fences() -> None:
    async def scenario(setup: Setup) -> None:
        await setup.write()
        await asyncio.sleep(61)
        assert (await setup.state()).transaction_state == "CompleteAbort"
        with pytest.raises(RefusedError) as caught:
            await setup.write()
        assert caught.value.code is E.INVALID_PRODUCER_EPOCH
        assert await setup.writer.read_committed(setup.topic, 0) == []

    with_broker(scenario)


# -- the log of the transactions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "answer"),
    [
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
        (E.INVALID_RECORD, E.INVALID_RECORD),
    ],
)
def test_rejection_by_the_log_is_mapped_to_a_coordinator_error(
    monkeypatch: pytest.MonkeyPatch, refusal: ErrorCode, answer: ErrorCode
) -> None:
    async def scenario(setup: Setup) -> None:
        await setup.write()
        before = await setup.state()
        shell = setup.broker.transactions.shell
        who = {"producer_id": setup.writer.producer_id, "producer_epoch": setup.writer.epoch}

        def refuse(*_: Any) -> Any:
            raise ProtocolError(refusal, "refused")

        with monkeypatch.context() as patch:
            patch.setattr(shell, "_append", refuse)
            ended = await setup.call(EndTxnRequest(transactional_id="etl", committed=True, **who))
            begun = await setup.call(InitProducerIdRequest(transactional_id="new", transaction_timeout_ms=1000))
            add = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="etl",
                v3_and_below_producer_id=who["producer_id"],
                v3_and_below_producer_epoch=who["producer_epoch"],
                v3_and_below_topics=[AddPartitionsToTxnTopic(name="out", partitions=[1])],
            )
            added = await setup.call(add, 3)
        assert ended.error_code == begun.error_code == answer
        results = added.results_by_topic_v3_and_below[0].results_by_partition
        assert [result.partition_error_code for result in results] == [answer]
        assert await setup.state() == before
        await setup.writer.end(commit=True)

    with_broker(scenario)


# -- partitions of a transaction ---------------------------------------------------------------------------------------


def test_partitions_are_added_all_or_none() -> None:
    async def scenario(setup: Setup) -> None:
        def request(*partitions: int, epoch: int = 0) -> AddPartitionsToTxnRequest:
            return AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="etl",
                v3_and_below_producer_id=setup.writer.producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name="out", partitions=list(partitions))],
            )

        async def errors(version: int, *partitions: int, epoch: int = 0) -> list[int]:
            response = await setup.call(request(*partitions, epoch=epoch), version)
            (topic,) = response.results_by_topic_v3_and_below
            assert [result.partition_index for result in topic.results_by_partition] == list(partitions)
            return [result.partition_error_code for result in topic.results_by_partition]

        assert await errors(3, 0, 9) == [E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION]
        assert (await setup.state()).transaction_state == "Empty"
        assert await errors(3, 0, 1) == [E.NONE, E.NONE]
        assert [(topic.topic, topic.partitions) for topic in (await setup.state()).topics] == [("out", [0, 1])]
        assert await errors(2, 0, epoch=5) == [E.PRODUCER_FENCED]
        assert await errors(1, 0, epoch=5) == [E.INVALID_PRODUCER_EPOCH]

    with_broker(scenario)


def test_brokers_verify_several_transactions_in_one_request() -> None:
    async def scenario(setup: Setup) -> None:
        def transaction(name: str, partition: int, *, verify: bool) -> AddPartitionsToTxnTransaction:
            return AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=setup.writer.producer_id,
                producer_epoch=setup.writer.epoch,
                verify_only=verify,
                topics=[AddPartitionsToTxnTopic(name="out", partitions=[partition])],
            )

        async def errors(*transactions: AddPartitionsToTxnTransaction) -> dict[str, int]:
            response = await setup.call(AddPartitionsToTxnRequest(transactions=list(transactions)))
            return {
                result.transactional_id: result.topic_results[0].results_by_partition[0].partition_error_code
                for result in response.results_by_transaction
            }

        unknown = E.INVALID_PRODUCER_ID_MAPPING
        found = await errors(transaction("etl", 0, verify=True), transaction("unknown", 0, verify=True))
        assert found == {"etl": E.TRANSACTION_ABORTABLE, "unknown": unknown}
        assert await errors(transaction("etl", 0, verify=False)) == {"etl": E.NONE}
        assert await errors(transaction("etl", 0, verify=True)) == {"etl": E.NONE}
        assert await errors(transaction("etl", 5, verify=True)) == {"etl": E.UNKNOWN_TOPIC_OR_PARTITION}

    with_broker(scenario)


def test_offsets_partition_of_a_group_joins_the_transaction() -> None:
    async def scenario(setup: Setup) -> None:
        def request(epoch: int) -> AddOffsetsToTxnRequest:
            return AddOffsetsToTxnRequest(
                transactional_id="etl",
                producer_id=setup.writer.producer_id,
                producer_epoch=epoch,
                group_id="console-consumer-77682",
            )

        assert (await setup.call(request(0))).error_code == E.NONE
        assert [(t.topic, t.partitions) for t in (await setup.state()).topics] == [("__consumer_offsets", [41])]
        assert (await setup.call(request(3))).error_code == E.PRODUCER_FENCED
        assert (await setup.call(request(3), 1)).error_code == E.INVALID_PRODUCER_EPOCH

    with_broker(scenario)


# -- listing and describing -------------------------------------------------------------------------------------------


def test_transactions_are_listed_and_filtered() -> None:
    async def scenario(setup: Setup) -> None:
        idle = RawWriter("broker-1", PORT, "idle-1")
        await idle.start()
        await setup.write()
        await asyncio.sleep(2)

        async def names(**filters: Any) -> list[str]:
            response = await setup.call(ListTransactionsRequest(**filters))
            assert response.error_code == E.NONE
            return sorted(state.transactional_id for state in response.transaction_states)

        assert await names() == ["etl", "idle-1"]
        assert await names(state_filters=["Ongoing"]) == ["etl"]
        assert await names(state_filters=["Empty", "PrepareAbort"]) == ["idle-1"]
        assert await names(state_filters=["Nonsense"]) == []
        assert await names(producer_id_filters=[idle.producer_id]) == ["idle-1"]
        assert await names(duration_filter=1000, state_filters=["Ongoing"]) == ["etl"]
        assert await names(duration_filter=3000, state_filters=["Ongoing"]) == []
        assert await names(transactional_id_pattern="idle-.") == ["idle-1"]
        assert await names(transactional_id_pattern="idle") == []
        assert await names(transactional_id_pattern="") == ["etl", "idle-1"]
        response = await setup.call(ListTransactionsRequest(state_filters=["Nonsense", "Empty"]))
        assert response.unknown_state_filters == ["Nonsense"]
        response = await setup.call(ListTransactionsRequest(transactional_id_pattern="("))
        assert (response.error_code, response.transaction_states) == (E.INVALID_REGULAR_EXPRESSION, [])

    with_broker(scenario)


def test_transactions_are_described() -> None:
    async def scenario(setup: Setup) -> None:
        await setup.write(1)
        started = setup.world.now_ms()
        found = await setup.state()
        assert (found.error_code, found.transaction_state, found.transaction_timeout_ms) == (E.NONE, "Ongoing", 60_000)
        assert (found.producer_id, found.producer_epoch) == (setup.writer.producer_id, 0)
        assert 0 <= started - found.transaction_start_time_ms < 100
        assert [(topic.topic, topic.partitions) for topic in found.topics] == [("out", [1])]
        assert (await setup.state("unknown")).error_code == E.TRANSACTIONAL_ID_NOT_FOUND
        assert (await setup.state("")).error_code == E.INVALID_REQUEST
        assert (await setup.producers(7)).error_code == E.UNKNOWN_TOPIC_OR_PARTITION

    with_broker(scenario)


# -- transaction.version ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1, 2])
def test_new_cluster_starts_with_the_configured_transaction_version(level: int) -> None:
    async def scenario(setup: Setup) -> None:
        answer = await setup.call(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4)
        found = {each.name: each.max_version_level for each in answer.finalized_features}
        assert found == {"group.version": 1, **({"transaction.version": level} if level else {})}
        await setup.broker.settings.update_features(
            [Change("transaction.version", 1, 3 if level > 1 else 1)], validate_only=False
        )
        setup.sim.kill()
        await setup.sim.start()
        assert setup.broker.metadata.image.feature_level("transaction.version") == 1, (
            "the settings apply only to a new cluster"
        )

    with_broker(scenario, initial_transaction_version=level)


def test_two_feature_changes_may_return_in_either_order() -> None:
    async def scenario(setup: Setup) -> None:
        first_is_through = asyncio.Event()

        async def slow_offload(work: Callable[..., Any], *args: Any) -> Any:
            found = work(*args)
            if not first_is_through.is_set():
                first_is_through.set()
                await asyncio.sleep(1)
            return found

        setup.broker.workers.offload = slow_offload
        slow = asyncio.create_task(
            setup.broker.settings.update_features([Change("transaction.version", 1, 2)], validate_only=False)
        )
        await first_is_through.wait()
        await setup.broker.settings.update_features([Change("transaction.version", 0, 2)], validate_only=False)
        await slow
        image = setup.broker.metadata.image
        assert (image.feature_level("transaction.version"), image.feature_epoch) == (0, 2)

    with_broker(scenario)
