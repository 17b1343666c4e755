"""A `Picture` as a JSON document, and how much of the cluster it covers. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

from oncelog.client.admin.transactions import MAX_TRANSACTION_TIMEOUT_MS
from oncelog.watch.readings import Picture
from oncelog.watch.rows import broker_rows, group_rows, topic_rows, transaction_rows


class Coverage(NamedTuple):
    """How many of a cluster's keys were read, of how many."""

    read: int
    total: int


def coverage(picture: Picture) -> dict[str, Coverage]:
    """Return the coverage of "partitions" and "groups"."""
    partitions = sum(len(topic.partitions) for topic in picture.topics.values())
    return {
        "partitions": Coverage(len(picture.partitions), partitions),
        "groups": Coverage(len(picture.group_readings), len(picture.groups)),
    }


def rows_of(picture: Picture, subject: str, hanging_after_ms: int = MAX_TRANSACTION_TIMEOUT_MS) -> list[Any]:
    """Return the rows of "topics", "groups", "transactions" or "brokers"."""
    makers: dict[str, Callable[[Picture], list[Any]]] = {
        "topics": partial(topic_rows, hanging_after_ms=hanging_after_ms),
        "groups": group_rows,
        "transactions": partial(transaction_rows, hanging_after_ms=hanging_after_ms),
        "brokers": broker_rows,
    }
    return makers[subject](picture)


def document(
    picture: Picture, subjects: Collection[str], hanging_after_ms: int = MAX_TRANSACTION_TIMEOUT_MS
) -> dict[str, Any]:
    """Return the picture for programs: one key for each subject, with all rows, and what they lack."""
    return {
        "cluster_id": picture.cluster_id,
        "controller": picture.controller,
        "time_ms": picture.time_ms,
        "reachable": picture.reachable,
        **{name: [row._asdict() for row in rows_of(picture, name, hanging_after_ms)] for name in subjects},
        "read": {name: found._asdict() for name, found in coverage(picture).items()},
        "requests": {"turn": dict(picture.requests.turn), "total": picture.requests.total},
        "troubles": [trouble._asdict() for trouble in picture.troubles],
    }
