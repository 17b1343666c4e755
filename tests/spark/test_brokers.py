"""Single operations of the protocol on a real broker: the facts that the protocol relies on."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from oncelog import Admin, Producer, errors
from oncelog.client.blocking import BlockingCluster
from oncelog.net.connection import ClientConnection
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from oncelog.protocol.schema import Message
from oncelog.spark.cluster import partitions
from oncelog.spark.cluster.brokers import Brokers, run
from oncelog.spark.cluster.partitions import EARLIEST, LATEST, find_markers
from oncelog.spark.cluster.transactions import TransactionRequests
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import NotDecidedError, NotVerifiedError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.plan import read_parts, read_record
from oncelog.spark.commit.record import STREAM, Owner, Record, Source, Span, TaskTransaction
from oncelog.spark.commit.steps import Sink, await_commit_marker, commit_record, propose_record
from oncelog.spark.writing.driver import check_cleanup_policy, ensure_decision_topic
from spark.judges import create
from support.servers import OncelogCluster, Server


@pytest.fixture
def cluster(server: Server) -> Iterator[BlockingCluster]:
    with BlockingCluster(server.bootstrap) as made:
        yield made


@pytest.fixture
def at(server: Server, name: str) -> TopicPartition:
    create(server.bootstrap, name, 1)
    return TopicPartition(name, 0)


def begin(brokers: Brokers, name: str, at: TopicPartition) -> tuple[Owner, int]:
    owner: Owner = brokers.answer(op.InitProducerId(name, 60_000))
    produced: op.Produced = brokers.answer(op.Produce(owner, at, Record(plan=1)))
    assert produced.outcome is op.RequestOutcome.DONE
    return owner, produced.offset


def test_end_txn_from_another_connection_can_be_repeated(
    server: Server, cluster: BlockingCluster, at: TopicPartition
) -> None:
    brokers = Brokers(cluster)
    owner, offset = begin(brokers, f"{at.topic}/0/0/0.0", at)
    opened: tuple[op.OpenProducer, ...] = brokers.answer(op.DescribeProducers((at,)))
    assert opened == (op.OpenProducer(at, owner.pid, owner.epoch, offset),)
    with BlockingCluster(server.bootstrap) as another:
        for _ in range(2):
            ended: op.Ended = Brokers(another).answer(op.EndTxn(owner, True))
            assert ended.outcome is op.RequestOutcome.DONE
    place = op.Place(at, owner.pid, offset)
    assert brokers.answer(op.FindMarkers((place,))) == (op.Marker.COMMIT,)
    assert brokers.answer(op.DescribeProducers((at,))) == ()


def test_wait_for_transactions_lasts_as_long_as_some_of_them_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request asks only about transactions that had not ended at the previous one."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += 10.0

    monkeypatch.setattr(
        "oncelog.spark.cluster.transactions.time",
        SimpleNamespace(time=lambda: 0.0, monotonic=lambda: now[0], sleep=sleep),
    )
    owners = tuple(Owner(f"p/{slot}/0/0.0", slot, 0) for slot in range(9))
    asked: list[int] = []
    stuck = [0]

    def describe(self: TransactionRequests, o: op.DescribeTransactions) -> tuple[op.Described, ...]:
        asked.append(len(o.ids))
        still = max(stuck[0], 9 - len(asked))
        return tuple(op.Described(w.id, w.pid, 0, op.TxnState.ENDING, 0) for w in owners[:still] if w.id in o.ids)

    monkeypatch.setattr(TransactionRequests, "describe", describe)
    with BlockingCluster("nowhere:1") as nothing:
        brokers = Brokers(nothing, end_wait_ms=15_000)
        brokers.answer(op.AwaitEnded(owners))
        assert asked == [9, 8, 7, 6, 5, 4, 3, 2, 1]
        asked.clear()
        stuck[0] = 7
        with pytest.raises(NotVerifiedError, match="7 transactions are still ending, and none has ended within 15000"):
            brokers.answer(op.AwaitEnded(owners))
        assert asked == [9, 8, 7, 7]


@pytest.mark.parametrize("slept_s", [0.0, 100.0], ids=["no answer", "the driver slept"])
def test_driver_abandons_its_decision_after_the_timeout(
    cluster: BlockingCluster, at: TopicPartition, monkeypatch: pytest.MonkeyPatch, slept_s: float
) -> None:
    brokers = Brokers(cluster)
    owner, _ = begin(brokers, at.topic, at)
    sent: list[Owner] = []

    async def unanswered(_: Any, owners: tuple[Owner, ...], *rest: Any) -> list[Any]:
        sent.extend(owners)
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr("oncelog.spark.cluster.batched_lookups.end_all", unanswered)
        began = time.monotonic()
        clock = SimpleNamespace(time=time.time, sleep=time.sleep, monotonic=lambda: began + slept_s)
        patch.setattr("oncelog.spark.cluster.transactions.time", clock)
        within_ms = 1 if slept_s == 0 else 50_000
        brokers.transactions._proposed[owner.id] = began
        with pytest.raises(errors.TimedOutError, match=f"within its timeout of {within_ms} ms.*start the query again"):
            brokers.answer(op.EndTxn(owner, True, within_ms))
    assert sent == ([] if slept_s else [owner])
    ended: op.Ended = brokers.answer(op.EndTxn(owner, False))
    assert ended.outcome is op.RequestOutcome.DONE


def test_newer_owner_fences_and_aborts(cluster: BlockingCluster, at: TopicPartition) -> None:
    brokers = Brokers(cluster)
    name = f"{at.topic}/0/0/0.0"
    owner, offset = begin(brokers, name, at)
    newer: Owner = brokers.answer(op.InitProducerId(name, 60_000))
    assert (newer.pid, newer.epoch) == (owner.pid, owner.epoch + 2)
    ended: op.Ended = brokers.answer(op.EndTxn(owner, True))
    assert ended.outcome is op.RequestOutcome.FENCED
    produced: op.Produced = brokers.answer(op.Produce(owner, at, Record()))
    assert produced.outcome is op.RequestOutcome.FENCED
    assert brokers.answer(op.FindMarkers((op.Place(at, owner.pid, offset),))) == (op.Marker.ABORT,)


def test_commit_of_an_empty_transaction_is_an_invalid_state(cluster: BlockingCluster, at: TopicPartition) -> None:
    brokers = Brokers(cluster)
    owner: Owner = brokers.answer(op.InitProducerId(f"{at.topic}/0/0/0.0", 60_000))
    ended: op.Ended = brokers.answer(op.EndTxn(owner, True))
    assert ended.outcome is op.RequestOutcome.INVALID_STATE


def test_transactions_are_listed_and_described(cluster: BlockingCluster, at: TopicPartition) -> None:
    brokers = Brokers(cluster)
    name = f"{at.topic}/3/1/0.5"
    owner, _ = begin(brokers, name, at)
    assert brokers.answer(op.ListTransactions(at.topic)) == (op.Listed(name, owner.pid, op.TxnState.ONGOING),)
    assert brokers.answer(op.ListTransactions(at.topic[:-1])) == ()
    (described,) = brokers.answer(op.DescribeTransactions((name, f"{at.topic}/9/9/9.9")))
    assert described[:4] == (name, owner.pid, owner.epoch, op.TxnState.ONGOING)
    assert 0 < described.left_ms <= 60_000
    brokers.answer(op.EndTxn(owner, False))
    brokers.answer(op.AwaitEnded((owner,)))
    (after,) = brokers.answer(op.ListTransactions(at.topic))
    assert after.state is op.TxnState.COMPLETE


@pytest.mark.parametrize("newest", [2, 1])
def test_listing_returns_only_the_requested_ids(
    cluster: BlockingCluster, at: TopicPartition, monkeypatch: pytest.MonkeyPatch, newest: int
) -> None:
    """Brokers omit the rest, and since version 2 those of other prefixes, too: they keep the ids of a week."""
    brokers = Brokers(cluster)
    prefix = f"{at.topic}.a_b-c"
    ended, _ = begin(brokers, f"{prefix}/0/0/0.0", at)
    brokers.answer(op.EndTxn(ended, commit=True))
    brokers.answer(op.AwaitEnded((ended,)))
    opened, _ = begin(brokers, f"{prefix}/1/0/0.0", at)
    other, _ = begin(brokers, f"{at.topic}xa_b-c/0/0/0.0", at)
    listed: list[str] = []
    call, version_for = ClientConnection.call, ClientConnection.version_for

    async def recorded(self: ClientConnection, request: Any, *rest: Any, **more: Any) -> Any:
        response = await call(self, request, *rest, **more)
        if isinstance(response, ListTransactionsResponse):
            found = (each.transactional_id for each in response.transaction_states)
            listed.extend(each for each in found if each.startswith(at.topic))
        return response

    def older(self: ClientConnection, kind: type[Message]) -> int:
        return min(version_for(self, kind), newest) if kind is ListTransactionsRequest else version_for(self, kind)

    monkeypatch.setattr(ClientConnection, "version_for", older)
    monkeypatch.setattr(ClientConnection, "call", recorded)
    both = brokers.answer(op.ListTransactions(prefix))
    assert {t.id for t in both} == {ended.id, opened.id}
    assert set(listed) == {ended.id, opened.id} | ({other.id} if newest == 1 else set())
    listed.clear()
    assert [t.id for t in brokers.answer(op.ListTransactions(prefix, ongoing=True))] == [opened.id]
    assert set(listed) == {opened.id} | ({other.id} if newest == 1 else set())
    monkeypatch.undo()
    for owner in (opened, other):
        brokers.answer(op.EndTxn(owner, commit=False))


def test_marker_can_be_written_by_hand(cluster: BlockingCluster, at: TopicPartition) -> None:
    brokers = Brokers(cluster)
    owner, offset = begin(brokers, f"{at.topic}/0/0/0.0", at)
    quick = Brokers(cluster, marker_wait_ms=100)
    place = op.Place(at, owner.pid, offset)
    assert quick.answer(op.FindMarkers((place,))) == (op.Marker.MISSING,)
    assert brokers.answer(op.WriteTxnMarkers(at, owner.pid, owner.epoch, True)) is op.RequestOutcome.DONE
    assert brokers.answer(op.FindMarkers((place,))) == (op.Marker.COMMIT,)
    newer, _ = begin(brokers, owner.id, at)
    assert newer.epoch > owner.epoch
    assert brokers.answer(op.WriteTxnMarkers(at, owner.pid, owner.epoch, False)) is op.RequestOutcome.FENCED
    brokers.answer(op.EndTxn(newer, False))
    assert find_markers(cluster, (op.Place(TopicPartition(at.topic + "-no", 0), 1, 0),), 100) == (op.Marker.GONE,)


def decide(brokers: Brokers, at: TopicPartition, count: int) -> None:
    """Write the records of plans 0, 1, ..., each followed by its marker."""
    owner: Owner = brokers.answer(op.InitProducerId(at.topic, 60_000))
    for plan in range(count):
        produced: op.Produced = brokers.answer(op.Produce(owner, at, Record(plan=plan)))
        assert produced.outcome is op.RequestOutcome.DONE
        ended: op.Ended = brokers.answer(op.EndTxn(owner._replace(sequence=owner.sequence + 1), True))
        owner = ended.owner
        brokers.answer(op.FindMarkers((op.Place(at, owner.pid, produced.offset),)))


def test_decision_topic_is_read_from_its_end(cluster: BlockingCluster, name: str) -> None:
    ensure_decision_topic(cluster, name)
    ensure_decision_topic(cluster, name)
    at = TopicPartition(name, 0)
    brokers = Brokers(cluster)
    decide(brokers, at, 5)
    window: op.Window = brokers.answer(op.ReadDecisions(at))
    assert (window.end, window.stable, window.first) == (10, 10, False)
    assert len(window.messages) == 2, "the last record and its marker"
    earlier: op.Window = brokers.answer(op.ReadDecisions(at, window.start, width=64))
    assert earlier.first
    plans = [m.record.plan for m in (*earlier.messages, *window.messages) if m.record is not None]
    assert plans == list(range(5))
    since: op.Window = brokers.answer(op.ReadDecisions(at, since=6))
    assert (since.start, since.end, since.stable, since.first) == (6, 10, 10, False)
    assert [m.record.plan for m in since.messages if m.record is not None] == [3, 4]


SPANS = tuple(Span(TopicPartition("out", number), 7, 9) for number in range(40))
LARGE = Record(
    Source(STREAM, "q", 1), 2, 3, 9, False, tuple(TaskTransaction(Owner(f"p/{n}/0/0.0", n, 0), SPANS) for n in range(3))
)


def propose(brokers: Brokers, at: TopicPartition, record: Record, part_bytes: int) -> int:
    """Write this record in parts of so many bytes -> the number of its messages."""
    owner: Owner = brokers.answer(op.InitProducerId(at.topic, 60_000))
    sink = Sink(at.topic, at, part_bytes=part_bytes)
    after, place = run(propose_record(sink, owner, record), brokers)
    run(commit_record(sink, after), brokers)
    run(await_commit_marker(sink, place), brokers)
    return after.sequence


def test_large_record_is_written_and_read_in_parts(cluster: BlockingCluster, name: str) -> None:
    ensure_decision_topic(cluster, name)
    at, brokers = TopicPartition(name, 0), Brokers(cluster)
    assert propose(brokers, at, LARGE, 500_000) == 1
    assert propose(brokers, at, LARGE, 2_000) > 3
    decide(brokers, at, 1)
    assert propose(brokers, at, LARGE, 2_000) > 3
    window: op.Window = brokers.answer(op.ReadDecisions(at))
    head = run(read_record(Sink(name, at), window), brokers)
    assert head.transactions == ()
    assert run(read_parts(Sink(name, at), head), brokers) == LARGE
    whole: op.Window = brokers.answer(op.ReadDecisions(at, window.end, width=64))
    records = [m.record for m in whole.messages if m.record is not None]
    assert len(records) == 4, "parts are not records"


def test_decision_record_that_the_topic_rejects_is_too_large(
    server: Server, cluster: BlockingCluster, name: str
) -> None:
    ensure_decision_topic(cluster, name)
    at, brokers = TopicPartition(name, 0), Brokers(cluster)
    with Admin(server.bootstrap) as admin:
        admin.alter_configs("topic", name, {"max.message.bytes": "500"})
    with pytest.raises(NotDecidedError, match=r"max\.message\.bytes to at least 1000000"):
        propose(brokers, at, LARGE, 500_000)
    owner: Owner = brokers.answer(op.InitProducerId(name, 60_000))
    assert brokers.answer(op.Produce(owner, at, LARGE)) == op.Produced(op.RequestOutcome.TOO_LARGE)
    decide(brokers, at, 1)


def test_search_for_markers_in_many_partitions_sends_one_request_per_leader(
    server: Server, cluster: BlockingCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for a partition with more records than fit into one answer, too."""
    create(server.bootstrap, name, 40)
    brokers = Brokers(cluster)
    owner: Owner = brokers.answer(op.InitProducerId(f"{name}/0/0/0.0", 60_000))
    places = []
    for number in range(40):
        produced: op.Produced = brokers.answer(op.Produce(owner, TopicPartition(name, number), Record()))
        places.append(op.Place(TopicPartition(name, number), owner.pid, produced.offset))
    with Producer(server.bootstrap) as producer:
        for _ in range(12):
            producer.send(name, os.urandom(900_000), partition=7)
    brokers.answer(op.EndTxn(owner, commit=True))
    brokers.answer(op.AwaitEnded((owner,)))
    sent: list[str] = []
    call = ClientConnection.call

    def counting(self: ClientConnection, request: Any, *rest: Any, **more: Any) -> Any:
        sent.append(type(request).__name__)
        return call(self, request, *rest, **more)

    monkeypatch.setattr(ClientConnection, "call", counting)
    assert brokers.answer(op.FindMarkers(tuple(places))) == (op.Marker.COMMIT,) * 40
    assert sent.count("FetchRequest") <= 14
    sent.clear()
    quiet = tuple(place for place in places if place.at.partition != 7)
    assert brokers.answer(op.FindMarkers(quiet)) == (op.Marker.COMMIT,) * 39
    assert sent == ["FetchRequest"]
    ends: tuple[op.End, ...] = brokers.answer(op.FindEnds(tuple(place.at for place in places)))
    assert {end.topic_id for end in ends} == {str(cluster.topic(name).topic_id)}
    assert [end.offset for end in ends] == [14 if number == 7 else 2 for number in range(40)]


