"""Two live queries with one prefix: the second is rejected before it has fenced the first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oncelog.spark.cluster.brokers import Brokers
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import AnotherDriverError, MisuseError, NotDecidedError
from oncelog.spark.commit.ownership import is_another
from oncelog.spark.commit.record import STREAM, Source
from oncelog.spark.writing.checkpoint import query_id
from oncelog.spark.writing.driver import look, settle
from oncelog.spark.writing.options import sink_options
from spark.judges import create, values
from spark.micro_batches import Query
from spark.test_sink_crashes import check
from support.servers import Server


def checkpoint_of(folder: Path, name: str) -> Path:
    """Create a checkpoint in the state in which Spark starts it."""
    folder.mkdir()
    (folder / "metadata").write_text(json.dumps({"id": name}))
    return folder


@pytest.fixture
def query(server: Server, name: str, tmp_path: Path) -> Query:
    create(server.bootstrap, name)
    return Query(server.bootstrap, name, f"sink-{name}", tmp_path / "checkpoint", 6)


@pytest.fixture(params=["id", "checkpointLocation"])
def pair(request: pytest.FixtureRequest, query: Query, tmp_path: Path) -> tuple[Query, Query]:
    """Return a query and another with its prefix. A plan knows their ids, or only that their checkpoints differ."""
    other = Query(query.bootstrap, query.topic, query.prefix, tmp_path / "other-commits", 6)
    other.query = "another-query"
    for number, each in enumerate((query, other)):
        where = f"s3://bucket/{number}"
        if request.param == "id":
            where = f"file:{checkpoint_of(tmp_path / str(number), each.query)}"
        each.options["checkpointlocation"] = where
    return query, other


def tasks(query: Query, plan: bytes, batch: int) -> list[object]:
    return [query.task(plan, batch, slot, rows) for slot, rows in enumerate(query.values(batch, 2))]


@pytest.mark.parametrize("batch", [0, 2])
def test_second_query_is_rejected_and_the_first_continues(pair: tuple[Query, Query], batch: int) -> None:
    first, second = pair
    first.run(batch)
    messages = tasks(first, first.plan(), batch)
    where = first.options["checkpointlocation"]
    with pytest.raises(MisuseError, match=f"transactionalIdPrefix={first.prefix}: .*{where}"):
        second.plan()
    first.commit(messages, batch)
    first.log(batch)
    with pytest.raises(MisuseError, match=rf"belongs to stream '{first.query}'.* \(last batch {batch}\)"):
        second.plan()
    first.run(batch + 2)
    check(first, batch + 2)


def test_second_query_is_rejected_as_soon_as_the_first_has_planned(pair: tuple[Query, Query]) -> None:
    """Before its first task has written, nothing is open, and nothing was ever committed."""
    first, second = pair
    plan = first.plan()
    for _ in range(2):
        with pytest.raises(
            MisuseError, match=f"has planned its first batch with the prefix.*oncelog sink settle {first.prefix}"
        ):
            second.plan()
    first.commit(tasks(first, plan, 0), 0)
    first.log(0)
    first.run(2)
    check(first, 2)


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_previous_owner_is_rejected_whenever_the_new_one_commits(
    pair: tuple[Query, Query], looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan of the previous owner reads open transactions, then the record.

    The new one commits after `looks` of the two reads.
    """
    former, taker = pair
    former.run(1)
    taker.options["takeOver"] = "true"
    messages = tasks(taker, taker.plan(), 0)
    answer, seen = Brokers.answer, []

    def watched(self: Brokers, operation: op.Operation) -> object:
        if isinstance(operation, op.ListTransactions | op.ReadDecisions):
            seen.append(operation)
            if len(seen) == looks + 1:
                monkeypatch.undo()
                taker.commit(messages, 0)
        return answer(self, operation)

    monkeypatch.setattr(Brokers, "answer", watched)
    with pytest.raises(MisuseError, match=f"transactionalIdPrefix={former.prefix}"):
        former.plan()
    if looks == 2:
        monkeypatch.undo()
        taker.commit(messages, 0)
    seen_twice = dict.fromkeys(former.values(0, 1)[0], 2)
    assert values(former.bootstrap, former.topic) == seen_twice, "two queries, a batch each"


