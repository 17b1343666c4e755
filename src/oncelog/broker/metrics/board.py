"""The board for Grafana: what the metrics of the catalog show, from the most urgent down.

`oncelog metrics board` prints it. The panels are a table. Each metric of the catalog that no panel names has a panel of
its own in the last row, which is closed at first. So a new metric is never forgotten. Source of the format:
https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from oncelog.broker.metrics import catalog as names
from oncelog.broker.metrics.alerts import metrics_of
from oncelog.broker.metrics.exposition import Kind, Metric

TITLE = "oncelog"
SCHEMA = 39
"""The version of the format that Grafana 10 writes. Later versions of Grafana read it."""
COLUMNS = 24
HEIGHT = 8
RATE = "$__rate_interval"
TOPIC = 'topic=~"$topic"'

_BOARD = 'job="$job"'
_OF_TOPIC = f"{{{_BOARD},{TOPIC}}}"
_ALL = f"{{{_BOARD}}}"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression, and how its series are named: a text with `{{label}}`."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A picture of a few queries. `alarm` is the value from which a number is red; None: it never is."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    number: bool = False
    alarm: float | None = None

    @property
    def text(self) -> str:
        """What the catalog says about the metrics of the panel."""
        known = {each.name: each.help for each in names.catalog()}
        used = sorted(name for query in self.queries for name in metrics_of(query.expression))
        return " ".join(dict.fromkeys(known[name] for name in used if name in known))


def _number(title: str, expression: str, alarm: float | None = 1) -> Panel:
    return Panel(title, (Query(expression, title),), number=True, alarm=alarm)


def _rate(metric: Metric, labels: str, matchers: str = _ALL) -> str:
    return f"sum by ({labels}) (rate({metric.name}{matchers}[{RATE}]))"


def _topic_rate(attribute: str) -> Query:
    return Query(_rate(names.TRAFFIC[attribute], "topic", _OF_TOPIC), f"{{{{topic}}}} {attribute.replace('_', ' ')}")


def _highest(metric: Metric, labels: str, matchers: str = _ALL) -> str:
    return f"max by ({labels}) ({metric.name}{matchers})"


_PARTITION = "topic, partition"
_PARTITION_LEGEND = "{{topic}}-{{partition}}"
_P99 = f'{{{_BOARD},request=~"Produce|Fetch|AddPartitionsToTxn|EndTxn|OffsetCommit",quantile="0.99"}}'

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Health",
        (
            _number("Brokers", f"max({names.BROKERS.name}{_ALL})", None),
            _number("Controllers", f"sum({names.ACTIVE_CONTROLLER.name}{_ALL})", 2),
            _number("Partitions without a leader", f"sum({names.OFFLINE_PARTITIONS.name}{_ALL})"),
            _number("Under-replicated partitions", f"sum({names.UNDER_REPLICATED.name}{_ALL})"),
            _number("Partitions under min.insync.replicas", f"sum({names.UNDER_MIN_ISR.name}{_ALL})"),
            _number("Failed log directories", f"sum({names.OFFLINE_DIRECTORIES.name}{_ALL})"),
            _number("Offline replicas", f"sum({names.OFFLINE_REPLICAS.name}{_ALL})"),
            _number("Partitions with a late transaction", f"sum({names.LATE_TRANSACTIONS.name}{_ALL})"),
        ),
    ),
    (
        "Transactions",
        (
            Panel(
                "Offsets that read_committed consumers wait for",
                (Query(f"topk(20, {_highest(names.STABLE_DISTANCE, _PARTITION, _OF_TOPIC)})", _PARTITION_LEGEND),),
            ),
            Panel(
                "Age of the oldest open transaction",
                (Query(_highest(names.OLDEST_TRANSACTION, "instance"), "{{instance}}"),),
                unit="s",
            ),
            Panel(
                "Transactional ids by state",
                (Query(f"sum by (state) ({names.TRANSACTIONS.name}{_ALL})", "{{state}}"),),
            ),
            Panel(
                "Batches that idempotence rejected or skipped",
                (
                    Query(_rate(names.DUPLICATES, "topic", _OF_TOPIC), "{{topic}} duplicates"),
                    Query(_rate(names.GAPS, "topic", _OF_TOPIC), "{{topic}} gaps"),
                    Query(_rate(names.STALE, "topic", _OF_TOPIC), "{{topic}} old sequences"),
                ),
                unit="ops",
            ),
            Panel(
                "Producer ids",
                (Query(f"sum by (topic) ({names.PRODUCERS.name}{_OF_TOPIC})", "{{topic}}"),),
            ),
        ),
    ),
    (
        "Traffic",
        (
            Panel("Records in", (_topic_rate("messages_in"),), unit="ops"),
            Panel("Bytes in", (_topic_rate("bytes_in"),), unit="Bps"),
            Panel("Bytes out", (_topic_rate("bytes_out"),), unit="Bps"),
            Panel(
                "Appends and reads that failed",
                (_topic_rate("failed_produce_requests"), _topic_rate("failed_fetch_requests")),
                unit="ops",
            ),
            Panel("Requests", (Query(_rate(names.REQUESTS, "request"), "{{request}}"),), unit="reqps"),
            Panel(
                "Response times, 99th percentile",
                (Query(f"max by (request) ({names.TIMES['totaltimems'].name}{_P99})", "{{request}}"),),
                unit="ms",
            ),
            Panel("Size of logs", (Query(f"sum by (topic) ({names.LOG_SIZE.name}{_OF_TOPIC})", "{{topic}}"),), "bytes"),
        ),
    ),
    (
        "Brokers",
        (
            Panel(
                "Idle part of the event loop",
                (Query(_highest(names.LOOP_IDLE, "instance"), "{{instance}}"),),
                unit="percentunit",
            ),
            Panel(
                "Longest delay of the event loop",
                (Query(_highest(names.LOOP_DELAY, "instance"), "{{instance}}"),),
                unit="s",
            ),
            Panel("Processor", (Query(_rate(names.CPU, "instance"), "{{instance}}"),), unit="percentunit"),
            Panel("Memory", (Query(_highest(names.MEMORY, "instance"), "{{instance}}"),), unit="bytes"),
            Panel(
                "Connections",
                (Query(f"sum by (instance, listener) ({names.CONNECTIONS.name}{_ALL})", "{{instance}} {{listener}}"),),
            ),
            Panel("Leaders", (Query(_highest(names.LEADERS, "instance"), "{{instance}}"),)),
        ),
    ),
    (
        "Groups",
        (
            Panel("Groups by state", (Query(f"sum by (state) ({names.GROUPS_BY_STATE.name}{_ALL})", "{{state}}"),)),
            Panel("Committed offsets", (Query(f"sum by (instance) ({names.OFFSETS.name}{_ALL})", "{{instance}}"),)),
        ),
    ),
)


def rows() -> Iterator[tuple[str, tuple[Panel, ...]]]:
    """Yield the title and the panels of each row. The last row has the metrics that are in no other."""
    yield from ROWS
    shown = set().union(*(metrics_of(query.expression) for query in _queries(ROWS)))
    rest = tuple(_own_panel(each) for each in names.catalog() if each.name not in shown)
    if rest:
        yield "All other metrics", rest


def queries() -> list[Query]:
    """Return the queries of all panels."""
    return list(_queries(tuple(rows())))


def _queries(of_rows: Sequence[tuple[str, tuple[Panel, ...]]]) -> Iterator[Query]:
    for _, panels in of_rows:
        for panel in panels:
            yield from panel.queries


def _own_panel(metric: Metric) -> Panel:
    """Return a panel made from the catalog. It has one series for each topic, not each partition."""
    matchers = _OF_TOPIC if "topic" in metric.labels else _ALL
    labels = [each for each in metric.labels if each != "partition"] or ["instance"]
    joined = ", ".join(labels)
    counts = metric.kind is Kind.COUNTER
    expression = _rate(metric, joined, matchers) if counts else _highest(metric, joined, matchers)
    legend = " ".join(f"{{{{{each}}}}}" for each in labels)
    return Panel(metric.name, (Query(expression, legend),), unit="ops" if counts else "short")


def as_json() -> str:
    """Return the board as Grafana imports it."""
    return json.dumps(_board(), indent=2, ensure_ascii=False) + "\n"


def _board() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in rows():
        closed = title not in {each for each, _ in ROWS}
        head = {"type": "row", "title": title, "collapsed": closed, "gridPos": _place(0, top, COLUMNS, 1)}
        inner, top = _placed(row, top + 1)
        panels += [{**head, "panels": inner}] if closed else [{**head, "panels": []}, *inner]
    for number, panel in enumerate(_each(panels), 1):
        panel["id"] = number
    return {
        "uid": "oncelog",
        "title": TITLE,
        "description": "Brokers of oncelog. Generated by `oncelog metrics board`.",
        "tags": ["oncelog", "kafka"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), *_variables()]},
        "panels": panels,
    }


def _each(panels: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield panel
        yield from panel.get("panels", ())


def _placed(row: Sequence[Panel], top: int) -> tuple[list[dict[str, Any]], int]:
    """Return the panels of a row with their places, and the line after them. Numbers are a quarter as large."""
    found, left = [], 0
    for panel in row:
        width, height = (COLUMNS // 8, HEIGHT // 2) if panel.number else (COLUMNS // 2, HEIGHT)
        if left + width > COLUMNS:
            left, top = 0, top + height
        found.append(_picture(panel, _place(left, top, width, height)))
        left += width
        last = height
    return found, top + (last if row else 0)


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _picture(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.alarm is not None:
        steps.append({"color": "red", "value": panel.alarm})
    return {
        "type": "stat" if panel.number else "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _DATA_SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}} if panel.number else {"tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": f"Q{number}", "expr": query.expression, "legendFormat": query.legend}
            for number, query in enumerate(panel.queries, 1)
        ],
    }


_DATA_SOURCE = {"type": "prometheus", "uid": "${source}"}


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variables() -> Iterator[dict[str, Any]]:
    """Yield the choices above the board: the job of Prometheus that reads the cluster's brokers, and topics."""
    for name, query, several in (
        ("job", f"label_values({names.LEADERS.name}, job)", False),
        ("topic", f"label_values({names.TOPIC_PARTITIONS.name}{_ALL}, topic)", True),
    ):
        choice = {"name": name, "label": name.capitalize(), "type": "query", "query": query, "refresh": 2, "sort": 1}
        if several:
            choice |= {
                "multi": True,
                "includeAll": True,
                "allValue": ".+",
                "current": {"text": "All", "value": "$__all"},
            }
        yield {**choice, "datasource": _DATA_SOURCE}
