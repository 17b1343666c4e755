"""The producer core's guarantees to waiting callers, whatever the arguments and the timing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from oncelog import errors
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.producer.buffer import NotAddedError
from oncelog.client.producer.coordinator_requests import handle, next_request
from oncelog.client.producer.core import ProducerCore
from oncelog.client.producer.options import producer_options
from oncelog.client.producer.transaction_manager import TransactionManager
from oncelog.client.producer.transaction_states import ManagerState
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdResponse
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from oncelog.protocol.schema import Message
from support.model_cluster import FINE, SLOW, ModelCluster, ModelConnection
from support.producer_core import values, with_core
from support.virtual_time import run


@pytest.mark.parametrize(
    ("timestamp", "headers"), [(1.5, ()), (-5, ()), (1 << 63, ()), (0, [(b"name", b"x")]), (0, [("name", "text")])]
)
def test_record_that_cannot_be_encoded_is_rejected_at_once_without_a_trace(timestamp: Any, headers: Any) -> None:
    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        with pytest.raises((TypeError, NotAddedError, errors.UsageError)):
            core.buffer.append("t", b"bad", None, 0, timestamp, headers)
        assert core.accumulator.empty
        good = core.buffer.append("t", b"good", None, 0, 0, ())
        assert good is not None
        await core.flush(10_000)
        assert good.result(0).offset == 0
        assert values(cluster) == [b"good"]

    with_core(body)


def test_record_that_cannot_be_encoded_does_not_change_the_open_batch() -> None:
    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        core.buffer.append("t", b"good", None, 0, 1_000, ())
        with pytest.raises(NotAddedError):
            core.buffer.append("t", b"bad", None, 0, 2_000, [("name", "text")])  # type: ignore[list-item]
        (batch,) = core.accumulator.incomplete()
        assert (batch.count, batch.max_timestamp) == (1, 1_000)

    with_core(body, linger_ms=100)


def test_request_that_cannot_be_encoded_fails_its_records() -> None:
    class Broken(ModelConnection):
        def send(self, request: Message, version: int | None = None, **options: object) -> asyncio.Future[Any]:
            if type(request).__name__ == "ProduceRequest":
                raise OverflowError("too much of it")
            return super().send(request, version, **options)

    class BrokenCluster(ModelCluster):
        connection_type = Broken

    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        future = core.buffer.append("t", b"x", None, 0, 0, ())
        assert future is not None
        await core.flush(10_000)
        with pytest.raises(errors.KafkaError, match="too much of it"):
            future.result(0)

    with_core(body, BrokenCluster(1, lambda: FINE, version=2))


def test_sending_with_acks_0_continues_when_the_connection_accepts_more() -> None:
    class Slow(ModelConnection):
        congested = False
        listeners: list[Callable[[], object]]
        sent = 0

        def send_unanswered(self, request: Message, version: int | None = None) -> None:
            self.sent += 1
            self.congested = True
            self.listeners = []
            asyncio.get_running_loop().call_later(0.01, self.resume)

        def on_writable(self, callback: Callable[[], object]) -> None:
            self.listeners.append(callback)

        def resume(self) -> None:
            self.congested = False
            for callback in self.listeners:
                callback()

    class SlowCluster(ModelCluster):
        connection_type = Slow

    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        futures = [core.buffer.append("t", b"x" * 100, None, 0, 0, ()) for _ in range(10)]
        await core.flush(1_000)
        assert all(future is not None and future.exception(0) is None for future in futures)

    with_core(body, SlowCluster(1, lambda: FINE, version=2), acks=0, batch_size=150)


def test_record_appended_during_close_is_rejected() -> None:
    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        def close_meanwhile(*_: object) -> int:  # as another thread may, after the first check in `append`
            core.buffer.closing = True
            return 0

        core.buffer.partitioner = close_meanwhile
        with pytest.raises(errors.UsageError, match="closed"):
            core.buffer.append("t", b"late", None, None, 0, ())
        assert core.accumulator.empty

    with_core(body)


@pytest.mark.parametrize("what", ["commit", "abort"])
def test_commit_or_abort_that_timed_out_can_be_repeated_after_its_completion(what: str) -> None:
    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        await core.init_transactions()
        core.begin()
        core.buffer.append("t", b"x", None, 0, 0, ())
        await core.flush()
        end = core.commit if what == "commit" else core.abort
        with pytest.raises(errors.TimedOutError):
            await end(0)
        await asyncio.sleep(1)
        assert core.manager is not None
        assert core.manager.state is ManagerState.READY
        await end()
        assert values(cluster) == ([b"x"] if what == "commit" else [])
        with pytest.raises(errors.UsageError, match="begin one first"):
            await end()

    with_core(body, transactional_id="id")


def test_commit_fails_if_another_task_aborts_before_it_resumes() -> None:
    """Before, it returned as if it had committed: by then, the producer was aborting without an error."""

    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        await core.init_transactions()
        core.begin()
        core.buffer.append("t", b"x", None, 0, 0, ())
        committing = asyncio.ensure_future(core.commit())
        await asyncio.sleep(0)
        assert core.manager is not None
        core.manager.abortable(errors.AbortableError("refused"))
        await core.abort()
        with pytest.raises(errors.AbortableError, match="refused"):
            await committing
        assert values(cluster) == []

    with_core(body, transactional_id="id")


def test_records_have_an_outcome_although_close_is_cancelled() -> None:
    class Slow(ModelCluster):
        async def close(self) -> None:
            self.calls.close()
            await asyncio.sleep(60)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        full = producer_options(None, {"bootstrap_servers": "model:1", "linger_ms": 10_000})
        model = Slow(1, lambda: FINE, version=2)
        core = ProducerCore(full, loop, clock=lambda: int(loop.time() * 1000), cluster=model)  # type: ignore[arg-type]
        await core.learn_topic("t")
        future = core.buffer.append("t", b"x", None, 0, 0, ())
        assert future is not None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(core.close(0), 1)
        assert isinstance(future.exception(0), errors.TimedOutError)

    run(main())


def test_batch_that_cannot_be_compressed_fails_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, its records had no outcome, and flush() waited forever."""

    def compress(*_: object) -> bytes:
        raise MemoryError("no memory to compress")

    monkeypatch.setattr("oncelog.client.producer.batch.compress", compress)

    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        future = core.buffer.append("t", b"x", None, 0, 0, ())
        assert future is not None
        await core.flush(10_000)
        with pytest.raises(errors.KafkaError, match="no memory to compress"):
            future.result(0)

    with_core(body, compression_type="zstd")