@pytest.mark.parametrize("way", ["settle", "takeOver"])
def test_query_that_died_before_its_first_task_can_be_replaced(pair: tuple[Query, Query], way: str) -> None:
    dead, other = pair
    dead.plan()
    if way == "settle":
        settle(sink_options(dead.options, streaming=True))
    else:
        other.options["takeOver"] = "true"
    other.batch(0)
    assert set(values(other.bootstrap, other.topic).values()) == {1}


def test_query_is_recognized_in_its_own_checkpoint(query: Query, tmp_path: Path) -> None:
    """The query's id may become readable later, or become unreadable. A trailing slash does not change the folder."""
    folder = tmp_path / "own"
    query.options["checkpointlocation"] = str(folder)
    query.plan()
    checkpoint_of(folder, query.query)
    query.plan()
    (folder / "metadata").unlink()
    query.options["checkpointlocation"] = f"{folder}/"
    query.run(1)
    query.plan()
    checked = Source(STREAM, "", -1, "s3://bucket/own/")
    assert not is_another(checked, checked._replace(query="q", checkpoint="s3://bucket/own"))
    check(query, 1)


def test_error_says_what_to_do_if_both_are_the_same_query(query: Query) -> None:
    query.options["checkpointlocation"] = "s3://bucket/own"
    query.plan()
    query.options["checkpointlocation"] = "s3a://bucket/own"
    with pytest.raises(MisuseError, match="with its checkpointLocation spelled differently, set takeOver=true"):
        query.plan()
    query.options["checkpointlocation"] = "s3://bucket/own"
    query.run(1)
    query.options["checkpointlocation"] = "s3a://bucket/own"
    with pytest.raises(MisuseError, match="with its checkpointLocation spelled differently, set takeOver=true"):
        query.plan()
    query.options["takeOver"] = "true"
    query.run(2)
    check(query, 2)


def test_successor_can_take_over_during_a_batch(pair: tuple[Query, Query]) -> None:
    query, _ = pair
    query.run(1)
    messages = tasks(query, query.plan(), 1)
    query.run(2)
    with pytest.raises((AnotherDriverError, NotDecidedError)):
        query.commit(messages, 1)
    check(query, 2)


def test_query_that_died_in_its_first_batch_can_be_replaced(pair: tuple[Query, Query]) -> None:
    """The query committed nothing. Its transactions time out, or an operator ends them, or another query takes over."""
    dead, other = pair
    tasks(dead, dead.plan(), 0)
    with pytest.raises(MisuseError, match=f"oncelog sink settle {dead.prefix}"):
        other.plan()
    settle(sink_options(dead.options, streaming=True))
    other.batch(0)
    assert set(values(other.bootstrap, other.topic).values()) == {1}


def test_query_continues_after_its_checkpoint_moves(query: Query, tmp_path: Path) -> None:
    query.options["checkpointlocation"] = str(checkpoint_of(tmp_path / "before", query.query))
    query.run(1)
    query.options["checkpointlocation"] = str(checkpoint_of(tmp_path / "after", query.query))
    query.run(2)
    query.options["checkpointlocation"] = "s3://bucket/elsewhere"
    with pytest.raises(MisuseError, match="takeOver=true"):
        query.plan()
    query.options["takeOver"] = "true"
    query.run(3)
    check(query, 3)
    assert look(sink_options(query.options, streaming=True))[0].source.checkpoint == "s3://bucket/elsewhere"


def test_query_id_is_read_from_the_checkpoint(tmp_path: Path) -> None:
    known = str(checkpoint_of(tmp_path / "known", "its-id"))
    assert [query_id(f"{scheme}{known}") for scheme in ("", "file:", "file://")] == ["its-id"] * 3
    for unreadable in ("", str(tmp_path), "hdfs://node:8020/known", f"s3:{known}", "C:known"):
        assert query_id(unreadable) == ""
    (tmp_path / "known" / "metadata").write_text("[]")
    assert query_id(known) == ""
