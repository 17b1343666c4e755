"""A real Prometheus reads three brokers: the board's queries find series, and each alert fires at a real fault."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog import Admin, Consumer, Producer
from oncelog.broker.metrics import alerts, board
from oncelog.broker.metrics.catalog import catalog
from support.foreign_boards import ABSENT, EXPORTER, STRIMZI, STRIMZI_LABELS, Query
from support.processes import wait_until
from support.prometheus import JOB, Prometheus, promtool
from support.servers import OncelogCluster, ReplicatedCluster

TOPIC, SPREAD, BLOCKED = "orders", "spread", "blocked"
GROUP = "billing"
RECORDS = 30
DAY_MS = 86_400_000
SERVED = re.compile(r"\[Broker id=(\d+)\].* serving metrics at http://127\.0\.0\.1:(\d+)/metrics")


class Watched:
    """Brokers and the Prometheus that reads them. The alerts do not wait."""

    def __init__(self, cluster: OncelogCluster, directory: Path) -> None:
        self.cluster = cluster
        found = dict(SERVED.findall(cluster.process.stderr_path.read_text()))
        rules = directory / "rules.yml"
        text = alerts.as_yaml(alerts.RULES)
        rules.write_text(re.sub(r"(?m)^( +for: ).*$", r"\g<1>0s", text))
        ports = [int(found[number]) for number in sorted(found)]
        self.prometheus = Prometheus(directory / "prometheus", ports, rules, STRIMZI_LABELS)

    def wait_for_alert(self, name: str) -> None:
        wait_until(lambda: name in self.prometheus.firing(), f"{name} fires")

    def wait_for_silence(self, *names: str) -> None:
        wait_until(lambda: not set(names) & set(self.prometheus.firing()), f"{names} do not fire any more")

    def stop(self) -> None:
        self.prometheus.stop()
        self.cluster.stop()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("prometheus")
    cluster = ReplicatedCluster(
        folder, settings={"broker.session.timeout.ms": "2000"}, arguments=("--metrics-port", "0")
    )
    try:
        _traffic(cluster.bootstrap)
        watched = Watched(cluster, folder)
    except BaseException:
        cluster.stop()
        raise
    yield watched
    watched.stop()


def _traffic(bootstrap: str) -> None:
    """Let each kind of client do something, so that each metric has a series."""
    with Admin(bootstrap) as admin:
        admin.create_topics(TOPIC, partitions=3, configs={"min.insync.replicas": "3"})
        admin.create_topics(SPREAD, partitions=6, replication_factor=1)
    _records(bootstrap)
    with Consumer(bootstrap, group_id=GROUP, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([TOPIC])
        read: list[object] = []
        wait_until(lambda: len(read) == RECORDS or bool(read.extend(consumer.poll(0.2))), "all records are read")
        consumer.commit()


def _records(bootstrap: str) -> None:
    with Producer(bootstrap, transactional_id="etl") as producer, producer.transaction() as transaction:
        for number in range(RECORDS):
            transaction.send(TOPIC, str(number), partition=number % 3)
            transaction.send(SPREAD, str(number), partition=number % 6)


def _selector(query: Query) -> str:
    matchers = ",".join(f'{label}!=""' for label in query.labels)
    series = f"{query.metric}{{{matchers}}}"
    return f"rate({series}[1m])" if query.rate else series


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.yml"
    path.write_text(alerts.as_yaml(alerts.RULES))
    promtool("check", "rules", "--lint-fatal", path)


OTHERS = {"oncelog_sink_decision_pending", "oncelog_client_info"}
"""Metrics without series here. `tests/clients/test_broker_metrics.py` has a sink, `test_client_metrics.py` clients that
push."""


@pytest.mark.parametrize(
    "query",
    [each for each in board.queries() if not OTHERS & alerts.metrics_of(each.expression)],
    ids=lambda query: query.expression[:60],
)
def test_query_of_the_board_finds_series(three: Watched, query: board.Query) -> None:
    text = query.expression.replace("$job", JOB).replace("$topic", ".+").replace(board.RATE, "1m")
    wait_until(lambda: three.prometheus.query(text), f"{text} finds series")
    labels = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
    for series in three.prometheus.query(text):
        assert labels <= series["metric"].keys()


@pytest.mark.parametrize("query", [*EXPORTER, *STRIMZI], ids=lambda query: query.metric)
def test_query_of_another_board_finds_series(three: Watched, query: Query) -> None:
    """Or the reason is known why it does not."""
    if query.metric in {each.name for each in catalog()}:
        wait_until(lambda: three.prometheus.query(_selector(query)), f"{_selector(query)} finds series")
    else:
        assert ABSENT[query.metric]
        assert not three.prometheus.query(query.metric)


def test_no_alert_fires_while_the_cluster_is_healthy(three: Watched) -> None:
    wait_until(lambda: three.prometheus.query("count(up == 1) == 3"), "all brokers are read")
    three.wait_for_silence(*(rule.name for rule in alerts.RULES))


def test_transaction_that_hangs_fires_two_alerts(three: Watched) -> None:
    with Admin(three.cluster.bootstrap) as admin:
        admin.create_topics(BLOCKED)
    with Producer(three.cluster.bootstrap, transactional_id="stuck") as producer:
        producer.begin_transaction()
        producer.send(BLOCKED, "x", timestamp=int(time.time() * 1000) - DAY_MS).result(30)
        three.wait_for_alert("OncelogHangingTransaction")
        three.wait_for_alert("OncelogLastStableOffsetStuck")
        stuck = three.prometheus.firing()["OncelogLastStableOffsetStuck"]
        assert f"`oncelog topic describe {BLOCKED}`" in stuck["annotations"]["description"]
        producer.abort_transaction()
    three.wait_for_silence("OncelogHangingTransaction", "OncelogLastStableOffsetStuck")


def test_paused_broker_of_three_fires_alerts_until_it_continues(three: Watched) -> None:
    pid = three.cluster.broker_pid(3)
    lost = ("OncelogBrokerDown", "OncelogUnderReplicated", "OncelogUnderMinIsr", "OncelogPartitionOffline")
    os.kill(pid, signal.SIGSTOP)
    try:
        for name in lost:
            three.wait_for_alert(name)
    finally:
        os.kill(pid, signal.SIGCONT)
    three.wait_for_alert("OncelogEventLoopDelayed")
    three.wait_for_silence(*lost)


def test_broker_with_few_descriptors_left_fires_an_alert(three: Watched) -> None:
    pid = three.cluster.broker_pid(1)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = len(os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 10, before[1]))
    try:
        three.wait_for_alert("OncelogFewFileDescriptors")
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    three.wait_for_silence("OncelogFewFileDescriptors")


def test_log_directory_that_fails_fires_an_alert(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    cluster = OncelogCluster(
        tmp_path, settings={"log.dirs": ",".join(map(str, folders))}, arguments=("--metrics-port", "0")
    )
    try:
        watched = Watched(cluster, tmp_path)
    except BaseException:
        cluster.stop()
        raise
    try:
        shutil.rmtree(folders[1])
        watched.wait_for_alert("OncelogLogDirectoryOffline")
    finally:
        watched.stop()