def test_decision_topic_with_deleted_records_is_read_from_its_start(
    server: Server, cluster: BlockingCluster, at: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic with retention.

    A Fetch answer contains the start offset; ListOffsets is sent only after a rejected Fetch.
    """
    brokers = Brokers(cluster)
    decide(brokers, at, 3)
    with Admin(server.bootstrap) as admin:
        admin.delete_records({tuple(at): 2})
    asked: list[int] = []
    looked_up = partitions.list_offsets

    def counting(cluster: BlockingCluster, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        asked.extend(wanted.values())
        return looked_up(cluster, wanted)

    monkeypatch.setattr(partitions, "list_offsets", counting)
    window: op.Window = brokers.answer(op.ReadDecisions(at, width=64))
    assert (window.start, window.end, window.first) == (2, 6, True)
    assert [m.record.plan for m in window.messages if m.record is not None] == [1, 2]
    assert asked == [LATEST, EARLIEST]
    window = brokers.answer(op.ReadDecisions(at, width=4))
    assert (window.start, window.first) == (2, True)
    window = brokers.answer(op.ReadDecisions(at, width=2))
    assert (window.start, window.first) == (4, False)
    assert asked[2:] == [LATEST, LATEST]


def test_settings_of_a_new_decision_topic_are_read_although_some_brokers_do_not_know_it(
    replicated_cluster: OncelogCluster, name: str
) -> None:
    with BlockingCluster(replicated_cluster.bootstrap) as cluster:
        for broker in (1, 2, 3):  # connect to all of them
            cluster.call_broker(broker, DescribeClusterRequest())
        for number in range(20):
            ensure_decision_topic(cluster, f"{name}-{number}")
            check_cleanup_policy(cluster, f"{name}-{number}")
