"""The shell around coordinators, with a coordinator that records its calls and a log that may reject appends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncelog.broker.coordinators import terms
from oncelog.broker.coordinators.record_batches import EndMarker, split
from oncelog.broker.coordinators.shell import CoordinatorShell
from oncelog.coordinator.effects import CoordinatorRecord, Effects
from oncelog.log.cleaning.batches import emptied
from oncelog.log.config import LogConfig
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import Record, build_batch, iter_batches
from oncelog.protocol.schema import encode_versioned
from support.logs import NOW, append, end_txn, leading_replica, of_producer, open_log
from support.shell_fixtures import TOPIC, BrokerStub, Remembering, record, say


def test_partition_that_cannot_be_loaded_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "RETRY_MS", (1, 60_000))
    stub = BrokerStub()
    storage = ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "not now")
    stub.fails = [storage, ValueError("what is that?"), AttributeError(), storage]

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        with pytest.raises(ProtocolError) as caught:
            shell.terms.shard(0)
        assert caught.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await shell.terms.load()
        with pytest.raises(ProtocolError) as caught:
            shell.terms.shard(0)
        assert caught.value.code == ErrorCode.NOT_COORDINATOR
        while not list(shell.terms.shards()):
            await asyncio.sleep(0.001)
        assert not stub.fails
        assert await shell.request(0, say("here")) == "here"

    stub.run(life)


def test_lists_of_all_omit_a_partition_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Kafka, a list waits for a partition that is loading, but not for one that could not be loaded."""
    monkeypatch.setattr(terms, "RETRY_MS", (1, 60_000))
    stub = BrokerStub()
    stub.fails = [ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "not now") for _ in range(3)]
    answers: list[ErrorCode] = []

    def answer(shell: CoordinatorShell[Remembering]) -> ErrorCode:
        try:
            shell.terms.check_loaded()
        except ProtocolError as error:
            return error.code
        return ErrorCode.NONE

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        stub.asked = lambda: answers.append(answer(shell))
        await shell.terms.load()
        assert answer(shell) == ErrorCode.NONE
        while not list(shell.terms.shards()):
            await asyncio.sleep(0.001)
        assert answers == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] + 4 * [ErrorCode.NONE]

    stub.run(life)


def test_lists_wait_for_a_partition_that_is_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure to load belongs to its previous term."""
    stub = BrokerStub()
    stub.fails = [ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "not now")]

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        shell.terms.check_loaded()
        shell.terms.resign(0)
        with pytest.raises(ProtocolError) as caught:
            shell.terms.check_loaded()
        assert caught.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await shell.terms.load()
        assert list(shell.terms.shards())

    stub.run(life)


def test_loading_a_partition_yields_to_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that they append meanwhile are loaded as well."""
    monkeypatch.setattr(terms, "LOAD_BYTES", 1)
    stub = BrokerStub()

    async def write(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        for number in range(3):
            await shell.request(0, say("written", record("t", number)))

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        loading = asyncio.ensure_future(shell.terms.load())
        turns = 0
        while not loading.done():
            await asyncio.sleep(0)
            turns += 1
            if turns == 2:
                append(stub.log, build_batch([Record(0, NOW, *encoded(record("t", 3)))]))
        assert turns > 3
        ((_, shard),) = shell.terms.shards()
        assert [offset for _, offset in shard.seen] == [0, 1, 2, 3]

    stub.run(write)
    stub.run(life)


def test_partition_that_goes_offline_while_it_is_loaded_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "LOAD_BYTES", 1)
    stub = BrokerStub()

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        append(stub.log, build_batch([Record(0, NOW, *encoded(record("t", 3)))]))
        loading = asyncio.ensure_future(shell.terms.load())
        await asyncio.sleep(0)
        stub.replica.fail()
        await loading
        with pytest.raises(ProtocolError) as caught:
            shell.terms.shard(0)
        assert caught.value.code == ErrorCode.NOT_COORDINATOR

    stub.run(life)


def encoded(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    value = None if record.value is None else encode_versioned(record.value, record.value_version)
    return encode_versioned(record.key, record.key_version), value


def test_retry_ends_if_the_partition_is_led_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "RETRY_MS", (1, 60_000))
    stub = BrokerStub()
    stub.fails = [ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "not now")]

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        stub.leading = False
        while shell.terms._terms:
            await asyncio.sleep(0.001)
        assert not list(shell.terms.shards())

    stub.run(life)


