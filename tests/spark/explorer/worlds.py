"""What an exploration is made of: the world's parts, bounds, rules, and the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from oncelog.spark.commit.finish import COMMIT, abort_batch
from oncelog.spark.commit.names import Attempt, task_id
from oncelog.spark.commit.plan import PLAN
from oncelog.spark.commit.steps import Sink
from oncelog.spark.commit.task import TASK
from oncelog.spark.commit.undo import UNDO
from spark.explorer import kafka as model

SINK = Sink("p", model.PARTITIONS[model.DECISION], model.PARTITIONS[:2])
SPLITS = (
    (((0, 0),), ((1, 1),)),
    (((1, 1),), ((0, 0),)),
    (((0, 0), (1, 1)), ()),
)
"""By driver: for each slot the (partition, row) it writes. A plan made anew may cut the same rows differently."""
SLOTS = 2
KINDS = (
    *("driver", "twin", "kill", "stage", "lose", "timeout", "late", "dup", "settle", "slow", "rewind", "undo", "deny"),
)
"""driver: a new one starts, whatever the former does. twin: another attempt, with another number or the same.
kill: a task aborts. stage: Spark gives the stage up. lose: a marker is lost, and the coordinator does not know.
timeout: before C1b has looked, late: after. dup: a copy of a request stays on its way. slow: a look for markers ends
too early. rewind: a new driver with an old checkpoint. settle, undo: what `oncelog sink settle` and `abort` do.
deny: whoever writes a marker by hand lacks ClusterAction."""
DEAD = ("dead",)


@dataclass(frozen=True)
class Rules:
    """The protocol's tables. The tests take single rules out of them."""

    plan: tuple[Any, ...] = PLAN
    task: tuple[Any, ...] = TASK
    commit: tuple[Any, ...] = COMMIT
    abort: Callable[..., Any] = abort_batch
    undo: tuple[Any, ...] = UNDO
    name: Callable[[str, int, Attempt], str] = task_id
    repeat_init: bool = False


@dataclass(frozen=True)
class Bounds:
    """How far to go. `faults`: all kinds together."""

    batches: int = 2
    faults: int = 2
    limits: dict[str, int] = field(default_factory=dict)
    states: int = 10**9
    begin: str = ""
    split: int = 0

    def budget(self) -> tuple[int, ...]:
        default = {"driver": 2, "lose": 2}
        return (self.faults, *(min(self.faults, self.limits.get(kind, default.get(kind, 1))) for kind in KINDS))


class World(NamedTuple):
    """Everything, by numbers into the explorer's tables; `committed` is the last batch in Spark's commit log,
    `late` whether a decided transaction may have timed out."""

    kafka: int
    flight: int
    drivers: int
    tasks: int
    committed: int
    budget: tuple[int, ...]
    late: bool = False


class Driver(NamedTuple):
    phase: str
    batch: int
    node: int
    progress: Any = None
    results: tuple[Any, ...] = ()


class Task(NamedTuple):
    driver: int
    batch: int
    slot: int
    node: int
    progress: Any = None


@dataclass
class Report:
    """What was seen. `trace`: the shortest way to the violation."""

    states: int = 0
    transitions: int = 0
    violation: str = ""
    trace: tuple[str, ...] = ()
    seconds: float = 0.0
    complete: bool = True
    recoveries: int = 0

    def __str__(self) -> str:
        found = f"VIOLATION {self.violation} after {len(self.trace)} steps" if self.violation else "no violation"
        whole = "" if self.complete else " (cut off)"
        return f"{self.states:,} states, {self.transitions:,} transitions{whole}, {self.seconds:.1f} s: {found}"


class Table:
    """Values by number, numbers by value."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number
