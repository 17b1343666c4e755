"""Prometheus's `promtool` evaluates each alert on made-up series: it fires in time at a fault, and not otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from oncelog.broker.metrics import alerts
from support.prometheus import promtool

MINUTES = 90
_GROUP = 'consumergroup="billing",topic="orders",partition="0"'
_PARTITION = 'topic="orders",partition="0"'


class Case(NamedTuple):
    """Series at a fault and without one, in promtool's notation: a value for each minute."""

    bad: dict[str, str]
    good: dict[str, str]
    after: int
    """Minutes after which the alert fires at the latest."""


def _gauge(name: str, labels: str = "") -> Case:
    series = f"{name}{{{labels}}}"
    return Case({series: f"1x{MINUTES}"}, {series: f"0x{MINUTES}"}, 20)


_LEADERS = "kafka_server_replicamanager_leadercount"
_ACTIVE = "kafka_controller_kafkacontroller_activecontrollercount"
_END, _DISTANCE = "kafka_topic_partition_current_offset", "oncelog_partition_unstable_offsets"
_LAG, _COMMITTED = "kafka_consumergroup_lag", "kafka_consumergroup_current_offset"

CASES: dict[str, Case] = {
    "OncelogBrokerDown": Case(
        {"up": f"1x9 0x{MINUTES}", _LEADERS: "5x9"},
        {"up": f"1x{MINUTES}", _LEADERS: f"5x{MINUTES}"},
        20,
    ),
    "OncelogNoController": Case(
        {f'{_ACTIVE}{{broker="1"}}': f"0x{MINUTES}", f'{_ACTIVE}{{broker="2"}}': f"0x{MINUTES}"},
        {f'{_ACTIVE}{{broker="1"}}': f"0x{MINUTES}", f'{_ACTIVE}{{broker="2"}}': f"1x{MINUTES}"},
        5,
    ),
    "OncelogPartitionOffline": _gauge("kafka_controller_kafkacontroller_offlinepartitionscount"),
    "OncelogUnderMinIsr": _gauge("kafka_server_replicamanager_underminisrpartitioncount"),
    "OncelogUnderReplicated": _gauge("kafka_server_replicamanager_underreplicatedpartitions"),
    "OncelogLogDirectoryOffline": _gauge("kafka_log_logmanager_offlinelogdirectorycount"),
    "OncelogHangingTransaction": _gauge("kafka_server_replicamanager_partitionswithlatetransactionscount"),
    "OncelogLastStableOffsetStuck": Case(
        {f"{_END}{{{_PARTITION}}}": f"100+1x{MINUTES}", f"{_DISTANCE}{{{_PARTITION}}}": f"5+1x{MINUTES}"},
        {f"{_END}{{{_PARTITION}}}": f"100+1x{MINUTES}", f"{_DISTANCE}{{{_PARTITION}}}": f"5x{MINUTES}"},
        21,
    ),
    "OncelogSinkNotSettled": _gauge("oncelog_sink_decision_pending"),
    "OncelogGroupStuck": Case(
        {f"{_LAG}{{{_GROUP}}}": f"0+1x{MINUTES}", f"{_COMMITTED}{{{_GROUP}}}": f"7x{MINUTES}"},
        {f"{_LAG}{{{_GROUP}}}": f"10x{MINUTES}", f"{_COMMITTED}{{{_GROUP}}}": f"7+5x{MINUTES}"},
        35,
    ),
    "OncelogGroupFallsBehind": Case(
        {f"{_LAG}{{{_GROUP}}}": f"2000+100x{MINUTES}"},
        {f"{_LAG}{{{_GROUP}}}": f"90000-10x{MINUTES}"},
        65,
    ),
    "OncelogCoordinatorFailed": _gauge("kafka_server_group_coordinator_metrics_num_partitions", 'state="failed"'),
    "OncelogEventLoopDelayed": Case(
        {"oncelog_event_loop_delay_seconds": f"3x{MINUTES}"}, {"oncelog_event_loop_delay_seconds": f"0.2x{MINUTES}"}, 10
    ),
    "OncelogFewFileDescriptors": Case(
        {"process_open_fds": f"900x{MINUTES}", "process_max_fds": f"1000x{MINUTES}", _LEADERS: f"1x{MINUTES}"},
        {"process_open_fds": f"700x{MINUTES}", "process_max_fds": f"1000x{MINUTES}", _LEADERS: f"1x{MINUTES}"},
        10,
    ),
}


def test_each_alert_has_a_case() -> None:
    assert CASES.keys() == {rule.name for rule in alerts.RULES}


def _series(values: dict[str, str]) -> list[dict[str, str]]:
    """Add the labels that Prometheus adds to what it has read."""
    found = []
    for series, numbers in values.items():
        name, _, labels = series.partition("{")
        joined = ",".join(filter(None, ('job="oncelog",instance="a:1"', labels.removesuffix("}"))))
        found.append({"series": f"{name}{{{joined}}}", "values": numbers})
    return found


def _test(name: str, values: dict[str, str], minute: int, *, fires: bool) -> dict[str, object]:
    expression = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
    samples = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "interval": "1m",
        "input_series": _series(values),
        "promql_expr_test": [{"expr": expression, "eval_time": f"{minute}m", "exp_samples": samples}],
    }


@pytest.mark.parametrize("name", CASES)
def test_alert_fires_at_its_fault_only(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    rules = tmp_path / "rules.yml"
    rules.write_text(alerts.as_yaml(alerts.RULES))
    tests = [
        _test(name, case.bad, case.after, fires=True),
        *(_test(name, case.good, minute, fires=False) for minute in (2, 15, case.after, MINUTES - 5)),
    ]
    path = tmp_path / "tests.yml"
    path.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", path)
