"""Source and sink with formats: driver, executor, worker and broker are killed, and no row is lost or written twice."""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.client.serialization.functions import SerializationContext
from oncelog.formats import Avro, Json
from oncelog.serialization import AvroDeserializer, SchemaRegistry
from oncelog.testing.registry import SchemaRegistryDouble
from spark.chaos import judge
from spark.chaos.run import Plan, Run
from spark.judges import create, open_producers, values
from spark.micro_batches import Query, Starter
from support.history import check_once
from support.servers import Server

ROWS = 6
LAST_OPERATION = {"plan": 5, "task": 2, "commit": 7}
"""Operations of each program before which a driver is killed."""


def schema_of(name: str, kind: str) -> str:
    """Return the JSON of a record with one field."""
    return json.dumps({"type": "record", "name": "Row", "fields": [{"name": name, "type": kind}]})


def reader(registry: SchemaRegistryDouble, name: str) -> Callable[[bytes], Any]:
    """Return a function that reads a field of a value as Avro."""
    read = AvroDeserializer(SchemaRegistry(registry.url))
    return lambda value: read(value, SerializationContext("out", "value"))[name]


def typed(kind: str, registry: SchemaRegistryDouble, name: str, of: str) -> tuple[dict[str, str], Callable[..., Any]]:
    """Return options of source and sink for values with one field, and what reads that field."""
    if kind == "json":
        return {"valueFormat": "json", "valueSchema": f"{name} {of}"}, lambda value: json.loads(value)[name]
    schema = schema_of(name, {"bigint": "long"}.get(of, of))
    options = {"valueFormat": "avro", "valueSchema": schema, "autoRegister": "true"}
    return {**options, "schemaRegistryUrl": registry.url}, reader(registry, name)


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    with Starter() as made:
        yield made


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_typed_sink_killed_before_operations_and_restarted(
    server: Server, registry: SchemaRegistryDouble, starter: Starter, name: str, tmp_path: Path, kind: str
) -> None:
    create(server.bootstrap, name)
    options, read = typed(kind, registry, "row", "string")
    query = Query(server.bootstrap, name, f"sink-{name}", tmp_path / "checkpoint", ROWS, **options)
    until, killed = 1, []
    assert starter.run(query, until) == 0
    for program, last in LAST_OPERATION.items():
        for number in range(0, last + 1, 2):
            until += 1
            status = starter.run(query, until, f"{program}:{number}:{tmp_path / f'{program}-{number}'}")
            if status == -signal.SIGKILL:
                killed.append((program, number))
                assert starter.run(query, until) == 0
            wanted = {value for batch in range(until) for value in query.values(batch, 1)[0]}
            check_once(wanted, values(query.bootstrap, name, read))
            assert not open_producers(query.bootstrap, name, f"{query.prefix}-commits")
    assert {program for program, _ in killed} == set(LAST_OPERATION)


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_replay_of_a_typed_batch_writes_the_same_bytes(
    server: Server, registry: SchemaRegistryDouble, name: str, tmp_path: Path, kind: str
) -> None:
    """The first driver writes all rows, but dies before its commit. The second one replays the batch."""
    create(server.bootstrap, name, 1)
    options, _ = typed(kind, registry, "row", "string")
    query = Query(server.bootstrap, name, f"sink-{name}", tmp_path / "checkpoint", ROWS, **options)
    written: list[set[bytes]] = []
    for _ in range(2):
        query.task(query.plan(), 0, 0, query.values(0, 1)[0])
        written.append(set(every(server.bootstrap, name)))
    query.run(1)
    assert len(written[0]) == ROWS
    assert written[1] == written[0]
    check_once(written[0], values(server.bootstrap, name, bytes))  # type: ignore[arg-type]


def every(bootstrap: str, topic: str) -> list[bytes]:
    """Return all values, also those of open and aborted transactions."""
    from oncelog import Consumer

    with Consumer(bootstrap, isolation_level="read_uncommitted") as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        found: list[bytes] = []
        while consumer.position(topic, 0) < consumer.end_offsets([(topic, 0)])[topic, 0]:
            found += [record.value for record in consumer.poll(1)]
        return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("kind", "master", "faults"),
    [
        ("json", "local[2,4]", ("python", "broker")),
        ("avro", "local-cluster[2,1,1024]", ("driver", "executor", "broker")),
    ],
    ids=["json", "avro"],
)
def test_typed_pipeline_loses_and_duplicates_nothing(
    registry: SchemaRegistryDouble, tmp_path: Path, kind: str, master: str, faults: tuple[str, ...]
) -> None:
    import pyarrow as pa

    seed = int(os.environ.get("ONCELOG_CHAOS_SEED") or secrets.randbelow(10_000))
    print(f"ONCELOG_CHAOS_SEED={seed}")
    options, read = typed(kind, registry, "number", "bigint")
    form: Any = Json(pa.schema([("number", pa.int64())]))
    if kind == "avro":
        number = registry.add("in-value", {"schema": options["valueSchema"]})
        form = Avro(options["valueSchema"], schema_id=number)
    encoded = judge.Values(options, form, read)
    plan = Plan("oncelog", master, "oncelog", rounds=len(faults), records=6_000, seed=seed, only=faults, values=encoded)
    with Run(plan, tmp_path, print) as run:
        counted = run.go()
        assert run.killed
    assert counted == (6_000, 6_000, 0, 0, 0)
