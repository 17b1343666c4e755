"""The rules for Prometheus: when to call an operator, and what the operator can do.

`oncelog metrics rules` prints them. Each rule is an expression over metrics of the catalog, which is true while
something is wrong, and the time for which it must be true. The text of a rule names the command that shows more.
Source of the format: https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from oncelog.broker.metrics import catalog as names

WARNING, CRITICAL = "warning", "critical"
"""Severities: look at it today, or at once."""

_PREFIXES = ("kafka", "oncelog", "process")
_NAMES = re.compile(rf"\b(?:{'|'.join(_PREFIXES)})_[a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert. `hold` is the time for which `expression` must be true, in Prometheus's form, for example `5m`."""

    name: str
    severity: str
    expression: str
    hold: str
    summary: str
    remedy: str


RULES: tuple[Rule, ...] = (
    Rule(
        "OncelogBrokerDown",
        CRITICAL,
        f"up == 0 and on (job, instance) last_over_time({names.LEADERS.name}[1d])",
        "1m",
        "The broker at {{ $labels.instance }} does not answer.",
        "`oncelog cluster describe` lists missing brokers. Read the last lines of the broker's log. `oncelog up` "
        "restarts a broker that dies; if it cannot, it prints why.",
    ),
    Rule(
        "OncelogNoController",
        CRITICAL,
        f"sum by (job) ({names.ACTIVE_CONTROLLER.name}) != 1",
        "1m",
        "The cluster {{ $labels.job }} has {{ $value }} controllers instead of one.",
        "Without a controller, no leader is elected. `oncelog cluster describe` names the controller and the brokers "
        "that run. If a broker is missing in this job's targets, add it.",
    ),
    Rule(
        "OncelogPartitionOffline",
        CRITICAL,
        f"{names.OFFLINE_PARTITIONS.name} > 0",
        "1m",
        "{{ $value }} partitions have no leader, so nobody can read or write them.",
        "`oncelog cluster describe` names the partitions and the brokers that have their records. Start those brokers.",
    ),
    Rule(
        "OncelogUnderMinIsr",
        CRITICAL,
        f"{names.UNDER_MIN_ISR.name} > 0",
        "1m",
        "{{ $value }} partitions on {{ $labels.instance }} reject producers with acks=all.",
        "They have fewer in-sync replicas than min.insync.replicas. `oncelog cluster describe` names the partitions "
        "and the replicas that are missing.",
    ),
    Rule(
        "OncelogUnderReplicated",
        WARNING,
        f"{names.UNDER_REPLICATED.name} > 0",
        "5m",
        "{{ $value }} partitions on {{ $labels.instance }} lack an in-sync replica.",
        "A broker is down, slow, or copies its replicas. `oncelog cluster describe` names the partitions and the "
        "missing brokers.",
    ),
    Rule(
        "OncelogLogDirectoryOffline",
        CRITICAL,
        f"{names.OFFLINE_DIRECTORIES.name} > 0",
        "0s",
        "{{ $value }} log directories of {{ $labels.instance }} have failed.",
        "`oncelog cluster log-dirs` names them, and the broker's log has the error. Repair or replace the disk, then "
        "restart the broker.",
    ),
    Rule(
        "OncelogHangingTransaction",
        CRITICAL,
        f"{names.LATE_TRANSACTIONS.name} > 0",
        "5m",
        "{{ $value }} partitions on {{ $labels.instance }} have a transaction that should have ended long ago.",
        "read_committed consumers wait for it. `oncelog txn find-hanging --broker ID` lists it, and `oncelog txn "
        "abort` ends it.",
    ),
    Rule(
        "OncelogLastStableOffsetStuck",
        WARNING,
        f"{names.STABLE_DISTANCE.name} > 0 and changes(({names.END.name} - {names.STABLE_DISTANCE.name})[10m:]) == 0",
        "10m",
        "read_committed consumers of {{ $labels.topic }}-{{ $labels.partition }} wait for an open transaction, with "
        "{{ $value }} offsets after its start.",
        "`oncelog topic describe {{ $labels.topic }}` names the transaction. `oncelog txn describe ID` shows its "
        "producer, and `oncelog txn terminate ID` aborts it. If the id has a `/`, a Spark sink owns it: use "
        "`oncelog sink list PREFIX`.",
    ),
    Rule(
        "OncelogSinkNotSettled",
        WARNING,
        f"{names.SINK_PENDING.name} > 0",
        "15m",
        "A Spark sink has decided in {{ $labels.topic }} to commit a batch, but has not committed it everywhere.",
        "The next start of the query completes it. If it will not start again: `oncelog sink list PREFIX` shows "
        "the batch, and `oncelog sink settle PREFIX` completes it.",
    ),
    Rule(
        "OncelogGroupStuck",
        WARNING,
        f"{names.LAG.name} > 0 and changes({names.COMMITTED.name}[15m]) == 0",
        "15m",
        "Group {{ $labels.consumergroup }} commits nothing for {{ $labels.topic }}-{{ $labels.partition }}, "
        "although {{ $value }} offsets are left.",
        "`oncelog group describe {{ $labels.consumergroup }}` shows its members. If it has none, start the consumers. "
        "If they run, `oncelog topic describe {{ $labels.topic }}` shows whether a transaction blocks them.",
    ),
    Rule(
        "OncelogGroupFallsBehind",
        WARNING,
        f"sum by (job, consumergroup, topic) ({names.LAG.name}) > 1000 "
        f"and sum by (job, consumergroup, topic) (deriv({names.LAG.name}[30m])) > 0",
        "30m",
        "Group {{ $labels.consumergroup }} reads {{ $labels.topic }} more slowly than it is written. "
        "{{ $value }} offsets are left.",
        "`oncelog group describe {{ $labels.consumergroup }}` shows the lag of each partition and its member. Start "
        "more consumers, at most one for each partition.",
    ),
    Rule(
        "OncelogCoordinatorFailed",
        CRITICAL,
        f'{names.GROUP_PARTITIONS.name}{{state="failed"}} > 0 '
        f'or {names.TRANSACTION_PARTITIONS.name}{{state="failed"}} > 0',
        "1m",
        "{{ $value }} coordinators of {{ $labels.instance }} could not load their groups or transactions.",
        "Look for `failed` in the broker's log, and for offline directories with `oncelog cluster log-dirs`. Then "
        "restart the broker.",
    ),
    Rule(
        "OncelogEventLoopDelayed",
        WARNING,
        f"{names.LOOP_DELAY.name} > 1",
        "5m",
        "Requests to {{ $labels.instance }} wait up to {{ $value }} s for the event loop.",
        "`oncelog cluster describe --configs` shows loop.stall.log.ms. Restart the broker with "
        "`--set loop.stall.log.ms=50`, and it logs what takes so long.",
    ),
    Rule(
        "OncelogFewFileDescriptors",
        WARNING,
        f"{names.OPEN_FILES.name} / {names.MOST_FILES.name} > 0.8 and on (job, instance) {names.LEADERS.name}",
        "5m",
        "{{ $labels.instance }} uses more than 80 % of its file descriptors.",
        "`oncelog broker` and `oncelog up` refuse connections when none are left. Raise the limit (LimitNOFILE in a "
        "unit of systemd).",
    ),
)


def metrics_of(expression: str) -> set[str]:
    """Return the names of a broker's metrics that an expression reads."""
    return set(_NAMES.findall(expression))


def as_yaml(chosen: Iterable[Rule]) -> str:
    """Return a file of rules for Prometheus. Each text is a JSON string, which YAML reads, too."""
    return "\n".join(_lines(chosen)) + "\n"


def _lines(chosen: Iterable[Rule]) -> Iterator[str]:
    yield "groups:"
    yield "  - name: oncelog"
    yield "    rules:"
    for rule in chosen:
        yield f"      - alert: {rule.name}"
        yield f"        expr: {_quoted(rule.expression)}"
        yield f"        for: {rule.hold}"
        yield "        labels:"
        yield f"          severity: {rule.severity}"
        yield "        annotations:"
        yield f"          summary: {_quoted(rule.summary)}"
        yield f"          description: {_quoted(rule.remedy)}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
