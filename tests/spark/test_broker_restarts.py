"""Kill and restart the broker at each request of the sink and of the source. No step may fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from oncelog import Admin, Producer
from oncelog.net.connection import ClientConnection
from oncelog.net.failures import ConnectionLostError
from oncelog.spark import faults
from oncelog.spark.reading.stream import StreamSource
from spark.judges import create
from spark.micro_batches import Query
from spark.test_sink_crashes import check
from support.broker_processes import BrokerProcesses

BEFORE, AFTER = "before the broker reads the request", "after it has answered"


class Restarted:
    """A broker process without a supervisor, which this test starts again at once after a kill."""

    def __init__(self, folder: Path) -> None:
        self._processes = BrokerProcesses(folder)
        self._processes.start(1)
        self.bootstrap = f"127.0.0.1:{self._processes.ports[1]}"

    def kill(self) -> None:
        """Kill the broker with SIGKILL, and wait until it serves again at the same address."""
        self._processes.kill(1)
        self._processes.start(1)

    def stop(self) -> None:
        """Stop the broker cleanly."""
        assert self._processes.stop(1) == 0


class Kills:
    """While armed, kill the server once at each combination of step and request kind.

    A step is a program of the sink or a call of the source.
    """

    def __init__(self, server: Restarted, moment: str, patch: pytest.MonkeyPatch) -> None:
        self.server, self.moment = server, moment
        self.step = ""
        self.done: set[tuple[str, str]] = set()
        call, enter = ClientConnection.call, faults.enter

        async def killing(connection: ClientConnection, request: Any, *rest: Any, **more: Any) -> Any:
            key = (self.step, type(request).__name__.removesuffix("Request"))
            if not self.step or key in self.done:
                return await call(connection, request, *rest, **more)
            self.done.add(key)
            if self.moment == BEFORE:
                self.server.kill()
                return await call(connection, request, *rest, **more)
            await call(connection, request, *rest, **more)
            self.server.kill()
            raise ConnectionLostError("the broker was killed before its answer arrived")

        def entered(program: str) -> None:
            self.step = program
            enter(program)

        patch.setattr(ClientConnection, "call", killing)
        patch.setattr(faults, "enter", entered)


@pytest.fixture
def start_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Kills]]:
    """Kill the server at one moment of each request."""
    server = Restarted(tmp_path)
    yield lambda moment: Kills(server, moment, monkeypatch)
    server.stop()


def set_level(server: Restarted, level: int) -> None:
    with Admin(server.bootstrap) as admin:
        if {each.name: each.level for each in admin.describe_features()}["transaction.version"] != level:
            admin.update_features({"transaction.version": level}, "unsafe_downgrade")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("moment", "level"), [(BEFORE, 2), (AFTER, 2), (AFTER, 0)])
def test_sink_survives_a_broker_kill_at_any_request(
    start_kills: Callable[[str], Kills], name: str, tmp_path: Path, moment: str, level: int
) -> None:
    kills = start_kills(moment)
    create(kills.server.bootstrap, name)
    set_level(kills.server, level)
    query = Query(kills.server.bootstrap, name, f"sink-{name}", tmp_path / "checkpoint", 6)
    query.run(3)
    kills.step = ""
    print(f"killed at {len(kills.done)} requests: {sorted(kills.done)}")
    for wanted in (("plan", "EndTxn"), ("task", "InitProducerId"), ("task", "Produce"), ("commit", "EndTxn")):
        assert wanted in kills.done
    check(query, 3)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("moment", [BEFORE, AFTER])
def test_source_survives_a_broker_kill_at_any_request(
    start_kills: Callable[[str], Kills], name: str, moment: str
) -> None:
    kills = start_kills(moment)
    create(kills.server.bootstrap, name)
    given = {"kafka.bootstrap.servers": kills.server.bootstrap, "subscribe": name, "startingOffsets": "earliest"}
    made = StreamSource(given)
    kills.step = "initialOffset"
    start = made.initialOffset()
    seen: list[str] = []
    for batch in range(2):
        kills.step = ""
        values = [f"{batch}-{row}" for row in range(100)]
        with Producer(kills.server.bootstrap) as producer:
            producer.send_table(name, pa.table({"value": values})).result(30)
        kills.step = "latestOffset"
        end = made.latestOffset(start, ReadAllAvailable())
        kills.step = "partitions"
        parts = made.partitions(start, end)
        kills.step = "read"
        for part in parts:
            for rows in made.read(part):
                seen += [value.decode() for value in rows.column("value").to_pylist()]
        start = end
    made.stop()
    print(f"killed at {len(kills.done)} requests: {sorted(kills.done)}")
    assert {("latestOffset", "ListOffsets"), ("read", "Fetch")} <= kills.done
    assert sorted(seen) == sorted(f"{batch}-{row}" for batch in range(2) for row in range(100))