@pytest.mark.parametrize("where", ["_turn", "_answered"])
def test_internal_error_of_the_sender_fails_the_records(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise LookupError("the sender has a fault")

    if where == "_turn":
        monkeypatch.setattr("oncelog.client.producer.accumulator.Accumulator.drain", broken)
    else:
        monkeypatch.setattr("oncelog.client.producer.produce_requests.match", broken)

    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        future = core.buffer.append("t", b"x", None, 0, 0, ())
        assert future is not None
        await core.flush(10_000)
        with pytest.raises(errors.KafkaError, match="the sender has a fault"):
            future.result(0)
        with pytest.raises(errors.FatalError, match="the sender has a fault"):
            core.buffer.append("t", b"y", None, 0, 0, ())

    with_core(body)


def test_abort_during_the_check_for_fencing_leaves_the_next_transaction_clean() -> None:
    manager = TransactionManager("id")
    manager.set_version(2)
    manager.initialize()
    manager.initialized(7, 0)
    manager.begin()
    manager.may_append(("t", 0))
    manager.add_offsets(GroupMetadata("g"), {("in", 0): (5, -1, "")})
    step = next_request(manager, drained=False)
    assert step is not None
    fenced = TxnOffsetCommitResponsePartition(partition_index=0, error_code=ErrorCode.INVALID_PRODUCER_EPOCH)
    topic = TxnOffsetCommitResponseTopic(name="in", partitions=[fenced])
    handle(manager, step, TxnOffsetCommitResponse(topics=[topic]))
    asking = next_request(manager, drained=False)
    assert asking is not None
    manager.begin_abort()
    handle(manager, asking, InitProducerIdResponse(producer_id=7, producer_epoch=2))
    assert manager.state is ManagerState.ABORTING, "batches of the old epoch may still be in flight"
    assert next_request(manager, drained=False) is None
    step = next_request(manager, drained=True)
    assert step is None or not isinstance(step.request, EndTxnRequest)
    assert (manager.state, manager.producer_epoch) == (ManagerState.READY, 2)
    assert (manager.partitions, manager.groups, manager.started) == (set(), {}, False)


def test_unexpected_coordinator_error_is_raised_and_not_retried() -> None:
    class Odd(ModelCluster):
        asked = 0

        async def coordinator(self, kind: str, key: str) -> int:
            self.asked += 1
            raise LookupError("an unexpected error")

    odd = Odd(1, lambda: FINE, version=2)

    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        with pytest.raises(errors.FatalError, match="an unexpected error"):
            await core.init_transactions(10_000)
        assert odd.asked == 1

    with_core(body, odd, transactional_id="id")


def test_metadata_of_unused_topics_are_no_longer_requested() -> None:
    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        for _ in range(4):
            assert core.buffer.append("t", b"x", None, 0, 0, ()) is not None
            await asyncio.sleep(4)
            assert "t" in core.counts
        await asyncio.sleep(8)
        assert "t" not in core.counts
        assert core.buffer.append("t", b"x", None, 0, 0, ()) is None
        await core.learn_topic("t")
        assert core.buffer.append("t", b"x", None, 0, 0, ()) is not None

    with_core(body, metadata_max_age_ms=1_000, metadata_max_idle_ms=5_000)


def test_broker_that_has_left_the_cluster_is_no_reason_for_later_waits() -> None:
    class Moving(ModelCluster):
        async def connection(self, node: int, purpose: str = "") -> ModelConnection:
            if node == 9:
                raise errors.ConnectionFailedError("broker 9: refused")
            return await super().connection(node, purpose)

        def open_connection(self, node: int, purpose: str = "") -> ModelConnection | None:
            return None if node == 9 else super().open_connection(node, purpose)

    cluster = Moving(1, lambda: FINE, version=2)
    here = cluster._topic
    cluster.topology.brokers[9] = ("gone", 1)
    cluster._topic = replace(here, partitions={0: replace(here.partitions[0], leader=9)})

    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        await cluster.refresh(["t"])
        core.buffer.append("t", b"x", None, 0, 0, ())
        with pytest.raises(errors.TimedOutError, match="broker 9: refused"):
            await core.flush(1_000)
        del cluster.topology.brokers[9]
        cluster._topic = here
        await cluster.refresh(["t"])
        await core.flush(10_000)
        await asyncio.sleep(2)  # longer than a back-off
        cluster.fault = lambda: SLOW
        core.buffer.append("t", b"y", None, 0, 0, ())
        with pytest.raises(errors.TimedOutError, match=r"flush did not complete within 5 ms \("):
            await core.flush(5)

    with_core(body, cluster)


def test_metadata_requests_without_a_leader_back_off_and_other_partitions_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        asked = 0
        refresh = cluster.refresh

        async def counted(*args: Any, **options: Any) -> None:
            nonlocal asked
            asked += 1
            if asked >= 120:
                await asyncio.Event().wait()  # requests without a pause: virtual time would stop
            await refresh(*args, **options)
            known = cluster.topology.topics["t"]
            partitions = {**known.partitions, 1: replace(known.partitions[1], leader=-1)}
            cluster.topology.topics["t"] = replace(known, partitions=partitions)

        cluster.refresh = counted  # type: ignore[method-assign]
        await core.cluster.refresh(["t"])
        waits = core.buffer.append("t", b"waits", None, 1, 0, ())
        goes = core.buffer.append("t", b"goes", None, 0, 0, ())
        assert waits is not None
        assert goes is not None
        await asyncio.sleep(60)
        assert goes.result(0).offset == 0
        assert not waits.done()
        assert asked < 120  # once a second (retry.backoff.max.ms), except for the first requests
        (line,) = caplog.messages
        assert line.startswith("records wait in the buffer: no leader of t-1. Check that the brokers")
        cluster.refresh = refresh  # type: ignore[method-assign]
        await core.flush(10_000)
        assert waits.result(0).offset == 0
        assert len(caplog.messages) == 2, "the end is logged, too"

    with_core(body, ModelCluster(2, lambda: FINE, version=2))


def test_metadata_requests_for_missing_partition_back_off() -> None:
    """Before, the producer requested metadata without a pause, 12,000 times a second."""

    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        asked = 0
        refresh = cluster.refresh

        async def counted(*args: Any, **options: Any) -> None:
            nonlocal asked
            asked += 1
            if asked >= 120:
                await asyncio.Event().wait()  # requests without a pause: virtual time would stop
            await refresh(*args, **options)
            known = cluster.topology.topics["t"]
            cluster.topology.topics["t"] = replace(known, partitions={0: known.partitions[0]})

        cluster.refresh = counted  # type: ignore[method-assign]
        await core.cluster.refresh(["t"])
        waits = core.buffer.append("t", b"waits", None, 1, 0, ())
        assert waits is not None
        await asyncio.sleep(60)
        assert not waits.done()
        assert asked < 120  # once a second (retry.backoff.max.ms), except for the first requests
        assert core.counts["t"] == 1
        goes = core.buffer.append("t", b"goes", None, None, 0, ())
        assert goes is not None
        await asyncio.sleep(1)
        assert goes.result(0).partition == 0
        await asyncio.sleep(60)
        assert isinstance(waits.exception(0), errors.TimedOutError)

    with_core(body, ModelCluster(2, lambda: FINE, version=2))


def test_send_waits_for_an_added_partition() -> None:
    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        refresh, full = cluster.refresh, cluster._topic

        async def grows_late(*args: Any, **options: Any) -> None:
            await refresh(*args, **options)
            if asyncio.get_running_loop().time() < grown_at:
                cluster.topology.topics["t"] = replace(full, partitions={0: full.partitions[0]})

        grown_at = asyncio.get_running_loop().time() + 5
        core.counts["t"] = 1
        cluster.refresh = grows_late  # type: ignore[method-assign]
        assert core.buffer.append("t", b"x", None, 1, 0, ()) is None
        await core.learn_topic("t", 1)
        assert asyncio.get_running_loop().time() < grown_at + 2
        assert core.buffer.append("t", b"x", None, 1, 0, ()) is not None
        with pytest.raises(errors.UnknownTopicError, match=r"partitions 0 to 1, not 2, after 60000 ms"):
            await core.learn_topic("t", 2)
        with pytest.raises(errors.UsageError, match="partition = -1"):
            core.buffer.append("t", b"x", None, -1, 0, ())

    with_core(body, ModelCluster(2, lambda: FINE, version=2))


@pytest.mark.parametrize("idempotent", [True, False])
def test_purge_frees_memory_and_close_does_not_raise_its_errors(idempotent: bool) -> None:
    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        future = core.buffer.append("t", b"x", None, 0, 0, ())
        assert future is not None
        assert core.purge(in_queue=False, in_flight=True) == 0
        assert core.purge(in_queue=True, in_flight=False) == 1
        assert core.accumulator.used == 0
        with pytest.raises(errors.PurgedError, match=r"1 records for t-0 .* not in the log"):
            future.result(0)
        assert core.purge(in_queue=True, in_flight=True) == 0

    with_core(body, linger_ms=1_000, enable_idempotence=idempotent)


@pytest.mark.parametrize("version", [1, 2])
def test_purge_makes_the_transaction_abortable(version: int) -> None:
    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        await core.init_transactions()
        core.begin()
        assert core.purge(in_queue=True, in_flight=True) == 0, "nothing is dropped: the transaction can be committed"
        future = core.buffer.append("t", b"x", None, 0, 0, ())
        assert future is not None
        core.purge(in_queue=True, in_flight=True)
        assert isinstance(future.exception(0), errors.AbortableError)
        assert isinstance(future.exception(0).__cause__, errors.PurgedError)
        with pytest.raises(errors.AbortableError, match=r"purge\(\) dropped 1 records"):
            await core.commit()
        await core.abort()
        core.begin()
        core.buffer.append("t", b"y", None, 0, 0, ())
        await core.commit()
        assert values(cluster) == [b"y"]

    with_core(body, ModelCluster(1, lambda: FINE, version=version), transactional_id="x", linger_ms=1_000)


@pytest.mark.parametrize("idempotent", [True, False])
def test_rejected_login_fails_waiting_records_at_once(idempotent: bool) -> None:
    class Guarded(ModelCluster):
        rejects = False

        def open_connection(self, node: int, purpose: str = "") -> ModelConnection | None:
            return None if self.rejects else super().open_connection(node, purpose)

        async def connection(self, node: int, purpose: str = "") -> ModelConnection:
            if self.rejects:
                raise errors.AuthenticationError("the broker rejected the login")
            return await super().connection(node, purpose)

    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        assert isinstance(cluster, Guarded)
        cluster.rejects = True
        begun = asyncio.get_running_loop().time()
        future = core.buffer.append("t", b"x", None, 0, 0, ())
        assert future is not None
        while not future.done():
            await asyncio.sleep(0.01)
        with pytest.raises(errors.AuthenticationError, match="rejected the login"):
            future.result(0)
        assert asyncio.get_running_loop().time() - begun < 5

    with_core(body, Guarded(1, lambda: FINE, version=2), enable_idempotence=idempotent)
