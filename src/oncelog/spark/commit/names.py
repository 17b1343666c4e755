"""Names of the sink's transactional ids and topics."""

from __future__ import annotations

import re
from typing import NamedTuple

from oncelog.spark.commit.errors import MisuseError

PLANS = 16
"""Plans after which a task's transactional id may be used again."""
ATTEMPTS = 8
"""Attempt numbers, and task attempt ids, that a transactional id distinguishes within one plan."""
TURNS = 8
"""Transactional ids that one task attempt may try, one after the other."""

_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,200}")
_TASK = re.compile(r"(?P<prefix>[^/]+)/\d+/\d+/\d\.\d(?:\.\d)?")


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int


class Attempt(NamedTuple):
    """One attempt of one task, as Spark's TaskContext reports it."""

    slot: int
    number: int
    task_attempt_id: int


def check_prefix(prefix: str) -> str:
    """Return the prefix. Raises MisuseError if it cannot be part of ids and of a topic's name."""
    if not _PREFIX.fullmatch(prefix):
        raise MisuseError(
            f"option transactionalIdPrefix={prefix!r}: it must be 1 to 200 letters, digits, '.', '_' or '-' (no '/'), "
            "because it is part of transactional ids and of the decision topic's name"
        )
    return prefix


def decision_topic(prefix: str) -> str:
    """Return the default of option `decisionTopic`."""
    return f"{prefix}-commits"


def task_id(prefix: str, plan: int, attempt: Attempt, turn: int = 0) -> str:
    """Return the transactional id of one task attempt.

    Two attempts of a task in one plan share an id if their attempt numbers are equal modulo ATTEMPTS, and their task
    attempt ids, too. Attempts of one stage attempt have different numbers. If Spark runs the stage again, the numbers
    begin at 0 again, so that one in ATTEMPTS attempts shares the id of an earlier one, which may still run. PySpark
    does not report the number of the stage attempt, and brokers remember each id for days.

    Of two attempts that share an id, the later one fences the earlier one. If the driver has the earlier one's report,
    C1b finds its transaction ended, and Spark replays the batch. An attempt that does K1 before the decision and K2
    after C1b aborts a transaction of the decision. This tears the batch. Each later plan rejects a torn batch, so no
    row is lost or doubled unnoticed (test_explorer.py, attempts that share an id).

    `turn`: 0 for the attempt's first id, 1 to TURNS - 1 for later ones.
    """
    tail = f"{attempt.number % ATTEMPTS}.{attempt.task_attempt_id % ATTEMPTS}" + (f".{turn}" if turn else "")
    return f"{prefix}/{attempt.slot}/{plan % PLANS}/{tail}"


def prefix_of(transactional_id: str) -> str | None:
    """Return the prefix in a task's id, or None for an id of another form."""
    match = _TASK.fullmatch(transactional_id)
    return None if match is None else match["prefix"]


def is_task_id(prefix: str, transactional_id: str) -> bool:
    """Return whether this is a task's id of exactly this prefix. Ids are parsed: prefixes may begin alike."""
    return prefix_of(transactional_id) == prefix
