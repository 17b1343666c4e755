"""Two queries that live under one prefix: the second is refused before it has fenced the first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oncelog.spark.commit.errors import AnotherDriverError, MisuseError, NotDecidedError
from oncelog.spark.driver import look, query_id, settle
from oncelog.spark.options import sink_options
from spark.judges import create, values
from spark.micro_batches import Query
from spark.test_sink_crashes import check
from support.servers import Server


def checkpoint_of(folder: Path, name: str) -> Path:
    """A checkpoint as Spark begins one."""
    folder.mkdir()
    (folder / "metadata").write_text(json.dumps({"id": name}))
    return folder


@pytest.fixture
def query(server: Server, name: str, tmp_path: Path) -> Query:
    create(server.bootstrap, name)
    return Query(server.bootstrap, name, f"sink-{name}", tmp_path / "checkpoint", 6)


@pytest.fixture(params=["id", "checkpointLocation"])
def pair(request: pytest.FixtureRequest, query: Query, tmp_path: Path) -> tuple[Query, Query]:
    """A query and another under its prefix; a plan knows their ids, or only that their checkpoints are two."""
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
def test_the_second_is_refused_and_the_first_goes_on(pair: tuple[Query, Query], batch: int) -> None:
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


def test_a_successor_takes_over_in_the_middle(pair: tuple[Query, Query]) -> None:
    query, _ = pair
    query.run(1)
    messages = tasks(query, query.plan(), 1)
    query.run(2)
    with pytest.raises((AnotherDriverError, NotDecidedError)):
        query.commit(messages, 1)
    check(query, 2)


def test_who_died_in_its_first_batch_makes_way(pair: tuple[Query, Query]) -> None:
    """Nothing of it was committed: what it left open is waited for, ended by an operator, or taken over."""
    dead, other = pair
    tasks(dead, dead.plan(), 0)
    with pytest.raises(MisuseError, match=f"oncelog sink settle {dead.prefix}"):
        other.plan()
    settle(sink_options(dead.options, streaming=True))
    other.batch(0)
    assert set(values(other.bootstrap, other.topic).values()) == {1}


def test_a_moved_checkpoint_goes_on(query: Query, tmp_path: Path) -> None:
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


def test_where_a_querys_id_is_looked_for(tmp_path: Path) -> None:
    known = str(checkpoint_of(tmp_path / "known", "its-id"))
    assert [query_id(f"{scheme}{known}") for scheme in ("", "file:", "file://")] == ["its-id"] * 3
    for unreadable in ("", str(tmp_path), "hdfs://node:8020/known", f"s3:{known}", "C:known"):
        assert query_id(unreadable) == ""
    (tmp_path / "known" / "metadata").write_text("[]")
    assert query_id(known) == ""