def test_many_records_are_split_into_batches_that_the_topic_accepts() -> None:
    stub = BrokerStub(LogConfig(max_message_bytes=1000))
    records = [record("topic-" + "x" * (number % 50), number) for number in range(60)]

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        assert await shell.request(0, say("done", *records)) == "done"
        ((_, shard),) = shell.terms.shards()
        assert [offset for _, offset in shard.seen] == list(range(60))

    stub.run(life)
    data = stub.log.read(0, 1 << 20, upto=60, at_least_one=True)
    headers = [header for header, _ in iter_batches(data)]
    assert len(headers) > 5
    assert max(header.size for header in headers) <= 1000
    assert min(header.size for header in headers[:-1]) > 600  # no more batches than necessary
    assert headers[-1].next_offset == 60

    async def later(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        ((_, shard),) = shell.terms.shards()
        assert [offset for _, offset in shard.seen] == list(range(60))

    stub.run(later)


def test_record_larger_than_any_batch_is_rejected() -> None:
    stub = BrokerStub(LogConfig(max_message_bytes=300))

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        with pytest.raises(ProtocolError) as caught:
            await shell.request(0, say("done", record("t", 1), record("x" * 240, 2)))
        assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
        assert stub.log.log_end_offset == 0
        ((_, shard),) = shell.terms.shards()
        assert not shard.seen

    stub.run(life)


@pytest.mark.parametrize("size", range(1, 200, 7))
def test_no_batch_exceeds_its_maximum(size: int) -> None:
    rows = [Record(0, NOW, bytes(size), bytes(size * (number % 3))) for number in range(200)]
    parts = list(split(rows, 700))
    assert [row for part in parts for row in part] == rows
    assert all(len(build_batch(part)) <= 700 for part in parts if len(part) > 1)


def test_read_waits_until_its_data_is_committed() -> None:
    """Otherwise, a reader could continue from an offset that a power loss removes."""
    stub = BrokerStub(LogConfig(flush_messages=1))
    flusher: Any = SimpleNamespace(now=lambda _: None, later=lambda _: None, files=lambda _: None)
    stub.replica = leading_replica(TOPIC, stub.log, flush=flusher)

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        write = asyncio.ensure_future(shell.request(0, say("written", record("t", 7))))
        await asyncio.sleep(0)
        reads = [asyncio.ensure_future(shell.read(0, lambda shard: shard.seen)), asyncio.ensure_future(shell.settled())]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(task.done() for task in (write, *reads))
        stub.log.flush()
        stub.replica.synced(1)
        assert (await write, await reads[0], await reads[1]) == ("written", [("t", 7)], None)

    stub.run(life)


def test_read_after_loading_waits_until_its_data_is_committed() -> None:
    """Recovery also finds records that were not synced before the end."""
    config = LogConfig(flush_messages=1)
    stub = BrokerStub(config)

    async def killed(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        await shell.request(0, say("written", record("t", 7)))

    stub.run(killed)
    stub.log = open_log(stub.disk, config)
    flusher: Any = SimpleNamespace(now=lambda _: None, later=lambda _: None, files=lambda _: None)
    stub.replica = leading_replica(TOPIC, stub.log, flush=flusher)

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        read = asyncio.ensure_future(shell.read(0, lambda shard: shard.seen))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not read.done()
        stub.replica.synced(1)
        assert await read == [("t", 7)]

    stub.run(life)


def test_rejected_request_is_answered_at_once() -> None:
    stub = BrokerStub()

    def refuse(shard: Remembering, token: object) -> Effects:
        raise ProtocolError(ErrorCode.ILLEGAL_GENERATION, "of yesterday")

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        for _ in range(3):
            with pytest.raises(ProtocolError, match="of yesterday"):
                await shell.request(0, refuse)
        assert not shell.terms._terms[0].waiting

    stub.run(life)


@pytest.mark.parametrize("fault", ["replay", "tick"])
def test_coordinator_whose_state_is_inconsistent_is_reloaded(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The contents of its log are reloaded, and its timers continue."""
    monkeypatch.setattr(terms, "RETRY_MS", (1, 60_000))
    stub = BrokerStub()

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        await shell.request(0, say("here", record("t", 1)))
        ((_, first),) = shell.terms.shards()
        if fault == "replay":
            first.seen = None  # type: ignore[assignment]
            with pytest.raises(ProtocolError) as caught:
                await shell.request(0, say("lost", record("t", 2)))
            assert caught.value.code == ErrorCode.NOT_COORDINATOR
        else:
            first.due = NOW
            await shell.request(0, say("here", record("t", 2)))
        while first in (shard for _, shard in shell.terms.shards()) or not list(shell.terms.shards()):
            await asyncio.sleep(0.001)
        ((_, second),) = shell.terms.shards()
        assert second.seen == [("t", 1), ("t", 2)]
        assert await shell.request(0, say("here")) == "here"

    stub.run(life)


def test_partition_with_emptied_markers_and_batches_is_loaded() -> None:
    stub = BrokerStub()
    committed = record("t", 5)
    assert committed.value is not None
    row = Record(0, NOW, encode_versioned(committed.key, 1), encode_versioned(committed.value, 3))
    data = build_batch([row], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    append(stub.log, of_producer(2, 0, txn=True, timestamp=NOW))
    end_txn(stub.log, 2, commit=False)
    append(stub.log, data)
    end_txn(stub.log, 1, commit=True)
    empty(stub, 0)
    empty(stub, 1)

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        ((_, shard),) = shell.terms.shards()
        assert (shard.seen, shard.ended) == ([("t", 5)], [(1, True)])

    stub.run(life)


def empty(stub: BrokerStub, index: int) -> None:
    """Replace a batch by what compaction leaves of it."""
    (path,) = [path for path in stub.disk.files if path.endswith(".log")]
    content = stub.disk.files[path].data
    batches = [
        bytes(emptied(h) if number == index else v) for number, (h, v) in enumerate(iter_batches(bytes(content)))
    ]
    content[:] = b"".join(batches)
    stub.log = open_log(stub.disk)
    stub.replica = leading_replica(TOPIC, stub.log)


# -- terms -------------------------------------------------------------------------------------------------------------


NO_SYNC: Any = SimpleNamespace(now=lambda _: None, later=lambda _: None, files=lambda _: None)


def lagging(stub: BrokerStub, epoch: int = 0) -> None:
    """Give the stub a replica whose records are committed when the test says so."""
    stub.replica = leading_replica(TOPIC, stub.log, epoch=epoch, flush=NO_SYNC)


async def refusal(request: asyncio.Future[Any]) -> ErrorCode:
    with pytest.raises(ProtocolError) as caught:
        await request
    return caught.value.code


def test_end_of_a_term_rejects_its_requests() -> None:
    """`coordinator_term`: the record is truncated, another one gets its offset, and is committed (KAFKA-20634)."""
    stub = BrokerStub(LogConfig(flush_messages=1))
    lagging(stub)

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        marked: list[Any] = []
        shell.markers_due.subscribe(marked.extend)
        former = stub.replica

        def write(shard: Remembering, token: Any) -> Effects:
            effects = say("written", record("t", 7))(shard, token)
            effects.markers.append(cast(Any, "marker"))
            return effects

        request = asyncio.ensure_future(shell.request(0, write))
        read = asyncio.ensure_future(shell.request(0, say("read")))
        await asyncio.sleep(0)
        load = stub.elect(shell, 1)
        assert await refusal(request) is ErrorCode.NOT_COORDINATOR
        assert await refusal(read) is ErrorCode.NOT_COORDINATOR
        stub.log.truncate_to(0, NOW)
        append(stub.log, build_batch([Record(0, NOW, *encoded(record("t", 8)))]))
        stub.log.flush()
        former.synced(1)
        lagging(stub, 1)
        stub.replica.synced(1)
        await load
        assert not marked
        assert await shell.read(0, lambda shard: shard.seen) == [("t", 8)]
        assert stub.made == [0, 1]

    stub.run(life)


def test_loss_of_records_ends_the_term() -> None:
    """The coordinator has replayed them, so it must not serve other requests."""
    stub = BrokerStub(LogConfig(flush_messages=1))
    lagging(stub)

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        request = asyncio.ensure_future(shell.request(0, say("written", record("t", 7))))
        await asyncio.sleep(0)
        stub.replica.fail()
        assert await refusal(request) is ErrorCode.NOT_COORDINATOR
        assert not list(shell.terms.shards())

    stub.run(life)


def test_load_of_a_former_term_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "LOAD_BYTES", 1)
    stub = BrokerStub()
    for number in range(5):
        append(stub.log, build_batch([Record(0, NOW, *encoded(record("t", number)))]))
    stub.replica.synced(5)

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        first = asyncio.ensure_future(shell.terms.load())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(ProtocolError) as caught:
            shell.terms.shard(0)
        assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        second = asyncio.ensure_future(stub.elect(shell, 1))
        stub.replica = leading_replica(TOPIC, stub.log, epoch=1)
        await first
        assert not list(shell.terms.shards())
        await second
        assert stub.made == [0, 1]
        ((_, shard),) = shell.terms.shards()
        assert [offset for _, offset in shard.seen] == [0, 1, 2, 3, 4]

    stub.run(life)


def test_replica_of_another_epoch_gets_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica may know the next term before the coordinator, which follows without a further change."""
    monkeypatch.setattr(terms, "RETRY_MS", (1, 60_000))
    stub = BrokerStub()

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        stub.replica = leading_replica(TOPIC, stub.log, epoch=1)
        request = asyncio.ensure_future(shell.request(0, say("written", record("t", 7))))
        assert await refusal(request) is ErrorCode.NOT_COORDINATOR
        assert stub.log.log_end_offset == 0
        await stub.elect(shell, 1)
        assert await shell.request(0, say("here")) == "here"

    stub.run(life)


def test_wait_for_the_commit_is_bounded() -> None:
    stub = BrokerStub(LogConfig(flush_messages=1))
    stub.commit_timeout_ms = 10
    lagging(stub)

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        request = asyncio.ensure_future(shell.request(0, say("written", record("t", 7))))
        assert await refusal(request) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (
            await refusal(asyncio.ensure_future(shell.request(0, say("read")))) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        stub.log.flush()
        stub.replica.synced(1)
        assert await shell.read(0, lambda shard: shard.seen) == [("t", 7)]

    stub.run(life)


# -- markers -----------------------------------------------------------------------------------------------------------

COMMIT = EndMarker(True, producer_id=7, producer_epoch=0, coordinator_epoch=0, transaction_version=1)


def test_client_that_knows_that_a_marker_is_committed_finds_its_effect() -> None:
    """A read before that waits for the commit, as for any record."""
    stub = BrokerStub(LogConfig(flush_messages=1))
    lagging(stub)

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        known: list[ErrorCode] = []
        stub.replica.when_committed(0, known.append)  # whatever the order of the waits is
        assert shell.append_marker(stub.replica, COMMIT) == 0
        early = asyncio.ensure_future(shell.read(0, lambda shard: shard.ended))
        await asyncio.sleep(0)
        assert not early.done()
        assert known == []
        stub.log.flush()
        stub.replica.synced(1)
        assert known == [ErrorCode.NONE]
        assert shell.terms.shard(0).ended == [(7, True)]
        assert await early == await shell.read(0, lambda shard: shard.ended) == [(7, True)]

    stub.run(life)


def test_marker_is_replayed_once_if_the_coordinator_is_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "LOAD_BYTES", 1)
    for turns in range(12):
        stub = BrokerStub()
        for number in range(3):
            append(stub.log, build_batch([Record(0, NOW, *encoded(record("t", number)))]))
        stub.replica.synced(3)

        async def life(shell: CoordinatorShell[Remembering], stub: BrokerStub = stub, turns: int = turns) -> None:
            loading = asyncio.ensure_future(shell.terms.load())
            for _ in range(turns):
                await asyncio.sleep(0)
            shell.append_marker(stub.replica, COMMIT)
            await loading
            assert await shell.read(0, lambda shard: shard.ended) == [(7, True)]
            assert [offset for _, offset in shell.terms.shard(0).seen] == [0, 1, 2]

        stub.run(life)


def test_marker_of_another_epoch_is_left_to_the_next_coordinator() -> None:
    stub = BrokerStub()

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        former = shell.terms.shard(0)
        stub.replica = leading_replica(TOPIC, stub.log, epoch=1)
        shell.append_marker(stub.replica, COMMIT)
        assert former.ended == []
        await stub.elect(shell, 1)
        assert await shell.read(0, lambda shard: shard.ended) == [(7, True)]

    stub.run(life)


def test_marker_that_cannot_be_replayed_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "RETRY_MS", (1, 60_000))
    stub = BrokerStub()

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        shell.terms.shard(0).ended = None  # type: ignore[assignment]
        assert shell.append_marker(stub.replica, COMMIT) == 0
        while not list(shell.terms.shards()):
            await asyncio.sleep(0.001)
        assert await shell.read(0, lambda shard: shard.ended) == [(7, True)]

    stub.run(life)


def test_loss_of_a_marker_ends_the_term() -> None:
    stub = BrokerStub(LogConfig(flush_messages=1))
    lagging(stub)

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        shell.append_marker(stub.replica, COMMIT)
        stub.replica.fail()
        assert not list(shell.terms.shards())

    stub.run(life)
