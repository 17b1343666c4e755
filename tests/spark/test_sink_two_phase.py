"""The sink with two-phase commit (KIP-939): no timeout tears a batch, however long its driver is away."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from oncelog.cli.sink import sink as command
from oncelog.client.blocking import BlockingCluster
from oncelog.spark.cluster.brokers import Brokers
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.commit.names import Attempt, task_id
from spark.judges import create, open_producers
from spark.micro_batches import Query, Starter
from spark.test_sink_crashes import check
from support.servers import OncelogCluster, Server
from support.transactions import TWO_PHASE_SETTINGS, describe, pass_timeout
from support.wire import Wire

TIMEOUT_MS = 3_000


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    with Starter() as made:
        yield made


@pytest.fixture(scope="module")
def two_phase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OncelogCluster]:
    made = OncelogCluster(tmp_path_factory.mktemp("two-phase"), settings=TWO_PHASE_SETTINGS)
    yield made
    made.stop()


def query_on(bootstrap: str, name: str, folder: Path, **options: str) -> Query:
    create(bootstrap, name)
    timeout = {"kafka.transaction.timeout.ms": str(TIMEOUT_MS)}
    return Query(bootstrap, name, f"sink-{name}", folder / "checkpoint", 6, **timeout, **options)


@pytest.fixture
def query(two_phase: OncelogCluster, name: str, tmp_path: Path) -> Query:
    return query_on(two_phase.bootstrap, name, tmp_path)


def let_the_timeout_pass(bootstrap: str, name: str) -> None:
    """Return when the timeout of the tasks has passed since now."""
    with Wire(bootstrap) as wire:
        pass_timeout(wire, name, TIMEOUT_MS)


@pytest.mark.parametrize("step", [5, 6, 7, 8, 9, 10])
def test_driver_returns_after_the_timeout(query: Query, starter: Starter, name: str, step: int) -> None:
    """It is killed before, during and after its decision, and the broker, too."""
    query.run(1)
    assert starter.run(query, 2, f"commit:{step}") == -signal.SIGKILL
    let_the_timeout_pass(query.bootstrap, name)
    query.run(3)
    check(query, 3)
    assert not open_producers(query.bootstrap, query.topic)


def test_broker_dies_while_a_decided_batch_waits(
    two_phase: OncelogCluster, query: Query, starter: Starter, name: str
) -> None:
    query.run(1)
    assert starter.run(query, 2, "commit:7") == -signal.SIGKILL
    two_phase.kill()
    two_phase.wait_ready()
    let_the_timeout_pass(query.bootstrap, name)
    query.run(3)
    check(query, 3)


def test_undecided_batch_waits_for_the_next_plan_or_an_operator(query: Query, starter: Starter, name: str) -> None:
    assert starter.run(query, 1, "commit:0") == -signal.SIGKILL
    let_the_timeout_pass(query.bootstrap, name)
    assert open_producers(query.bootstrap, query.topic)
    settled = CliRunner().invoke(command, ["settle", query.prefix, "-b", query.bootstrap])
    assert settled.exit_code == 0, settled.output
    assert not open_producers(query.bootstrap, query.topic)
    query.run(2)
    check(query, 2)


def timeout_of_a_task(query: Query) -> int:
    """Plan a batch, write the rows of one task, and return the timeout of its transaction."""
    plan = query.plan()
    query.task(plan, 0, 0, query.values(0, 2)[0])
    with BlockingCluster(query.bootstrap) as cluster:
        (found,) = Brokers(cluster).answer(op.ListTransactions(query.prefix, ongoing=True))
    with Wire(query.bootstrap) as wire:
        timeout: int = describe(wire, found.id).transaction_timeout_ms
    return timeout


def test_usual_transactions_on_request(two_phase: OncelogCluster, name: str, tmp_path: Path) -> None:
    query = query_on(two_phase.bootstrap, name, tmp_path, twoPhaseCommit="false")
    assert timeout_of_a_task(query) == TIMEOUT_MS


def test_server_without_two_phase_commit(server: Server, name: str, tmp_path: Path) -> None:
    """Apache Kafka does not serve it, and oncelog's broker needs a setting."""
    query = query_on(server.bootstrap, name, tmp_path)
    assert timeout_of_a_task(query) == TIMEOUT_MS
    query.options["twoPhaseCommit"] = "true"
    with pytest.raises(MisuseError, match="option twoPhaseCommit=true: the broker does not permit"):
        query.plan()


def test_coordinator_that_refuses_it_gets_a_usual_transaction(start_server: Callable[..., Server], name: str) -> None:
    """The plan may have asked another broker, or the setting was disabled meanwhile."""
    bootstrap = start_server({}).bootstrap
    transactional_id = task_id(f"sink-{name}", 1, Attempt(0, 0, 0), 0)
    with BlockingCluster(bootstrap) as cluster:
        begin = op.InitProducerId(transactional_id, TIMEOUT_MS, once=True, two_phase=True)
        owner = Brokers(cluster).answer(begin)
    with Wire(bootstrap) as wire:
        found = describe(wire, transactional_id)
    assert (found.producer_id, found.producer_epoch) == (owner.pid, owner.epoch)
    assert found.transaction_timeout_ms == TIMEOUT_MS
